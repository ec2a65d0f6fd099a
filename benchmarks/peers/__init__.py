"""What a private step costs, side by side with other libraries."""
