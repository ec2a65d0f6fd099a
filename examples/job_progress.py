"""What a training job does while it trains: keep, tell, and end in time."""

from __future__ import annotations

import math
import pathlib
import signal
import time
from typing import Any

import tensorflow as tf

keras = tf.keras


def number(variable: Any) -> int:
    """A whole number that Keras keeps, perhaps with copies on replicas."""
    return int(tf.convert_to_tensor(variable))


class Scalars:
    """Curves for TensorBoard; writing them does not need it installed.

    Keras' TensorBoard callback does, and it logs whatever `fit` computes: the
    loss and the metrics of training examples among it, which are not private.
    """

    def __init__(self, folder: pathlib.Path):
        self._writer = tf.summary.create_file_writer(str(folder))
        self._kind = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": "scalars"}, data_class=1
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.write(
                    name,
                    tf.constant(value, tf.float32),
                    step=step,
                    metadata=self._kind,
                )
        self._writer.flush()


class Progress(keras.callbacks.Callback):
    """After every epoch of `fit`: a checkpoint, scalars, and a line.

    Args:
      manager: Keeps the checkpoints.
      scalars: None where others write them.
      metrics: Whether to show what `fit` says of training examples as well.
    """

    def __init__(
        self,
        manager: tf.train.CheckpointManager,
        scalars: Scalars | None,
        metrics: bool,
    ):
        super().__init__()
        self._manager = manager
        self._scalars = scalars
        self._metrics = metrics

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._begin = time.perf_counter()
        self._first = number(self.model.optimizer.iterations)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        optimizer = self.model.optimizer
        taken = number(optimizer.iterations)
        self._manager.save(checkpoint_number=taken)
        charged = optimizer.compositions_spent
        epsilon = optimizer.plan.epsilon_spent(charged)
        shown = {"loss": float(logs["loss"])} if self._metrics and logs else {}
        if self._scalars is not None:
            # What was charged never goes down, whatever was restarted.
            self._scalars.write(
                charged,
                {
                    "epsilon": epsilon,
                    "steps in the weights": taken,
                    **{f"not private: {k}": v for k, v in shown.items()},
                },
            )
        rate = (taken - self._first) / (time.perf_counter() - self._begin)
        print(
            f"step {taken}: {charged} of {optimizer.plan.num_compositions} "
            f"charged, ε = {math.ceil(1000 * epsilon) / 1000:g} of "
            f"{optimizer.plan.epsilon:g}; {rate:.3g} steps/s"
            + "".join(f", {k} {v:.4f}" for k, v in shown.items()),
            flush=True,
        )


class EndWhenTold(keras.callbacks.Callback):
    """Ends `fit` after the current step when the process is told to end.

    So there is a checkpoint of that step, and what was paid ahead is given
    back. The second signal has its usual effect.
    """

    signal: int | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._usual = {
            number: signal.signal(number, self._told)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN  # As by nohup.
        }

    def on_train_end(self, logs: dict | None = None) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)

    def _told(self, number: int, frame: Any) -> None:
        self.signal = number
        self.model.stop_training = True
        self.on_train_end()
