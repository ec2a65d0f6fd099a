"""Mechanisms as queries of TensorFlow Privacy.

Importing this module imports `tensorflow_privacy`, and needs it installed:
`import tf_sparse_dp` alone does neither.
"""

from __future__ import annotations

import collections
import importlib
import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any

import dp_accounting
import tensorflow as tf

from tf_sparse_dp.gradients.factors import DenseFactor
from tf_sparse_dp.gradients.precision import check_precision
from tf_sparse_dp.mechanisms.automatic import Automatic
from tf_sparse_dp.mechanisms.frequency_selection import FrequencySelection
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

__all__ = ["MechanismSumQuery", "Variable"]

_SKIP = "skip_tf_privacy_import"


def _import_tf_privacy() -> None:
    """Puts the package `tensorflow_privacy` where submodules are found.

    What its 0.9.0 imports at the top fails on TensorFlow 2.16 and later, where
    there are no estimators. With an attribute of `sys` it leaves that out. The
    attribute is there only while it is imported; a package that somebody
    imported before is taken as it is.
    """
    if "tensorflow_privacy" in sys.modules:
        return
    absent = object()
    before = getattr(sys, _SKIP, absent)
    setattr(sys, _SKIP, True)
    try:
        importlib.import_module("tensorflow_privacy")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_privacy":
            raise
        raise ModuleNotFoundError(
            "tf_sparse_dp.integrations.tf_privacy needs TensorFlow Privacy, "
            'which is not installed: pip install "tensorflow-privacy==0.9.0" '
            "(for Python below 3.12), or together with this package: "
            "pip install tf_sparse_dp[privacy].",
            name=error.name,
        ) from error
    finally:
        if before is absent:
            delattr(sys, _SKIP)
        else:
            setattr(sys, _SKIP, before)


_import_tf_privacy()

from tensorflow_privacy.privacy.dp_query import (  # noqa: E402
    dp_query,
)

# Mechanisms that clip in a way of their own, but only by one factor for each
# record: what they make private is a sum of records that were shrunk.
_SHRINKING = (Automatic, Laplace, Projection)

# TensorFlow Privacy's optimizers ask the state for `_asdict`.
_GlobalState = collections.namedtuple("_GlobalState", [])


class MechanismSumQuery(dp_query.SumAggregationDPQuery):
    r"""A mechanism of ours as a sum query of TensorFlow Privacy.

    $M(\sum_i \mathrm{clip}(x_i))$ over the records $x_i$ of a sample, with
    $M$ = `mechanism` and clip as of that mechanism: to L2 norm `clip_norm` over
    all tensors of a record together, or where noise is Laplace's to L1 norm
    `clip_norm` $\cdot \sqrt q$, see `Laplace`.

    A record is a nested structure of float32 or float64 tensors, of the same
    shapes in all records. `tf.IndexedSlices` are made dense. Sample states and
    results are dense as well, as TensorFlow Privacy adds them: memory and time
    grow with the tables. For large ones there is `DPSparseOptimizer`.

    **Guarantee.** Adding or removing one record moves the sum by at most what
    it is clipped to, up to rounding of the sum. So each call of
    `get_noised_result` is one use of the mechanism, whose event it returns, for
    neighbours that differ by one record's being in the *sample*. How samples
    are drawn, and that a record is one person's, is the caller's to account
    for. A record whose norm is not finite counts as zero. Sizes are not fixed
    beforehand, so that nothing is added to delta. Every call, also of one
    traced operation, draws noise with a key of its own.

    Args:
      mechanism: Such as `tf_sparse_dp.Gaussian()`. Those that need more than
        the sum of clipped records (`PartitionSelection`, `CompressedSensing`)
        are refused, and so are rows that were chosen privately, whose cost no
        event of a sample could tell.
      clip_norm: See above.
      noise_multiplier: Ratio of the noise to the sensitivity; 0 for no noise
        and no privacy, of which the event is `NonPrivateDpEvent`.
      expected_batch_size: Records in a sample, expected; public. The radius of
        `Projection` depends on it. The result is the sum all the same;
        `NormalizedQuery` divides.
      variables: What is public about the tensors of a record, in the order of
        `tf.nest.flatten`. `Variable(shape=..., sparse=True, lookups=...,
        name=...)` says which of them are tables, which is what mechanisms for
        tables need to know. None: none of them is.
      seed: For tests only: makes the noise reproducible, hence not private, of
        which the event is `NonPrivateDpEvent` too.

    Raises:
      TypeError, ValueError: If an argument is not what is described above, or
        a record does not fit.

    Example:
      >>> from tf_sparse_dp.mechanisms import Gaussian
      >>> query = MechanismSumQuery(
      ...     Gaussian(),
      ...     clip_norm=1.0,
      ...     noise_multiplier=2.0,
      ...     expected_batch_size=2,
      ... )
      >>> state = query.initial_global_state()
      >>> params = query.derive_sample_params(state)
      >>> sample = query.initial_sample_state(tf.zeros([3]))
      >>> for record in tf.eye(3):
      ...     sample = query.accumulate_record(params, sample, record)
      >>> result, state, event = query.get_noised_result(sample, state)
      >>> result.shape, event
      (TensorShape([3]), GaussianDpEvent(noise_multiplier=2.0))

    Reference: McMahan, Andrew, Erlingsson, Chien, Mironov, Papernot and
    Kairouz, "A General Approach to Adding Differential Privacy to Iterative
    Training Procedures" (2018).
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        clip_norm: float,
        noise_multiplier: float,
        expected_batch_size: float,
        variables: Sequence[Variable] | None = None,
        seed: int | None = None,
    ):
        _check_mechanism(mechanism)
        self._mechanism = mechanism
        self._clip_norm = _number("clip_norm", clip_norm, least=1e-6)
        self._noise_multiplier = _number("noise_multiplier", noise_multiplier)
        self._expected_batch_size = _number(
            "expected_batch_size", expected_batch_size, least=1e-6
        )
        self._variables = None if variables is None else tuple(variables)
        for variable in self._variables or ():
            if not isinstance(variable, Variable):
                raise TypeError(
                    f"variables has {variable!r}; expected a Variable for "
                    "each tensor of a record."
                )
        _check_tables(mechanism, self._variables or ())
        facts = self._facts(self._variables or ())
        mechanism.resolved(facts).check(facts)
        self._keys = KeyStream(seed)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """What each call of `get_noised_result` costs."""
        if self._noise_multiplier == 0 or self._keys.seeded:
            return dp_accounting.NonPrivateDpEvent()
        return self._mechanism.event(self._noise_multiplier)

    def initial_global_state(self) -> Any:
        return _GlobalState()

    def initial_sample_state(self, template: Any = None) -> Any:
        """Zeros like the template: tensors, specs, or arrays."""
        return tf.nest.map_structure(_zeros, template)

    @tf.autograph.experimental.do_not_convert
    def preprocess_record(self, params: Any, record: Any) -> Any:
        """The record, clipped."""
        del params  # What clipping depends on is the same in all samples.
        check_precision()
        tensors = [_dense(leaf) for leaf in tf.nest.flatten(record)]
        facts = self._facts_of(tensors)
        clipped = self._mechanism.clipped(
            [DenseFactor(tensor[tf.newaxis]) for tensor in tensors],
            tf.zeros([2], tf.int64),  # Shrinking draws nothing.
            facts,
        )
        return tf.nest.pack_sequence_as(record, clipped)

    @tf.autograph.experimental.do_not_convert
    def get_noised_result(
        self, sample_state: Any, global_state: Any
    ) -> tuple[Any, Any, dp_accounting.DpEvent]:
        """The private sum, the state as it was, and the event."""
        tensors = [_dense(leaf) for leaf in tf.nest.flatten(sample_state)]
        facts = self._facts_of(tensors)
        mechanism = self._mechanism.resolved(facts)
        mechanism.check(facts)
        sums = [
            _as_table(tensor) if variable.sparse else tensor
            for tensor, variable in zip(tensors, facts.variables, strict=True)
        ]
        released = mechanism.release(sums, self._keys.next(), facts)
        result = [
            _as_tensor(total, variable.shape)
            for total, variable in zip(released, facts.variables, strict=True)
        ]
        packed = tf.nest.pack_sequence_as(sample_state, result)
        return packed, global_state, self.event

    def _facts_of(self, tensors: Sequence[tf.Tensor]) -> PublicFacts:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if self._variables is None:
            return self._facts(tuple(Variable(shape=s) for s in shapes))
        expected = [variable.shape for variable in self._variables]
        if shapes != expected:
            raise ValueError(
                f"A record or sum has tensors of shapes {shapes}; variables "
                f"has the shapes {expected}. Give one Variable for each "
                "tensor, in the order of tf.nest.flatten(record)."
            )
        return self._facts(self._variables)

    def _facts(self, variables: tuple[Variable, ...]) -> PublicFacts:
        return PublicFacts(
            variables=variables,
            clip_norm=self._clip_norm,
            noise_multiplier=self._noise_multiplier,
            expected_batch_size=self._expected_batch_size,
            failure_probability=0.0,
        )


def _check_mechanism(mechanism: Any) -> None:
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"mechanism is {mechanism!r}; expected a mechanism such as "
            "tf_sparse_dp.Gaussian()."
        )
    shrinks = type(mechanism).clipped is Mechanism.clipped
    if not shrinks and type(mechanism) not in _SHRINKING:
        raise ValueError(
            f"{type(mechanism).__name__} needs more than the sum of clipped "
            "records, such as counts of the rows that each of them reaches, or "
            "sketches in their place; a sum query of TensorFlow Privacy has "
            "the sum alone. Use another mechanism, such as "
            "tf_sparse_dp.Threshold(), or DPSparseOptimizer."
        )
    if any(mechanism.spent_before):
        raise ValueError(
            f"{type(mechanism).__name__} was made privately from data, for "
            f"(epsilon, delta) = {mechanism.spent_before}, which the event of "
            "a sample cannot tell; expected one that was made from public "
            "facts. Use DPSparseOptimizer, whose statement adds it."
        )


def _check_tables(mechanism: Mechanism, variables: Sequence[Variable]) -> None:
    """Refuses what would be `Gaussian` by another name."""
    for_tables = isinstance(
        mechanism, (FrequencySelection, Projection, Threshold)
    )
    if for_tables and not any(variable.sparse for variable in variables):
        raise ValueError(
            f"{type(mechanism).__name__} is for tables, but variables says of "
            "no tensor of a record that it is one. Pass variables=[Variable("
            "shape=(rows, width), sparse=True, lookups=..., name=...), ...], "
            "one for each tensor in the order of tf.nest.flatten(record), or "
            "use tf_sparse_dp.Gaussian() or Laplace()."
        )


def _number(name: str, value: Any, least: float = 0.0) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not least <= value < math.inf:
        raise ValueError(
            f"{name}={value!r} was given; expected a finite Python number of "
            f"at least {least:g}: what the event says must be the same in all "
            "samples."
        )
    return float(value)


def _zeros(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.TensorSpec):
        _check(leaf.shape, leaf.dtype)
        return tf.zeros(leaf.shape, leaf.dtype)
    return tf.zeros_like(_dense(leaf))


def _dense(leaf: Any) -> tf.Tensor:
    """A tensor that may be clipped and added up."""
    if leaf is None or isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"A record or sum has a {type(leaf).__name__}; expected dense "
            "tensors or tf.IndexedSlices. Make it dense first, as with "
            "tf.sparse.to_dense, or with zeros where there is no gradient."
        )
    tensor = tf.convert_to_tensor(leaf)
    _check(tensor.shape, tensor.dtype)
    return tensor


def _check(shape: tf.TensorShape, dtype: tf.DType) -> None:
    if dtype not in (tf.float32, tf.float64):
        raise TypeError(
            f"A record or sum has a tensor of type {dtype.name}; expected "
            "float32 or float64: sums of anything shorter are rounded by more "
            "than one record may change them. Cast records first."
        )
    if not shape.is_fully_defined():
        raise ValueError(
            f"A record or sum has a tensor of shape {shape}; expected a shape "
            "that is known while tracing. Pass records of a fixed shape, or "
            "say which it is with tf.ensure_shape."
        )


def _as_table(tensor: tf.Tensor) -> tf.IndexedSlices:
    """The same sum as mechanisms for tables take it: all rows are touched."""
    return tf.IndexedSlices(
        tensor,
        tf.range(tensor.shape[0], dtype=tf.int64),
        tf.constant(tensor.shape.as_list(), tf.int64),
    )


def _as_tensor(total: Sum, shape: tuple[int, ...]) -> tf.Tensor:
    if isinstance(total, tf.IndexedSlices):
        # Rows of zeros that repeat add nothing.
        total = tf.scatter_nd(
            total.indices[:, tf.newaxis],
            total.values,
            tf.constant(shape, total.indices.dtype),
        )
    return tf.ensure_shape(total, shape)
