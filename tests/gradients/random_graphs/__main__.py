"""Examines as many random graphs as one likes and prints the counts."""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from tests.gradients.random_graphs.counting import Counts, count

CHUNK = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    counts, start = Counts(), time.time()
    end = options.seed + options.graphs
    for first in range(options.seed, end, CHUNK):
        here = count(range(first, min(end, first + CHUNK)))
        print("\n".join([*here.unsound, *here.crashes]), end="")
        counts = Counts.total([counts.as_dict(), here.as_dict()])
        print(f"{time.time() - start:.0f} s, {counts}\n", flush=True)
    return 1 if counts.unsound or counts.crashes else 0


if __name__ == "__main__":
    sys.exit(main())
