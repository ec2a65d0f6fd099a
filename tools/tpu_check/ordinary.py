"""Takes the steps that are to be run in the ordinary way, for comparison.

    python -m tools.tpu_check.ordinary FOLDER

For the environment that everything else is tested in: the TensorFlow for TPUs
compiles nothing for the CPU.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tools.tpu_check.cases import CASES, SMALL, batch, compiled_model


def main(folder: pathlib.Path) -> None:
    """Writes the weights after each step beside its program."""
    tf.get_logger().setLevel("ERROR")  # Each step is traced once, on purpose.
    for name, case in CASES.items():
        own = folder / name.replace(" ", "_")
        # Without noise, one that nothing compiles. With noise, one that XLA
        # compiles, too: it draws the same numbers from the same keys.
        for kind, noise in (("exact", 0.0), ("noise", case.noise)):
            path = own / f"{kind}.npz"
            if not path.exists():
                continue
            model = compiled_model(case, SMALL, noise)
            _start_with(model, np.load(path))
            step = tf.function(
                model.train_step, jit_compile=noise > 0, autograph=False
            )
            step(tuple(map(tf.constant, batch(case, SMALL))))
            weights = [_stored(v) for v in model.trainable_variables]
            np.savez(own / f"{kind}_expected.npz", *weights)


def _start_with(model: Any, data: Any) -> None:
    """Lets a model have the weights that a program starts with."""
    for variable, place in zip(
        model.trainable_variables, data["trained"], strict=True
    ):
        variable.assign(data[f"variable{place}"])


def _stored(variable: Any) -> np.ndarray:
    """What a variable holds, without noise that is yet to come."""
    raw = getattr(variable, "_value", variable)
    stored = tf.raw_ops.ReadVariableOp(resource=raw.handle, dtype=raw.dtype)
    return stored.numpy()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
