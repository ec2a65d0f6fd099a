"""Solvers that recover a table with few rows from its noisy sketch.

All are post-processing of the noisy sketch: what they return, and how well,
costs accuracy at worst and never privacy. For tables [rows, k] sparsity is that
of rows: the norm that they keep small is Σ_r |x_r|, the 1-norm if k = 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from scipy import special

from tf_sparse_dp.mechanisms.measurements import Measurement

# Thresholds that message passing chooses from.
_CHOICES = 12
# Message passing is stable only while fewer numbers than this part of the
# measurements are estimated.
_MOST_ESTIMATED = 0.6


def recover(
    solver: str,
    measurement: Measurement,
    sketch: tf.Tensor,
    *,
    stddev: float | None = None,
    iterations: int | None = None,
) -> tf.Tensor:
    """The table whose sketch was measured with noise.

    Args:
      solver: One of `SOLVERS`.
      measurement: The matrix of the sketch.
      sketch: [m, k].
      stddev: Standard deviation of its noise; needed by "lasso".
      iterations: At most so many; None for the solver's own number.

    Returns:
      A float32 tensor [rows, k]; zeros if the sketch is not finite.
    """
    solve, usual = SOLVERS[solver]
    sketch = tf.cast(sketch, tf.float32)
    # Solvers work with numbers of ordinary size.
    largest = tf.reduce_max(tf.abs(sketch))
    usable = tf.math.is_finite(largest) & (largest > 0)
    unit = tf.where(usable, largest, 1.0)
    sketch = tf.where(usable, sketch / unit, tf.zeros_like(sketch))
    noise = None if stddev is None else stddev / unit
    found = solve(measurement.held(), sketch, noise, iterations or usual)
    found *= unit
    return tf.where(tf.reduce_all(tf.math.is_finite(found)), found, 0.0)


def message_passing(
    measurement: Measurement,
    sketch: tf.Tensor,
    noise: tf.Tensor | None,
    iterations: int,
) -> tf.Tensor:
    r"""Approximate message passing with thresholds by Stein's estimate.

    With residual $r$ and $s^2 = |r|^2 / (mk)$, the rows of $v = x + A'r$ are
    those of the table plus noise of about $N(0, s^2 I)$. Their soft threshold
    at the $\tau$ of least estimated risk is the next $x$, and $r = b - Ax +
    rJ/m$ with $J$ the sum of the rows' Jacobians, which keeps the noise of the
    next $v$ uncorrelated. Of all iterates, that with the least residual is
    returned: iterates that diverge are not. The noise need not be known.

    Reference: Donoho, Maleki and Montanari, "Message-passing algorithms for
    compressed sensing", 2009; Mousavi, Maleki and Baraniuk, "Parameterless
    optimal approximate message passing", 2013.
    """
    rows, width = measurement.rows, sketch.shape[1]
    count = measurement.count
    tails = np.geomspace(0.3, min(0.2, 0.5 / rows), _CHOICES)
    multiples = np.sqrt(2 * special.gammainccinv(width / 2, tails))
    multiples = multiples.astype(np.float32)
    is_last = np.arange(_CHOICES) == _CHOICES - 1

    def step(
        done: tf.Tensor,
        change: tf.Tensor,
        table: tf.Tensor,
        residual: tf.Tensor,
        best: tf.Tensor,
        least: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        noise = tf.norm(residual) / np.sqrt(count * width)
        noisy = table + measurement.adjoint(residual)[:rows]
        norms = tf.norm(noisy, axis=1)
        thresholds = noise * multiples
        risks, freedoms = tf.map_fn(
            lambda threshold: _estimated_risk(norms, noise, threshold, width),
            thresholds,
            fn_output_signature=(tf.float32, tf.float32),
        )
        allowed = (freedoms <= _MOST_ESTIMATED * count * width) | is_last
        chosen = tf.argmin(tf.where(allowed, risks, np.inf))
        threshold = tf.gather(thresholds, chosen)
        shrunk = soft_threshold(noisy, threshold, norms)
        jacobian = _summed_jacobian(noisy, threshold, norms)
        residual = (
            sketch
            - measurement.measure(_filled(shrunk, measurement))
            + tf.matmul(residual, jacobian) / count
        )
        change = tf.norm(shrunk - table) / (tf.norm(shrunk) + 1e-12)
        size = tf.norm(residual)
        better = size < least  # False if it is not a number.
        return (
            done + 1,
            change,
            shrunk,
            residual,
            tf.where(better, shrunk, best),
            tf.where(better, size, least),
        )

    nothing = tf.zeros([rows, width])
    return tf.while_loop(
        lambda done, change, *_: (done < iterations) & (change > 1e-4),
        step,
        (
            tf.constant(0),
            tf.constant(np.inf, tf.float32),
            nothing,
            sketch,
            nothing,
            tf.constant(np.inf, tf.float32),
        ),
    )[4]


def lasso(
    measurement: Measurement,
    sketch: tf.Tensor,
    noise: tf.Tensor | None,
    iterations: int,
) -> tf.Tensor:
    r"""Minimises $\frac12 |Ax - b|^2 + \lambda \sum_r |x_r|$ by FISTA.

    $\lambda$ is what noise alone exceeds in $m/10$ rows. It comes down from
    where the solution is zero in the first half of the iterations; momentum
    starts anew whenever it points uphill.

    Reference: Beck and Teboulle, "A fast iterative shrinkage-thresholding
    algorithm", 2009; O'Donoghue and Candès, "Adaptive restart", 2015.
    """
    if noise is None:
        raise ValueError(
            "The lasso weighs the 1-norm by the noise; give its stddev, or "
            "use the solver 'amp'."
        )
    rows, width = measurement.rows, sketch.shape[1]
    tail = min(0.2, 0.1 * measurement.count / rows)
    last = noise * np.float32(
        np.sqrt(2 * special.gammainccinv(width / 2, tail))
    )
    step_size = np.float32(1 / measurement.squared_norm)
    first = tf.reduce_max(tf.norm(measurement.adjoint(sketch)[:rows], axis=1))

    def step(
        done: tf.Tensor, table: tf.Tensor, ahead: tf.Tensor, pace: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        part = tf.cast(done, tf.float32) / (iterations / 2)
        weight = tf.maximum(
            last,
            tf.exp((1 - part) * tf.math.log(first) + part * tf.math.log(last)),
        )
        residual = sketch - measurement.measure(_filled(ahead, measurement))
        moved = ahead + step_size * measurement.adjoint(residual)[:rows]
        found = soft_threshold(moved, step_size * weight)
        uphill = tf.reduce_sum((ahead - found) * (found - table)) > 0
        pace = tf.where(uphill, 1.0, pace)
        faster = (1 + tf.sqrt(1 + 4 * pace * pace)) / 2
        ahead = found + tf.where(uphill, 0.0, (pace - 1) / faster) * (
            found - table
        )
        return done + 1, found, ahead, faster

    nothing = tf.zeros([rows, width])
    return tf.while_loop(
        lambda done, *_: done < iterations,
        step,
        (tf.constant(0), nothing, nothing, tf.constant(1.0)),
    )[1]


def basis_pursuit(
    measurement: Measurement,
    sketch: tf.Tensor,
    noise: tf.Tensor | None,
    iterations: int,
) -> tf.Tensor:
    r"""Minimises $\sum_r |x_r|$ subject to $Ax = b$, by alternating directions.

    Reference: Ghazi et al., "Differentially Private Optimization with Sparse
    Gradients", algorithm 2; Boyd et al., "Distributed Optimization and
    Statistical Learning via ADMM", 2011, section 6.2.
    """
    rows = measurement.rows
    inverse = measurement.inverse()

    def projected(table: tf.Tensor) -> tf.Tensor:
        missing = sketch - measurement.measure(table)
        return table + measurement.adjoint(inverse(missing))

    start = projected(tf.zeros([measurement.domain, sketch.shape[1]]))
    threshold = tf.reduce_max(tf.norm(start, axis=1))

    def step(
        done: tf.Tensor, _: tf.Tensor, sparse: tf.Tensor, dual: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        feasible = projected(sparse - dual)
        # Over-relaxed, which is faster.
        ahead = 1.6 * feasible - 0.6 * sparse
        # Beyond the table's rows there is nothing but zeros.
        sparse = _filled(
            soft_threshold((ahead + dual)[:rows], threshold), measurement
        )
        return done + 1, feasible, sparse, dual + ahead - sparse

    nothing = tf.zeros_like(start)
    return tf.while_loop(
        lambda done, *_: done < iterations,
        step,
        (tf.constant(0), start, nothing, nothing),
    )[1][:rows]


# Solvers by name, and how many iterations each takes unless told.
SOLVERS: dict[str, tuple[Callable[..., tf.Tensor], int]] = {
    "amp": (message_passing, 30),
    "lasso": (lasso, 300),
    "basis_pursuit": (basis_pursuit, 300),
}


def soft_threshold(
    table: tf.Tensor, threshold: tf.Tensor, norms: tf.Tensor | None = None
) -> tf.Tensor:
    """Every row brought closer to zero by `threshold`, or all the way."""
    norms = tf.norm(table, axis=1) if norms is None else norms
    kept = tf.maximum(1 - tf.math.divide_no_nan(threshold, norms), 0.0)
    return table * tf.where(norms > threshold, kept, 0.0)[:, tf.newaxis]


def _estimated_risk(
    norms: tf.Tensor, noise: tf.Tensor, threshold: tf.Tensor, width: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Stein's estimate of the squared error, and the degrees of freedom."""
    above = norms > threshold
    share = tf.where(above, tf.math.divide_no_nan(threshold, norms), 0.0)
    freedom = tf.where(above, width - (width - 1) * share, 0.0)
    squares = tf.square(tf.minimum(norms, threshold))
    degrees = tf.reduce_sum(freedom)
    # Σ over rows of their excess over pure noise: sums of small numbers.
    excess = tf.reduce_sum(squares - width * tf.square(noise))
    return excess + 2 * tf.square(noise) * degrees, degrees


def _summed_jacobian(
    table: tf.Tensor, threshold: tf.Tensor, norms: tf.Tensor
) -> tf.Tensor:
    """Σ_r of the derivative of row r's soft threshold, [k, k]."""
    above = norms > threshold
    share = tf.where(above, tf.math.divide_no_nan(threshold, norms), 0.0)
    kept = tf.reduce_sum(tf.where(above, 1 - share, 0.0))
    directions = tf.math.divide_no_nan(table, norms[:, tf.newaxis])
    along = tf.matmul(
        directions, directions * share[:, tf.newaxis], transpose_a=True
    )
    return along + kept * tf.eye(table.shape[1])


def _filled(table: tf.Tensor, measurement: Measurement) -> tf.Tensor:
    """The table, filled up with zeros to what is measured."""
    missing = measurement.domain - measurement.rows
    return tf.pad(table, [[0, missing], [0, 0]]) if missing else table
