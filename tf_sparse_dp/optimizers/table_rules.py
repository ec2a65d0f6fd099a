"""How tables whose noise is drawn later are updated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tf_sparse_dp.gradients.separation import Gradient
from tf_sparse_dp.layers.lazy_variable import LazyVariable
from tf_sparse_dp.optimizers.arguments import check_positive
from tf_sparse_dp.sampling.counts import whole_number

_WHY = (
    "Noise that is drawn when a row is read is exact only for updates that are "
    "linear in the gradient: slots, momentum, decay, clipping and averages "
    "would have to see the noise of rows that nobody reads. Give the tables a "
    "rule of their own, DPSparseOptimizer(..., "
    "tables=keras.optimizers.SGD(learning_rate)), or "
    "tables=tf_sparse_dp.DualAveraging(learning_rate) for layers with "
    "denoise=True, which leaves the other variables to the inner optimizer; or "
    "use keras.layers.Embedding."
)


@dataclasses.dataclass(frozen=True)
class DualAveraging:
    r"""Updates tables of `LazyEmbedding(..., denoise=True)`.

    The table holds noisy sums of gradients; lookups give them shrunk, column
    by column, by the share of noise in them: $W_0 - \lambda \circ \sum_t \eta_t
    \tilde g_t$. Learning rates that would drown plain SGD in noise then do no
    harm, and so may be much larger (docs/training.md has figures).

    **Guarantee.** Shrinking is post-processing: that of the noisy gradients.

    Args:
      learning_rate: A number, or a Keras schedule.
      estimate_every: Steps from one estimate of the shrinkage to the next,
        at most; at the start it is made after steps 1, 2, 4, 8, ...
      sample_rows: How many rows it is estimated from; the same all the time.

    Example:
      >>> DualAveraging(30.0).estimate_every
      100
    """

    learning_rate: Any
    estimate_every: int = 100
    sample_rows: int = 4096

    def __post_init__(self) -> None:
        whole_number("estimate_every", self.estimate_every)
        whole_number("sample_rows", self.sample_rows)
        if not callable(self.learning_rate):
            check_positive("learning_rate", self.learning_rate)


def _refuse(rule: DualAveraging, name: str, *_: Any) -> NoReturn:
    """In place of what a frozen dataclass says, which helps nobody."""
    raise dataclasses.FrozenInstanceError(
        f"{name} of DualAveraging cannot be changed: training steps that were "
        "traced have it. For a rate that changes give a schedule, such as "
        "DualAveraging(keras.optimizers.schedules.CosineDecay(...)). To go on "
        "with another rule, make a new optimizer with it and restore a "
        "tf.train.Checkpoint of this one into that, which keeps what was spent."
    )


DualAveraging.__setattr__ = DualAveraging.__delattr__ = _refuse  # type: ignore[method-assign, assignment]


class TableRule:
    r"""How tables of `LazyEmbedding` are updated: $W - \eta_t \tilde g_t$.

    Args:
      keras: The running Keras.
      inner_optimizer: Whose steps are counted, and whose learning rate it is
        if tables have no rule of their own.
      tables: `DualAveraging`, a plain SGD, or None.
    """

    def __init__(self, keras: Any, inner_optimizer: Any, tables: Any):
        self._keras = keras
        self._inner = inner_optimizer
        self.given = tables
        self.seen = False  # Such tables, by a step that was traced.
        self._usual = keras.optimizers.SGD().get_config()  # Makes variables.
        if tables is not None and not isinstance(tables, DualAveraging):
            self._check("tables", tables)

    def update(
        self,
        updates: Sequence[tuple[Gradient, LazyVariable]],
        stddev: tf.Tensor | float,
    ) -> None:
        """Takes a step on every table that has a gradient.

        Args:
          updates: Gradients, and the tables.
          stddev: Size of the noise that they lack.
        """
        rate = self._rate()
        stddev *= tf.abs(rate)
        tables = []
        for gradient, table in updates:
            if gradient is not None:
                table.add(_scaled(gradient, -rate), stddev)
                tables.append(table)
        if isinstance(self.given, DualAveraging):
            self._denoise(tables, stddev)

    def check(self, tables: Sequence[LazyVariable]) -> None:
        """Whether there is a rule for a model's tables, and use for it.

        Raises:
          ValueError: If not.
        """
        self.seen = self.seen or bool(tables)  # They may be frozen later.
        if not tables:
            if self.given is not None and not self.seen:
                raise ValueError(
                    "tables was given, but the model has no table of "
                    "tf_sparse_dp.layers.LazyEmbedding that is trained. Use "
                    "that layer in place of keras.layers.Embedding, or leave "
                    "tables out: the inner optimizer then updates all."
                )
            return
        if self.given is None:
            self._check("inner_optimizer", self._inner)
        averaged = isinstance(self.given, DualAveraging)
        for table in tables:
            if (table.denoising is not None) != averaged:
                given = "DualAveraging" if averaged else "SGD"
                raise ValueError(
                    f"{given} was given for '{table.name}', a table of "
                    f"LazyEmbedding with denoise={not averaged}. One rule is "
                    "for all tables: expected DPSparseOptimizer(..., "
                    "tables=DualAveraging(...)) and denoise=True in every "
                    "layer, or SGD and denoise=True in none."
                )

    def get_config(self) -> dict[str, Any] | None:
        """What `from_config` needs."""
        if not isinstance(self.given, DualAveraging):
            given: dict[str, Any] | None = self._keras.optimizers.serialize(
                self.given
            )
            return given
        config = dict(vars(self.given))
        if callable(config["learning_rate"]):
            config["learning_rate"] = (
                self._keras.optimizers.schedules.serialize(
                    config["learning_rate"]
                )
            )
        return {"class_name": "DualAveraging", "config": config}

    @staticmethod
    def from_config(keras: Any, config: dict[str, Any], objects: Any) -> Any:
        """The rule that was given."""
        if config["class_name"] != "DualAveraging":
            return keras.optimizers.deserialize(config, custom_objects=objects)
        config = dict(config["config"])
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras.optimizers.schedules.deserialize(
                config["learning_rate"], custom_objects=objects
            )
        return DualAveraging(**config)

    def _denoise(
        self, tables: Sequence[LazyVariable], stddev: tf.Tensor
    ) -> None:
        for table in tables:
            table.denoising.add_variance(stddev)

        def estimate() -> tf.Tensor:
            for table in tables:
                table.denoising.estimate(self.given.sample_rows)
            return tf.constant(True)

        number = tf.cast(self._inner.iterations, tf.int64) + 1
        power_of_two = tf.bitwise.bitwise_and(number, number - 1) == 0
        tf.cond(
            power_of_two | (number % self.given.estimate_every == 0),
            estimate,
            lambda: tf.constant(False),
        )

    def _rate(self) -> tf.Tensor:
        if isinstance(self.given, DualAveraging):
            rate = self.given.learning_rate
        else:
            rate = (self.given or self._inner)._learning_rate
        if isinstance(
            rate, self._keras.optimizers.schedules.LearningRateSchedule
        ):
            rate = rate(self._inner.iterations)
        elif callable(rate):
            rate = rate()
        return tf.cast(tf.convert_to_tensor(rate), tf.float32)

    def _check(self, name: str, optimizer: Any) -> None:
        plain = self._keras.optimizers.SGD
        if not isinstance(optimizer, self._keras.optimizers.Optimizer):
            raise TypeError(
                f"{name} is {optimizer!r}; expected "
                "keras.optimizers.SGD(learning_rate) of the running Keras, or "
                "tf_sparse_dp.DualAveraging(learning_rate)."
            )
        if type(optimizer) is not plain:
            raise ValueError(
                f"{name} is {type(optimizer).__name__}, but tables of "
                f"LazyEmbedding need plain SGD. {_WHY}"
            )
        usual = self._usual
        with tf.init_scope():  # It holds values of variables.
            config = optimizer.get_config()
        for option, value in config.items():
            if option in ("name", "learning_rate", "jit_compile"):
                continue
            if value != usual.get(option) and (value or usual.get(option)):
                raise ValueError(
                    f"{name} is SGD with {option}={value!r}, but tables of "
                    f"LazyEmbedding need plain SGD. {_WHY}"
                )


def _scaled(gradient: Any, by: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * tf.cast(by, gradient.values.dtype),
            gradient.indices,
            gradient.dense_shape,
        )
    return gradient * tf.cast(by, gradient.dtype)
