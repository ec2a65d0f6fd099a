"""Whether private training steps compile for TPUs, found out without a TPU.

`make tpu-check` runs it; docs/tpu.md says what that shows and what it does not.
"""
