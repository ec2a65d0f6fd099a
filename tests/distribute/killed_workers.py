"""The job of several workers, with a trace of each step that was taken.

A script like examples/multi_worker_train.py, whose flags it takes. In its
folder, each worker keeps its process id, and the steps that it took: their
number, and a digest of the weights after it.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import zlib
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import multi_worker_train

import tf_sparse_dp as tsdp
from tests.distribute import cluster

(FOLDER,) = [
    pathlib.Path(flag.partition("=")[2])
    for flag in sys.argv
    if flag.startswith("--folder=")
]


class Traced(tsdp.PrivacyBudget):
    """Writes down each step when it was taken."""

    _number = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        number = int(self.model.optimizer.iterations.numpy())
        if number != self._number:  # The last one is refused.
            self._number = number
            digest = zlib.crc32(self.model.get_weights()[0].tobytes())
            with (FOLDER / f"steps{INDEX}").open("a") as file:
                file.write(f"{number} {digest}\n")
        super().on_train_batch_end(batch, logs)


if __name__ == "__main__":
    if "TF_CONFIG" in os.environ:
        INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        (FOLDER / f"process{INDEX}").write_text(str(os.getpid()))
        tsdp.PrivacyBudget = Traced  # type: ignore[misc]
    else:
        multi_worker_train.free_addresses = lambda number: [
            f"127.0.0.1:{port}" for port in cluster.free_ports(number)
        ]
    multi_worker_train.main()
