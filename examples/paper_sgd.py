"""Bias-reduced SGD on the paper's terms: the error that runs end with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from paper_data import DELTA, EPSILON, Outcome, Setting, spreads

import tf_sparse_dp as tsdp

# A run ends when its budget does; on average after some times as many steps
# as the noise was chosen for, and hardly ever after this many times as many.
_LONGEST = 20


def step_size(setting: Setting, steps: int) -> float:
    r"""The theorems' $\sqrt{Γ/(μTν^2)} = D/(ν\sqrt T)$, without constants."""
    inside = setting.s * math.log(setting.d / setting.s) * math.log(1 / DELTA)
    moment = math.log(setting.n) * math.sqrt(inside) / EPSILON
    return 1 / math.sqrt(steps * moment)


def gradient_norm(setting: Setting, m: int, accounting: str = "tight") -> float:
    """Of the empirical risk, root mean square over all iterates of one run.

    f(x, z) = 1 - cos(<x, z> - pi/2), neither convex nor flat far away; L and
    the smoothness are 1, and f is 1 at the start x = 0 and 0 at best. The
    algorithm returns an iterate at random (`RandomIterate`); this is the
    expectation over that choice, of the square.
    """
    norms = _GradientNorms(setting, m)
    budget = _budget(setting, accounting)
    _train(setting, m, budget, lambda u: 1 - tf.cos(u - math.pi / 2), [norms])
    return math.sqrt(np.mean(norms.squares))


def excess_risk(setting: Setting, m: int) -> float:
    """Of linear losses -<x, z> on the unit ball, at the mean iterate."""
    callbacks = [tsdp.AverageIterate(), tsdp.ProjectedIterate(ball=1.0)]
    budget = _budget(setting, "tight")
    weights = _train(setting, m, budget, lambda u: -u, callbacks)
    # The mean of the data has m entries of sqrt(s)/m.
    best = math.sqrt(setting.s / m)
    return best - math.sqrt(setting.s) / m * float(weights[:m].sum())


def worst_error(
    run: Callable[[Setting, int], float],
    setting: Setting,
    trials: int,
    per_norm: float,
) -> Outcome:
    """The largest mean error over spreads m = s, 4s, 16s, ...

    Runs are dear, so a spread is tried only if it can be worse: errors are
    at most `per_norm` times sqrt(s/m), the norm of the data's mean.
    """
    found = Outcome(error=0.0, standard_error=0.0, worst="none")
    for m in spreads(setting, 4):
        if per_norm * math.sqrt(setting.s / m) <= found.error:
            break
        errors = np.array([run(setting, m) for _ in range(trials)])
        if errors.mean() > found.error:
            found = Outcome.of(errors, f"spread {m}")
    return found


def noise_ratio(setting: Setting) -> float:
    """How many times the tight account's noise the paper's account needs."""
    noise = [
        _budget(setting, accounting).noise_multiplier
        for accounting in ("paper", "tight")
    ]
    return noise[0] / noise[1]


def _budget(setting: Setting, accounting: str) -> tsdp.BiasReducedBudget:
    return tsdp.BiasReducedBudget(
        num_examples=setting.n,
        epsilon=EPSILON,
        delta=DELTA,
        accounting=accounting,
    )


def _train(
    setting: Setting,
    m: int,
    budget: tsdp.BiasReducedBudget,
    loss: Callable[[tf.Tensor], tf.Tensor],
    callbacks: list,
) -> np.ndarray:
    """The weights after a run on vectors that are spread over m coordinates."""
    steps = math.ceil(setting.n / math.log(4 / DELTA))
    sampling = tsdp.BiasReducedSampling(
        num_examples=setting.n, steps=_LONGEST * steps
    )
    table = tf.keras.layers.Embedding(
        setting.d, 1, embeddings_initializer="zeros"
    )
    model = tf.keras.Sequential(
        [tf.keras.Input([setting.s], dtype="int32"), table]
    )
    optimizer = tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(step_size(setting, steps)),
        budget.filter,
        sampling=sampling,
        clip_norm=1.0,
        noise_multiplier=budget.noise_multiplier,
        mechanism=tsdp.BiasReduction(tsdp.Projection(geometry="coordinates")),
    )

    def of_example(_, entries):
        margins = tf.reduce_sum(entries, axis=[1, 2])
        return loss(margins / math.sqrt(setting.s))

    model.compile(optimizer, loss=of_example)
    columns = np.arange(setting.n * setting.s, dtype=np.int32) % m
    data = (columns.reshape(setting.n, setting.s), np.zeros(setting.n))
    model.fit(
        sampling.dataset(data),
        callbacks=[*callbacks, tsdp.PrivacyBudget()],
        shuffle=False,
        verbose=0,
    )
    return model.get_weights()[0][:, 0]


class _GradientNorms(tf.keras.callbacks.Callback):
    """Squared norms of the gradient at the iterates that steps start from."""

    def __init__(self, setting: Setting, m: int):
        super().__init__()
        self._shape = m // setting.s, setting.s
        self.squares: list[float] = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        del batch, logs
        kinds, s = self._shape
        table = tf.convert_to_tensor(self.model.trainable_variables[0])
        entries = table[: kinds * s, 0].numpy().reshape(self._shape)
        margins = entries.sum(axis=1, dtype=np.float64) / math.sqrt(s)
        # Rows are orthogonal, of norm 1, and equally frequent.
        slopes = np.sin(margins - math.pi / 2) / kinds
        self.squares.append(float(np.square(slopes).sum()))
