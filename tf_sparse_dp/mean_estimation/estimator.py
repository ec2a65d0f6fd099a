"""A private mean: which mechanism, how much noise, and the release."""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from tf_sparse_dp.accounting.calibration import shown
from tf_sparse_dp.accounting.single_release import (
    gaussian_noise_multiplier,
    laplace_noise_multiplier,
)
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.gradients.precision import check_precision
from tf_sparse_dp.mean_estimation.vectors import (
    SparseVectors,
    TableRows,
    Vectors,
    opened,
)
from tf_sparse_dp.mechanisms.compressed_sensing import CompressedSensing
from tf_sparse_dp.mechanisms.events import check_event
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import (
    Mechanism,
    PublicFacts,
    Sum,
    Variable,
)
from tf_sparse_dp.mechanisms.laplace import Laplace
from tf_sparse_dp.mechanisms.projection import Projection
from tf_sparse_dp.mechanisms.threshold import Threshold
from tf_sparse_dp.random_keys import KeyStream

NEIGHBOURS = {
    "replace_one": (2, "one vector is replaced by any other"),
    "zero_out": (1, "one vector is what it is or zero"),
}
Neighbours: TypeAlias = Literal["replace_one", "zero_out"]

# Below this float32 loses norms.
_SMALLEST_CLIP_NORM = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateMean:
    """A mean that may be published, with what is guaranteed.

    Attributes:
      value: The mean: a tensor, or `tf.IndexedSlices` of the rows (of a vector:
        entries) that are not zero, in the order of their ids.
      epsilon: The guarantee's epsilon.
      delta: The guarantee's delta; 0 is pure differential privacy.
      neighbours: "replace_one" or "zero_out".
      mechanism: What released the mean.
      noise_multiplier: Noise over `sensitivity`: standard deviation for
        Gaussian noise, scale for Laplace noise. So a mechanism with noise on
        every entry has noise of noise_multiplier * sensitivity on the mean.
      sensitivity: How far two neighbours' means can be apart before noise, in
        L2 norm for Gaussian noise and in L1 norm for Laplace noise.
      num_vectors: How many vectors there are; public.
      seeded: Whether a seed was given; then nothing is private.
    """

    value: Sum
    epsilon: float
    delta: float
    neighbours: Neighbours
    mechanism: Mechanism
    noise_multiplier: float
    sensitivity: float
    num_vectors: int
    seeded: bool

    @property
    def description(self) -> str:
        """The guarantee in plain words."""
        norm = "L1" if self.mechanism.noise_family == "laplace" else "L2"
        kind = f", delta = {shown(self.delta)}"
        if self.delta == 0:
            kind = ", pure in exact arithmetic"
        text = (
            f"Mean of {self.num_vectors} vectors, differentially private: "
            f"epsilon = {shown(self.epsilon)}{kind}; neighbours: "
            f"{NEIGHBOURS[self.neighbours][1]}. {self.mechanism.description}; "
            f"{norm} sensitivity {self.sensitivity:g}, noise multiplier "
            f"{self.noise_multiplier:g}."
        )
        if self.seeded:
            text = f"NOT PRIVATE, the seed is fixed. Were it not: {text}"
        return text


def private_mean(
    vectors: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    clip_norm: float,
    sparsity: int | None = None,
    mechanism: Mechanism | str = "auto",
    neighbours: Neighbours = "replace_one",
    seed: int | None = None,
) -> PrivateMean:
    r"""The mean of clipped vectors, differentially private, in one release.

    $\hat z = \frac1n M(\sum_i \mathrm{clip}_C(x_i))$ with $x_i$ = `vectors`,
    $C$ = `clip_norm`, $n$ the number of vectors and $M$ = `mechanism`.

    **Guarantee.** The result is ($\epsilon$, $\delta$)-differentially private
    where neighbours differ by one vector; $n$ is public and the same for both.
    Replacing a vector moves the sum by up to $2C$, twice as far as zeroing one
    does, and takes twice the noise. Gaussian noise is no more than needed at
    all: its $\delta$ is the exact one. Laplace noise at $\delta = 0$ is pure in
    exact arithmetic; in float32 it ends at 45 scales, which noise should exceed
    with probability $2^{-65}$. Sizes are not fixed beforehand, so nothing is
    added to $\delta$. A vector that is not finite or has an id out of range
    counts as zero, and is charged like any other. Each call spends a budget of
    its own.

    With `mechanism="auto"` the choice depends on shapes and arguments only:

    - sparsity known (`sparsity`, or the lookups of `tf.IndexedSlices`):
      `Projection`, by rows for `tf.IndexedSlices`, by coordinates for vectors
      and for $\delta = 0$, then with Laplace noise;
    - otherwise `Threshold` for `tf.SparseTensor`, `Gaussian` for dense vectors,
      and for $\delta = 0$ `Laplace`.

    Args:
      vectors: [n, d], dense or a `tf.SparseTensor`; or `tf.IndexedSlices` with
        indices [n, s], values [n, s, k] and dense_shape [rows, k]: n tables, of
        each of which s rows are not zero (rows that repeat are added).
      epsilon: Above 0.
      delta: In [0, 1), well below 1/n.
      clip_norm: $C$. An L2 norm; for Laplace noise vectors are clipped to L1
        norm $C \sqrt s$ instead, which vectors of L2 norm $C$ with s entries
        that are not zero do not exceed.
      sparsity: How many entries of a vector (of `tf.IndexedSlices`: rows) are
        not zero at most. Public. If it is wrong, accuracy suffers and privacy
        does not.
      mechanism: "auto", or a mechanism. Those other than `Gaussian` and
        `Laplace` see vectors as a table with rows of width 1.
      neighbours: "replace_one", or "zero_out": a vector is what it is or zero.
        How many there are is public either way: the sum is divided by it.
      seed: For tests only: makes the noise reproducible, hence not private.

    Returns:
      The mean, and what is guaranteed.

    Raises:
      TypeError: An argument is of the wrong kind.
      ValueError: An argument is out of range, delta is 0 and the mechanism
        needs more, or products are rounded too much (TensorFloat-32).

    Warns:
      PrivacyWarning: delta is at least 1/n.

    Example:
      >>> import tensorflow as tf
      >>> vectors = tf.eye(3, 1000)
      >>> mean = private_mean(
      ...     vectors, epsilon=1.0, delta=1e-6, clip_norm=1.0, sparsity=1
      ... )
      >>> mean.value.shape, mean.noise_multiplier
      (TensorShape([1000]), 4.22468)

    Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
    Private Optimization with Sparse Gradients" (2024), section 3.
    """
    if not tf.executing_eagerly():
        raise ValueError(
            "private_mean was called while a function is traced; expected an "
            "eager call. Call it outside of tf.function."
        )
    check_precision()
    epsilon = _number("epsilon", epsilon, "above 0", lambda x: x > 0)
    delta = _number(
        "delta", delta, "of at least 0 and below 1", lambda x: 0 <= x < 1
    )
    clip_norm = _number(
        "clip_norm",
        clip_norm,
        f"of at least {_SMALLEST_CLIP_NORM:g}",
        lambda x: x >= _SMALLEST_CLIP_NORM,
    )
    if neighbours not in NEIGHBOURS:
        raise ValueError(
            f"neighbours={neighbours!r} was given; expected one of "
            f"{tuple(NEIGHBOURS)}. Say what is protected."
        )
    data = opened(vectors)
    sparsity = _known_sparsity(sparsity, data)
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, numbers.Integral)
    ):
        raise TypeError(
            f"seed={seed!r} was given; expected None or an integer."
        )
    if delta * data.count >= 1:
        warnings.warn(
            f"delta={delta:g} was given for {data.count} vectors; expected "
            f"well below {1 / data.count:.3g}: with this delta, publishing one "
            "random vector in the clear would count as private. Lower delta.",
            PrivacyWarning,
            stacklevel=2,
        )
    chosen = _chosen(mechanism, data, sparsity, delta)
    _check_sparsity_known(chosen, sparsity)
    factor = data.factor(as_table=not isinstance(chosen, (Gaussian, Laplace)))
    times, _ = NEIGHBOURS[neighbours]
    multiplier = _noise_multiplier(chosen, epsilon, delta)
    facts = PublicFacts(
        variables=(
            Variable(
                shape=factor.shape,
                sparse=getattr(factor, "sparse", False),
                lookups=sparsity,
                name="vectors",
            ),
        ),
        clip_norm=clip_norm,
        noise_multiplier=times * multiplier,
        expected_batch_size=float(data.count),
        failure_probability=0.0,
    )
    chosen = chosen.resolved(facts)
    chosen.check(facts)
    keys = KeyStream(seed)
    key = keys.next()
    sums = chosen.clipped([factor], key, facts, valid=data.valid)
    (private,) = chosen.release(sums, key, facts)
    before = chosen.spent_before
    if neighbours == "replace_one":
        before = _of_two_steps(*before)
    bound = clip_norm
    if isinstance(chosen, (Laplace, Projection)) and _is_laplace(chosen):
        bound = chosen.l1_sensitivity(facts)
    return PrivateMean(
        value=data.mean(private),
        epsilon=epsilon + before[0],
        delta=delta + before[1],
        neighbours=neighbours,
        mechanism=chosen,
        noise_multiplier=multiplier,
        sensitivity=times * bound / data.count,
        num_vectors=data.count,
        seeded=keys.seeded,
    )


def _chosen(
    mechanism: Mechanism | str,
    data: Vectors,
    sparsity: int | None,
    delta: float,
) -> Mechanism:
    """The mechanism that was asked for, or the best guess from public facts."""
    if isinstance(mechanism, Mechanism):
        return mechanism
    if mechanism != "auto":
        raise ValueError(
            f"mechanism={mechanism!r} was given; expected 'auto' or a "
            "mechanism such as tf_sparse_dp.Projection()."
        )
    if delta == 0:
        if sparsity is None:
            return Laplace()
        return Projection(geometry="coordinates", noise="laplace")
    if sparsity is not None:
        by_rows = isinstance(data, TableRows)
        return Projection(geometry="rows" if by_rows else "coordinates")
    return Threshold() if isinstance(data, SparseVectors) else Gaussian()


def _noise_multiplier(
    mechanism: Mechanism, epsilon: float, delta: float
) -> float:
    """Noise over sensitivity that one release needs."""
    check_event(mechanism)
    if _is_laplace(mechanism):
        return laplace_noise_multiplier(epsilon, delta)
    if delta == 0:
        raise ValueError(
            f"delta=0 was given, but {mechanism!r} has Gaussian noise, which "
            "is never private at delta = 0. Give a delta well below one over "
            "the number of vectors, or for pure differential privacy leave out "
            "mechanism, or pass Projection(geometry='coordinates', "
            "noise='laplace') or Laplace()."
        )
    return gaussian_noise_multiplier(epsilon, delta)


def _of_two_steps(epsilon: float, delta: float) -> tuple[float, float]:
    """What is spent for neighbours of neighbours (group privacy).

    Replacing is removing one and adding another.
    """
    return 2 * epsilon, (1 + math.exp(epsilon)) * delta


def _is_laplace(mechanism: Mechanism) -> bool:
    return mechanism.noise_family == "laplace"


def _known_sparsity(given: object, data: Vectors) -> int | None:
    """Most rows of a vector that are not zero, as given or as the form says."""
    if given is None:
        return data.lookups
    message = (
        f"sparsity={given!r} was given; expected a whole number from 1 to "
        f"{data.rows}: how many of {data.rows} entries (of tf.IndexedSlices: "
        "rows) of one vector are not zero at most. Leave it out if it is not "
        "known."
    )
    if isinstance(given, bool) or not isinstance(given, numbers.Integral):
        raise TypeError(message)
    sparsity = int(given)
    if not 1 <= sparsity <= data.rows:
        raise ValueError(message)
    return min(sparsity, data.lookups or sparsity)


def _check_sparsity_known(mechanism: Mechanism, sparsity: int | None) -> None:
    """Refuses mechanisms that take their radius or size from the sparsity."""
    if sparsity is not None or not isinstance(
        mechanism, (Projection, CompressedSensing)
    ):
        return
    if isinstance(mechanism, Projection) and mechanism.lookups is not None:
        return
    other = "Laplace()" if _is_laplace(mechanism) else "Threshold()"
    raise ValueError(
        f"mechanism={mechanism!r} was given without sparsity; expected to know "
        "how many entries of a vector are not zero at most. Pass sparsity=..., "
        "a public number (a wrong one costs accuracy only), or "
        f"mechanism={other}, which need not know."
    )


def _number(
    name: str, value: object, expected: str, good: Callable[[float], bool]
) -> float:
    message = (
        f"{name}={value!r} was given; expected a finite number {expected}."
    )
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    number = float(value)
    if not math.isfinite(number) or not good(number):
        raise ValueError(message)
    return number
