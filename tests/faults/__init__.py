"""Malformed data, broken files and full disks: what may come of them."""
