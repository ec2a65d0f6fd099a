"""The library's algorithms on the worst data: one error for n, d and s each.

Every function takes a setting, the number of trials and a seed for the data.
Noise comes from the operating system and is never the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from paper_data import (
    EPSILON,
    Data,
    Outcome,
    Setting,
    block_data,
    spread_data,
    spreads,
    worst,
)
from scipy import sparse

import tf_sparse_dp as tsdp
from tf_sparse_dp import convex


def mean(
    setting: Setting,
    trials: int,
    seed: int,
    *,
    delta: float,
    mechanism: tsdp.mechanisms.Mechanism | str = "auto",
) -> Outcome:
    """L2 error of `private_mean`."""
    # Compressed sensing wants to know how many entries a vector has.
    vectors = _tensor
    if isinstance(mechanism, tsdp.CompressedSensing):
        vectors = functools.partial(_slices, s=setting.s)

    def run(data: Data) -> float:
        found = tsdp.private_mean(
            vectors(data.rows),
            epsilon=EPSILON,
            delta=delta,
            clip_norm=1.0,
            sparsity=setting.s,
            mechanism=mechanism,
        ).value
        if isinstance(found, tf.IndexedSlices):
            ids, values = found.indices.numpy(), found.values.numpy().ravel()
        else:
            ids, values = np.arange(setting.d), found.numpy().ravel()
        columns, exact = data.mean
        _, places = np.unique(
            np.concatenate([ids, columns]), return_inverse=True
        )
        values = np.concatenate([values.astype(np.float64), -exact])
        return float(np.linalg.norm(np.bincount(places, values)))

    # Many dear runs, whose errors hardly differ: one is enough to choose.
    return worst(_data_sets(setting, delta, seed, run, 4), trials, pilots=1)


def output_perturbation(
    setting: Setting,
    trials: int,
    seed: int,
    *,
    delta: float,
    objective: convex.sensitivity.Objective,
    regularization: str = "theorem",
) -> Outcome:
    """Excess risk of `OutputPerturbation`, empirical or of the population.

    With a delta: hinge losses on the unit ball, where they are linear. Pure: a
    Huber loss without constraints, with labels for which the nearest minimiser
    has norm 1; its gradients and their Lipschitz constant are at most 1.
    """
    fit = convex.OutputPerturbation(
        loss="huber" if delta == 0 else "hinge",
        epsilon=EPSILON,
        delta=delta,
        sparsity=setting.s,
        domain=convex.Unconstrained() if delta == 0 else convex.Ball(1.0),
        distance=1.0,
        regularization=regularization,
        objective=objective,
    )

    def run(data: Data) -> float:
        if delta > 0:
            labels = np.ones(setting.n)
            weights = fit.release(data.rows, labels).weights
            columns, values = data.mean
            return float(np.linalg.norm(values) - weights[columns] @ values)
        size = 1 / math.sqrt(data.distinct)
        labels = size * (np.diff(data.rows.indptr) > 0)
        weights = fit.release(data.rows, labels).weights
        wanted = size * (np.diff(data.population.indptr) > 0)
        # The least risk is 0: the rows are orthogonal.
        return _huber(data.population @ weights - wanted)

    if objective == "erm":
        return worst(_data_sets(setting, delta, seed, run, 2), trials)

    def sampled(m: int, trial: int) -> float:
        random = np.random.default_rng([seed, m, trial])
        return run(spread_data(setting, m, random))

    return worst(
        {
            f"spread {m}": functools.partial(sampled, m)
            for m in spreads(setting, 2)
        },
        trials,
    )


def exponential(setting: Setting, trials: int, seed: int) -> Outcome:
    """Excess risk of the exponential mechanism for linear losses.

    Its law can be written down for such tiny problems, so that this is the
    exact expectation and no trials are needed.
    """
    del trials, seed
    mechanism = convex.SparseExponentialMechanism(
        epsilon=EPSILON, loss_range=2.0, lipschitz=1.0, sparsity=setting.s
    )
    points = mechanism.net(setting.n, setting.d)

    def excess(m: int) -> float:
        data = spread_data(setting, m)
        steps = mechanism.steps(
            lambda x, row: -(x @ row), list(data.rows.toarray()), points
        )
        columns, values = data.mean
        risks = np.linalg.norm(values) - points[:, columns] @ values
        return float(np.exp(mechanism.log_probabilities(steps)) @ risks)

    errors = {f"spread {m}": excess(m) for m in spreads(setting, 2)}
    name = max(errors, key=lambda key: errors[key])
    return Outcome(error=errors[name], standard_error=0.0, worst=name)


def _data_sets(
    setting: Setting,
    delta: float,
    seed: int,
    run: Callable[[Data], float],
    factor: int,
) -> dict[str, Callable[[int], float]]:
    """Spreads, and the data of the lower bound where there are any."""

    def spread(m: int, _: int) -> float:
        return run(spread_data(setting, m))

    def block(_: int) -> float:
        return run(block_data(setting, delta, seed)[0])

    found = {
        f"spread {m}": functools.partial(spread, m)
        for m in spreads(setting, factor)
    }
    return found | {"lower bound's": block}


def _tensor(rows: sparse.csr_matrix) -> tf.SparseTensor:
    owners = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    indices = np.stack([owners, rows.indices.astype(np.int64)], axis=1)
    return tf.SparseTensor(indices, rows.data.astype(np.float32), rows.shape)


def _slices(rows: sparse.csr_matrix, s: int) -> tf.IndexedSlices:
    """As rows of a table of width 1; vectors with no entry have zeros."""
    n, d = rows.shape
    ids, values = np.zeros([n, s], np.int32), np.zeros([n, s], np.float32)
    full = np.diff(rows.indptr) == s
    ids[full] = rows.indices.reshape(-1, s)
    values[full] = rows.data.reshape(-1, s)
    return tf.IndexedSlices(
        tf.constant(values[..., np.newaxis]),
        tf.constant(ids),
        tf.constant([d, 1], tf.int64),
    )


def _huber(residuals: np.ndarray) -> float:
    size = np.abs(residuals)
    near = np.minimum(size, 1.0)
    return float(np.mean(near * near / 2 + (size - near)))
