"""Accuracy against epsilon, for every mechanism and mode: see `__main__`."""
