"""Private steps on several replicas at once."""
