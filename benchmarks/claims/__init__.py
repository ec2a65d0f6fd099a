"""What README.md claims, and the records that the claims rest on.

    make bench-check  # python -m benchmarks.claims check
    make bench-page   # python -m benchmarks.claims write

`listed` has the claims, `costs` and `guarantees` how a figure follows from a
record's rows, `layouts` how records are shown, `page` makes docs/results.md of
all of it, and `check` says what no longer holds. Nothing needs TensorFlow.
"""
