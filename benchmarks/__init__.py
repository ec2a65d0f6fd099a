"""What the library costs, and how well it does: programs, not tests."""
