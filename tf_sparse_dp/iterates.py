"""Iterates of a run: their mean, one at random, and where they may be.

SGD goes through the weights x^0, x^1, ... What a theorem speaks of is seldom
the last of them. All three callbacks below are post-processing: with a private
optimizer *all* iterates together have its guarantee, and what is done with them
here depends on nothing else but on randomness of its own. It costs no privacy.
"""

from __future__ import annotations

import abc
import math
import secrets
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_dp.layers.lazy_variable import lazy_variable


def _digits(dtype: tf.DType) -> int:
    return int(dtype.size)


class _EveryStep(tf.keras.callbacks.Callback):
    """A callback that has to see the weights between any two steps."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        steps = getattr(self.model, "steps_per_execution", None)
        if steps is None:  # tf-keras
            steps = getattr(self.model, "_steps_per_execution", None)
        if steps is not None and int(steps) > 1:
            raise ValueError(
                f"The model was compiled with steps_per_execution={int(steps)},"
                f" so that {type(self).__name__} would not see all iterates. "
                "Expected 1: leave it out of compile()."
            )
        self._weights()

    def _weights(self) -> list[Any]:
        if not self.model.built:
            raise ValueError(
                f"{type(self).__name__} needs the weights that training starts "
                "from, but the model has none yet. Call model.build(shape), or "
                "the model on one batch, before fit."
            )
        weights = list(self.model.trainable_variables)
        for variable in weights:
            if lazy_variable(variable) is not None:
                raise ValueError(
                    f"'{variable.name}' is a table of LazyEmbedding, whose "
                    "rows lack noise until they are read; "
                    f"{type(self).__name__} would read all of them in every "
                    "step. Use keras.layers.Embedding, or leave the callback "
                    "out."
                )
        return weights


class _Chosen(_EveryStep):
    """Weights that are made of all iterates that a step started from."""

    def __init__(self, *, assign: bool = True):
        super().__init__()
        self._assign = assign
        self._assigned = False
        self._count = 0
        self._kept: list[tf.Tensor] = []
        self._steps = -1  # The optimizer's, when an iterate was counted last.

    @abc.abstractmethod
    def _count_in(self, iterate: list[tf.Tensor]) -> None:
        """Takes one more iterate, number `_count`, into account."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        if self._assigned:  # The weights are no iterate any more: start over.
            self._count, self._kept, self._steps = 0, [], -1
        self._assigned = False

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        steps = int(self.model.optimizer.iterations)
        if steps == self._steps:
            return  # The step before was refused: this iterate was counted.
        self._steps = steps
        self._count += 1
        self._count_in([tf.convert_to_tensor(v) for v in self._weights()])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._assign and self._count:
            self.assign_to(self.model)
            self._assigned = True

    @property
    def count(self) -> int:
        """How many iterates were counted."""
        return self._count

    def assign_to(self, model: Any) -> None:
        """Gives a model the chosen weights.

        Raises:
          ValueError: There are none, or they are of another model.
        """
        variables = list(model.trainable_variables)
        shapes = [tuple(v.shape) for v in variables]
        kept = [tuple(k.shape) for k in self._kept]
        if not self._count or shapes != kept:
            raise ValueError(
                f"{type(self).__name__} has weights of the shapes {kept} and "
                f"the model {shapes}. Train with it as a callback first, the "
                "same model."
            )
        for variable, value in zip(variables, self._kept, strict=True):
            variable.assign(tf.cast(value, variable.dtype))

    def get_state(self) -> dict[str, Any]:
        """What to save beside a checkpoint of the model: count and weights."""
        return {
            "count": self._count,
            "weights": [np.asarray(kept) for kept in self._kept],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state, in a new process.

        Restore the checkpoint of the model that was saved at the same time:
        its weights are counted next.
        """
        self._count = int(state["count"])
        self._kept = [tf.convert_to_tensor(kept) for kept in state["weights"]]
        self._assigned = False
        self._steps = -1


class AverageIterate(_Chosen):
    r"""Gives the model the mean of all iterates when training ends.

    $\bar x = \frac{1}{t+1} \sum_{s=0}^{t} x^s$

    over the weights $x^s$ that the steps 0, ..., t started from; for convex
    losses, of which the loss at the mean is at most the mean of the losses. A
    step that was refused does not count, nor does its iterate count twice.

    It costs no privacy: see the top of this file. It needs one more copy of
    the weights, and passes over them in every step, which with large tables
    takes longer than a step that touches few rows.

    A checkpoint of the model does not have the mean: save `get_state()` beside
    it. If `fit` ends with an exception, the model keeps its last iterate;
    `assign_to` gives it the mean all the same.

    Args:
      assign: Whether the model gets the mean at the end of `fit`; a further
        `fit` then starts a new one. If not, the model keeps its last iterate,
        a further `fit` goes on counting, and `assign_to` gives a model the
        mean.

    Raises:
      ValueError: At the start of `fit`: the model is not built, has a table of
        `LazyEmbedding`, or takes several steps per execution.

    Example:
      >>> model = tf.keras.Sequential(
      ...     [tf.keras.Input([1]), tf.keras.layers.Dense(1, use_bias=False)]
      ... )
      >>> model.compile(tf.keras.optimizers.SGD(0.1), "mse")
      >>> model.set_weights([np.ones([1, 1])])
      >>> x = np.ones([2, 1])  # The gradient is 2w: 1, then 0.8.
      >>> _ = model.fit(
      ...     x, 0 * x, batch_size=1, verbose=0, callbacks=[AverageIterate()]
      ... )
      >>> print(round(float(model.get_weights()[0][0, 0]), 4))
      0.9
    """

    def _count_in(self, iterate: list[tf.Tensor]) -> None:
        # A mean in bfloat16 would stand still after some hundred steps.
        wide = [
            tf.cast(x, max(x.dtype, tf.float32, key=_digits)) for x in iterate
        ]
        if self._count == 1:
            self._kept = wide
            return
        self._kept = [
            mean + (x - mean) / self._count
            for mean, x in zip(self._kept, wide, strict=True)
        ]


class RandomIterate(_Chosen):
    r"""Gives the model one of all iterates, at random, when training ends.

    $P(\hat t = s) = \frac{1}{t+1}, \quad s = 0, \dots, t$

    for the weights that the steps 0, ..., t started from; for nonconvex losses,
    where the theorem bounds the gradient at such an iterate. Iterate number k
    takes the place of the kept one with probability 1/k: after it, each of k
    was kept with probability 1/k by induction, (1/(k-1)) (1 - 1/k) = 1/k
    (Vitter, *Random sampling with a reservoir*, 1985).

    It costs no privacy: see the top of this file. The draws are the operating
    system's. It needs one more copy of the weights, which is written about
    ln(t) times in all. Checkpoints, exceptions and arguments as for
    `AverageIterate`.

    Example:
      >>> callback = RandomIterate()
      >>> callback.count
      0
    """

    def _count_in(self, iterate: list[tf.Tensor]) -> None:
        if secrets.randbelow(self._count) == 0:
            self._kept = [tf.identity(x) for x in iterate]


class ProjectedIterate(_EveryStep):
    r"""Projects the weights after every step, onto a ball or a box.

    $x^{t+1} = \Pi_X[x^t - \eta G(x^t)]$ with X the ball of a radius around
    $x^0$, the weights that the first `fit` starts from, in L2 norm over all
    trainable weights together; or the box of weights from low to high.

    It costs no privacy: see the top of this file. It passes over all weights
    in every step, as dense training does; a ball needs a copy of $x^0$.

    Args:
      ball: The radius.
      box: (low, high); $x^0$ should be within.

    Raises:
      ValueError: Neither or both were given, or not such numbers. At the start
        of `fit`: as `AverageIterate`.

    Example:
      >>> model = tf.keras.Sequential(
      ...     [tf.keras.Input([1]), tf.keras.layers.Dense(1, use_bias=False)]
      ... )
      >>> model.compile(tf.keras.optimizers.SGD(1.0), "mse")
      >>> _ = model.fit(
      ...     np.ones([1, 1]),
      ...     np.ones([1, 1]) * 50,
      ...     verbose=0,
      ...     callbacks=[ProjectedIterate(box=(-1.0, 2.0))],
      ... )
      >>> print(float(model.get_weights()[0][0, 0]))
      2.0
    """

    def __init__(
        self,
        *,
        ball: float | None = None,
        box: tuple[float, float] | None = None,
    ):
        super().__init__()
        if (ball is None) == (box is None):
            raise ValueError(
                f"ball={ball!r} and box={box!r} were given; expected one of "
                "them: the radius of a ball, or (low, high)."
            )
        if ball is not None and not 0 < ball < math.inf:
            raise ValueError(
                f"ball={ball!r} was given; expected a radius above 0."
            )
        if box is not None:
            low, high = box
            if not -math.inf < low < high < math.inf:
                raise ValueError(
                    f"box={box!r} was given; expected two numbers (low, high), "
                    "the first of them smaller."
                )
        self._ball = ball
        self._box = box
        self._centre: list[tf.Tensor] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        if self._ball is not None and not self._centre:
            self._centre = [tf.identity(v) for v in self._weights()]

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        weights = self._weights()
        if self._box is not None:
            for variable in weights:
                x = tf.convert_to_tensor(variable)
                variable.assign(tf.clip_by_value(x, *self._box))
            return
        moved = [
            tf.convert_to_tensor(variable) - centre
            for variable, centre in zip(weights, self._centre, strict=True)
        ]
        distance = float(tf.linalg.global_norm(moved))
        if distance <= self._ball:  # type: ignore[operator]
            return
        for variable, centre, move in zip(
            weights, self._centre, moved, strict=True
        ):
            variable.assign(centre + move * (self._ball / distance))  # type: ignore[operator]
