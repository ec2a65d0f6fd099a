"""Kernels that XLA compiles for the CPU, inside of graphs that it does not."""
