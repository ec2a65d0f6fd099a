"""One gradient as a sum over examples, without materialising the terms.

A factor holds what is needed to speak of every example's term at once: their
norms, and their sum under one weight per example. The terms of a Dense kernel
stay two thin matrices, those of an embedding table stay rows and row ids.

Rounding. Norms decide how strongly an example is clipped, so they must not be
too small. Where a term is itself a sum, its parts may cancel and float32 may
lose what is left, in the norm or in the sum of terms. With M the sum of the
norms of the parts, `squared_slack` gives a multiple of M² that covers both;
clipping adds it to the squared norm. `absolute_norms` are upper bounds as they
are: sums of positive numbers, in which nothing cancels.

Units. Where several examples belong to one privacy unit, `masked` and then
`grouped` give the factor whose terms are the units': their parts are the parts
of all of the unit's examples, so the above holds for units as it stands.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_dp.gradients.distinct import has_distinct_columns
from tf_sparse_dp.gradients.internals import is_compiled
from tf_sparse_dp.gradients.repeats import repeats_rows

# Up to this many rows per example, comparing all pairs of row ids is cheaper
# than sorting them.
_PAIRWISE_ROWS = 64

# Least multiple of M² in the slack. A norm is then at least M/1000, so that an
# example's clipped sum of n parts, each of relative error 6e-8, is wrong by
# less than 6e-5 n clip_norm; and as long as cancellation leaves a tenth of M,
# the slack changes the norm by less than one part in 10⁴.
_LEAST_SLACK = 1e-6
UNIT_ROUNDOFF = 2.0**-24
_SMALLEST = 1.2e-38  # Smaller numbers may be flushed to zero.
# Squares of what is larger are infinite. Sums of absolute values are taken to
# be so as well: a weight that undoes them would have lost its digits.
LARGEST = 2.0**64
_LONGEST_SUM = 4096


class Factor(abc.ABC):
    """Terms of all examples for one variable: [B, *shape], not materialised."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one example's term."""

    @property
    def norms_by(self) -> str:
        """How norms are taken, for reports."""
        return "from each term"

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Squared L2 norm of every example's term, float32 [B]."""

    @abc.abstractmethod
    def squared_slack(self) -> tf.Tensor | None:
        """What to add to `squared_norms` for an upper bound; float32 [B].

        None when a term is not a sum of parts.
        """

    @abc.abstractmethod
    def absolute_norms(self) -> tf.Tensor:
        """Upper bounds on the L1 norm of every example's term, float32 [B].

        Not less than the norm in spite of rounding. Where a term is a sum of
        parts that would have to be added up first, such as rows that are
        looked up twice, it is the sum of the parts' norms: exact unless parts
        of different sign meet.
        """

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        """Sum of the terms times `weights` [B]; weight 0 leaves a term out.

        A term with weight 0 has no influence even if it is not finite.
        """

    def finite_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        """As `weighted_sum`, where norms and slack are finite for all examples.

        Then all that the terms are made of is finite too, and a product with
        0 is 0 without further care.
        """
        return self.weighted_sum(weights)

    def compact(self) -> Factor:
        """The same terms, in the form that is cheapest to clip."""
        return self

    @abc.abstractmethod
    def per_example(self) -> tf.Tensor:
        """The terms, materialised: [B, *shape]."""

    @abc.abstractmethod
    def scaled(self, scale: tf.Tensor | float) -> Factor:
        """All terms times a scalar."""

    @abc.abstractmethod
    def cast(self, dtype: tf.DType) -> Factor:
        """The terms in another floating dtype, at least float32."""

    @abc.abstractmethod
    def masked(self, valid: tf.Tensor) -> Factor:
        """Terms of examples that are not `valid` (bool [B]) become zero.

        They are zero also where they were not finite.
        """

    @abc.abstractmethod
    def grouped(self, size: int) -> Factor:
        """One term for every `size` consecutive examples: the sum of theirs.

        Examples beyond the last whole group are left out. Callers see to it
        that there are none; a shape that does not fit must not be what stops
        a step.
        """

    def joined(self, others: Sequence[Factor]) -> Factor | None:
        """The sum of this and others without materialising; None if unable."""
        return None

    def reshaped(self, shape: Sequence[int]) -> Factor:
        """Every term reshaped."""
        return self._dense().reshaped(shape)

    def transposed(self, permutation: Sequence[int]) -> Factor:
        """Every term transposed."""
        return self._dense().transposed(permutation)

    def multiplied(self, tensor: tf.Tensor) -> Factor:
        """Every term times a tensor that broadcasts to its shape."""
        return self._dense().multiplied(tensor)

    def _dense(self) -> DenseFactor:
        return DenseFactor(self.per_example(), self.squared_slack())


@dataclasses.dataclass(frozen=True)
class OuterFactor(Factor):
    """Terms left_iᵀ right_i, as a Dense kernel has them.

    Attributes:
      left: [B, T, I].
      right: [B, T, O].
      layout: Reshapes and transposes from [I, O] to the variable's shape.
    """

    left: tf.Tensor
    right: tf.Tensor
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = (self.left.shape[2], self.right.shape[2])
        for kind, argument in self.layout:
            if kind == "reshape":
                shape = argument
            else:
                shape = tuple(shape[axis] for axis in argument)
        return shape

    @property
    def _single(self) -> bool:
        return self.left.shape[1] == 1

    @property
    def _holds_terms(self) -> bool:
        """Whether to hold the terms rather than Gram matrices of their parts.

        Terms take T I O products, and then their sum is cheap; Gram matrices
        take T² (I + O) on top of the sum. The terms are held if they are not
        larger than their parts, which can be given up then. A single part
        needs neither.
        """
        _, steps, rows = self.left.shape
        columns = self.right.shape[2]
        return steps != 1 and rows * columns <= steps * (rows + columns)

    @property
    def norms_by(self) -> str:
        if self._single:
            return "from two norms"
        return "from each term" if self._holds_terms else "from Gram matrices"

    def squared_norms(self) -> tf.Tensor:
        left, right = _wide(self.left), _wide(self.right)
        if self._single:
            # A product of squares: one may vanish where the other is huge.
            return _row_squares(left) * _row_squares(right)
        if self._holds_terms:
            return _squares(tf.matmul(left, right, transpose_a=True))
        gram = tf.matmul(left, left, transpose_b=True)
        gram *= tf.matmul(right, right, transpose_b=True)
        return tf.reduce_sum(gram, [1, 2])

    def squared_slack(self) -> tf.Tensor | None:
        if self._single:
            return None
        _, steps, rows = self.left.shape
        columns = self.right.shape[2]
        left = _squares(_wide(self.left)) + steps * rows * _SMALLEST
        right = _squares(_wide(self.right)) + steps * columns * _SMALLEST
        # M² = (Σ |l_t||r_t|)² ≤ Σ |l_t|² Σ |r_t|² (Cauchy-Schwarz).
        mass = left * right
        if self._holds_terms:
            return _LEAST_SLACK * mass
        # Inner products of n terms err by n roundoffs of the product of the
        # norms, and by what was flushed to zero.
        roundoffs = 2 * (rows + columns + steps * steps) * UNIT_ROUNDOFF
        flushed = steps * _SMALLEST * (rows * right + columns * left)
        return max(_LEAST_SLACK, roundoffs) * mass + flushed

    def absolute_norms(self) -> tf.Tensor:
        # |Σ_t l_tᵀ r_t| ≤ Σ_t |l_t| |r_t|, and equal for T = 1.
        products = absolute_sums(self.left, 2) * absolute_sums(self.right, 2)
        return absolute_sums(products)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self.masked(weights > 0).finite_sum(weights)

    def finite_sum(self, weights: tf.Tensor) -> tf.Tensor:
        left, right = self.left, self.right
        if left.shape[2] < right.shape[2]:  # One of them, the cheaper one.
            left *= _column(weights, left)
        else:
            right *= _column(weights, right)
        total = tf.matmul(
            _rows_of(left, left.shape[2:]),
            _rows_of(right, right.shape[2:]),
            transpose_a=True,
        )
        for kind, argument in self.layout:
            if kind == "reshape":
                total = tf.reshape(total, argument)
            else:
                total = tf.transpose(total, argument)
        return total

    def per_example(self) -> tf.Tensor:
        if self._single:  # A product for each example would cost more.
            terms = self.left[:, 0, :, tf.newaxis] * self.right
        else:
            terms = tf.matmul(self.left, self.right, transpose_a=True)
        for kind, argument in self.layout:
            if kind == "reshape":
                terms = _rows_of(terms, argument)
            else:
                terms = tf.transpose(terms, [0, *(a + 1 for a in argument)])
        return terms

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        right = self.right * tf.cast(scale, self.right.dtype)
        return dataclasses.replace(self, right=right)

    def cast(self, dtype: tf.DType) -> Factor:
        return dataclasses.replace(
            self, left=_wide(self.left, dtype), right=_wide(self.right, dtype)
        )

    def masked(self, valid: tf.Tensor) -> Factor:
        return dataclasses.replace(
            self,
            left=_kept(self.left, valid),
            right=_kept(self.right, valid),
        )

    def compact(self) -> Factor:
        return self._dense() if self._holds_terms else self

    def grouped(self, size: int) -> Factor:
        return dataclasses.replace(
            self,
            left=_joined(_groups(self.left, size)),
            right=_joined(_groups(self.right, size)),
        )

    def reshaped(self, shape: Sequence[int]) -> Factor:
        return self._with_layout("reshape", shape)

    def transposed(self, permutation: Sequence[int]) -> Factor:
        return self._with_layout("transpose", permutation)

    def _with_layout(self, kind: str, argument: Sequence[int]) -> Factor:
        layout = (*self.layout, (kind, tuple(argument)))
        return dataclasses.replace(self, layout=layout)


@dataclasses.dataclass(frozen=True)
class DenseFactor(Factor):
    """Terms that are held as they are.

    Attributes:
      values: [B, *shape].
      slack: As `squared_slack`.
    """

    values: tf.Tensor
    slack: tf.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    def squared_norms(self) -> tf.Tensor:
        values = _wide(self.values)
        if values.shape.rank == 2 and values.shape[1]:
            values = _as_rows(values, values.shape[1])
        return _squares(values)

    def squared_slack(self) -> tf.Tensor | None:
        return self.slack

    def absolute_norms(self) -> tf.Tensor:
        norms = absolute_sums(self.values)
        if self.slack is None:
            return norms
        # An L1 norm of n entries is at most √n times the L2 norm.
        return norms + tf.sqrt(math.prod(self.shape) * self.slack)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        return self.masked(weights > 0).finite_sum(weights)

    def finite_sum(self, weights: tf.Tensor) -> tf.Tensor:
        size = math.prod(self.shape)
        total = tf.matmul(
            tf.expand_dims(tf.cast(weights, self.values.dtype), 0),
            _rows_of(self.values, [size]),
        )
        return tf.reshape(total, self.shape)

    def per_example(self) -> tf.Tensor:
        return self.values

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        scale = tf.cast(scale, self.values.dtype)
        slack = self.slack
        if slack is not None:
            slack *= tf.cast(tf.square(scale), slack.dtype)
        return DenseFactor(self.values * scale, slack)

    def cast(self, dtype: tf.DType) -> Factor:
        return DenseFactor(_wide(self.values, dtype), self.slack)

    def masked(self, valid: tf.Tensor) -> Factor:
        slack = self.slack
        if slack is not None:
            slack = _kept(slack, valid)
        return DenseFactor(_kept(self.values, valid), slack)

    def grouped(self, size: int) -> Factor:
        parts = _groups(self.values, size)
        total = summed_parts(parts, [1], size)
        if self.slack is None:
            return total
        # (Σ_j m_j)² ≤ n Σ_j m_j² for n summands.
        slack = size * tf.reduce_sum(_groups(self.slack, size), 1)
        if total.slack is not None:
            slack += total.slack
        return DenseFactor(total.values, slack)

    def reshaped(self, shape: Sequence[int]) -> Factor:
        return DenseFactor(_rows_of(self.values, shape), self.slack)

    def transposed(self, permutation: Sequence[int]) -> Factor:
        permutation = [0, *(axis + 1 for axis in permutation)]
        return DenseFactor(tf.transpose(self.values, permutation), self.slack)

    def multiplied(self, tensor: tf.Tensor) -> Factor:
        slack = self.slack
        if slack is not None:
            slack *= tf.reduce_max(tf.square(tf.cast(tensor, slack.dtype)))
        return DenseFactor(self.values * tensor, slack)


@dataclasses.dataclass(frozen=True)
class RowFactor(Factor):
    """Terms with few rows that are not zero, as a table's lookups have them.

    A row that an example looks up several times counts as the sum.

    Attributes:
      values: [B, L, width].
      ids: Row numbers, [B, L].
      table_shape: Shape of the table.
      sparse: Whether sums are given as `tf.IndexedSlices`.
    """

    values: tf.Tensor
    ids: tf.Tensor
    table_shape: tuple[int, ...]
    sparse: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def rows_per_example(self) -> int:
        return self.ids.shape[1]

    @property
    def _pools(self) -> bool:
        """Whether all of an example's lookups have the same values."""
        return self.rows_per_example <= _PAIRWISE_ROWS and repeats_rows(
            self.values
        )

    @property
    def _distinct(self) -> bool:
        """Whether no example looks up a row twice."""
        return self.rows_per_example == 1 or has_distinct_columns(self.ids)

    @property
    def norms_by(self) -> str:
        if self._distinct:
            return "from each row"
        if self.rows_per_example <= _PAIRWISE_ROWS:
            return "from pairs of rows"
        return "from sorted rows"

    def squared_norms(self) -> tf.Tensor:
        values = _wide(self.values)
        lookups = self.rows_per_example
        if self._distinct:
            return _squares(values)
        if self._pools:
            ids = tf.transpose(self.ids)
            same = tf.cast(ids[:, tf.newaxis] == ids, values.dtype)
            # Row v, looked up n times, counts n² |v|²: for n² pairs, |v|².
            return _squares(values[:, 0]) * tf.reduce_sum(same, [0, 1])
        if lookups <= _PAIRWISE_ROWS:
            same = self.ids[:, :, None] == self.ids[:, None, :]
            same = tf.cast(same, values.dtype)
            # Every lookup of a row sees the row's whole sum; count it once.
            squares = tf.reduce_sum(tf.square(tf.matmul(same, values)), 2)
            return tf.reduce_sum(squares / tf.reduce_sum(same, 2), 1)
        order = tf.argsort(self.ids, axis=1)
        ids = tf.gather(self.ids, order, batch_dims=1)
        values = tf.gather(values, order, batch_dims=1)
        starts = tf.pad(ids[:, 1:] != ids[:, :-1], [[0, 0], [1, 0]])
        runs = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        batch_size = tf.shape(ids)[0]
        runs += lookups * tf.range(batch_size)[:, None]
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, values.shape[2]]),
            tf.reshape(runs, [-1]),
            batch_size * lookups,
        )
        return _squares(tf.reshape(sums, tf.shape(values)))

    def squared_slack(self) -> tf.Tensor | None:
        if self._distinct or self._pools:
            return None  # Equal parts do not cancel.
        mass = self.rows_per_example * _squares(_wide(self.values))
        return _LEAST_SLACK * mass

    def absolute_norms(self) -> tf.Tensor:
        return absolute_sums(self.values)

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        return self.masked(weights > 0).finite_sum(weights)

    def finite_sum(self, weights: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        values = self.values * _column(weights, self.values)
        values = tf.reshape(values, [-1, *self.table_shape[1:]])
        total = tf.IndexedSlices(
            values,
            tf.reshape(self.ids, [-1]),
            tf.constant(self.table_shape, tf.int64),
        )
        return total if self.sparse else tf.convert_to_tensor(total)

    def per_example(self) -> tf.Tensor:
        rows = tf.one_hot(
            self.ids, self.table_shape[0], dtype=self.values.dtype
        )
        terms = tf.matmul(rows, self.values, transpose_a=True)
        return _rows_of(terms, self.table_shape)

    def scaled(self, scale: tf.Tensor | float) -> Factor:
        values = self.values * tf.cast(scale, self.values.dtype)
        return dataclasses.replace(self, values=values)

    def cast(self, dtype: tf.DType) -> Factor:
        return dataclasses.replace(self, values=_wide(self.values, dtype))

    def masked(self, valid: tf.Tensor) -> Factor:
        values = _kept(self.values, valid)
        return dataclasses.replace(self, values=values)

    def grouped(self, size: int) -> Factor:
        return dataclasses.replace(
            self,
            values=_joined(_groups(self.values, size)),
            ids=_joined(_groups(self.ids, size)),
        )

    def reshaped(self, shape: Sequence[int]) -> Factor:
        if tuple(shape) == self.table_shape:
            return self
        return super().reshaped(shape)


def added(factors: Sequence[Factor]) -> Factor:
    """The factor whose terms are the sums of the given factors' terms."""
    first = factors[0]
    if len(factors) == 1:
        return first
    if isinstance(first, OuterFactor) and all(
        isinstance(factor, OuterFactor)
        and factor.layout == first.layout
        and factor.left.shape[2] == first.left.shape[2]
        and factor.right.dtype == first.right.dtype
        for factor in factors
    ):
        return OuterFactor(
            tf.concat([factor.left for factor in factors], 1),  # type: ignore[attr-defined]
            tf.concat([factor.right for factor in factors], 1),  # type: ignore[attr-defined]
            first.layout,
        )
    if all(isinstance(factor, RowFactor) for factor in factors):
        return RowFactor(
            tf.concat([factor.values for factor in factors], 1),  # type: ignore[attr-defined]
            tf.concat([factor.ids for factor in factors], 1),  # type: ignore[attr-defined]
            first.shape,
            all(factor.sparse for factor in factors),  # type: ignore[attr-defined]
        )
    terms = tf.add_n([factor.per_example() for factor in factors])
    # Summands may cancel as parts do: their norms add to M.
    mass = tf.add_n([factor.squared_norms() for factor in factors])
    slacks = [factor.squared_slack() for factor in factors]
    slacks = [slack for slack in slacks if slack is not None]
    slack = tf.add_n([_LEAST_SLACK * mass, *slacks])
    # (Σ_j m_j)² ≤ n Σ_j m_j² for n summands.
    return DenseFactor(terms, len(factors) * slack)


def summed_parts(
    parts: tf.Tensor, axes: Sequence[int], count: float
) -> DenseFactor:
    """Terms that are sums of `count` parts each, over some axes of [B, ...]."""
    if count == 1 and all(parts.shape[axis] == 1 for axis in axes):
        return DenseFactor(tf.squeeze(parts, axes))
    terms = tf.reduce_sum(parts, axes)
    if count == 1:
        return DenseFactor(terms)
    mass = count * _squares(_wide(parts))
    return DenseFactor(terms, _LEAST_SLACK * mass)


def product_slack(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Slack of terms whose entries are sums of products of two tensors'."""
    return _LEAST_SLACK * _squares(_wide(left)) * _squares(_wide(right))


def parts_slack(mass: tf.Tensor) -> tf.Tensor:
    """The least slack of terms that are sums of parts; `mass` is M²."""
    return _LEAST_SLACK * mass


def absolute_sums(tensor: tf.Tensor, first_axis: int = 1) -> tf.Tensor:
    """Sums of absolute values over the last axes, not less than the true ones.

    Infinite where they are not finite or above 2⁶⁴.

    Args:
      tensor: [B, ...].
      first_axis: Axes from here on are summed over.
    """
    sizes = tensor.shape[first_axis:]
    values = tf.abs(_wide(tensor))
    longest = size = math.prod(sizes)
    if size > _LONGEST_SUM:
        # Adding n numbers one by one errs by n roundoffs; in two stages by 2√n.
        longest = math.isqrt(size - 1) + 1
        kept = tf.shape(values)[:first_axis]
        values = tf.reshape(values, tf.concat([kept, [size]], 0))
        filler = [[0, 0]] * first_axis + [[0, longest**2 - size]]
        values = tf.reshape(
            tf.pad(values, filler), tf.concat([kept, [longest] * 2], 0)
        )
        values = tf.reduce_sum(values, -1)
        total = tf.reduce_sum(values, -1)
    else:
        total = tf.reduce_sum(
            values, list(range(first_axis, values.shape.rank))
        )
    # A few roundoffs more for what is done with the sum.
    roundoffs = 2 * longest + 16
    total = total * (1 + roundoffs * UNIT_ROUNDOFF) + size * _SMALLEST
    return tf.where(total < LARGEST, total, math.inf)


def _rows_of(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """As many rows of `shape` as there are in a tensor: [..., *shape].

    In as few operations as possible: every one of them costs time to trace.
    """
    if tensor.shape[1:].as_list() == list(shape):
        return tensor
    # Of rows without entries there might be any number.
    count = -1 if math.prod(shape) else tf.shape(tensor)[0]
    return tf.reshape(tensor, [count, *shape])


def _wide(tensor: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """At least float32: sums of squares and products lose too much in less."""
    wide = dtype if dtype.size >= 4 else tf.float32
    return tf.cast(tensor, wide)


def _squares(tensor: tf.Tensor) -> tf.Tensor:
    """Squared norms of all that belongs to each example: [B]."""
    axes = list(range(1, tensor.shape.rank))
    if not axes:
        return tf.square(tensor)
    if is_compiled(tf.compat.v1.get_default_graph()):
        return tf.reduce_sum(tf.square(tensor), axes)
    # Squares would be written down first. The root costs a roundoff or two; XLA
    # does not know it, and has no need of it.
    return tf.square(tf.math.reduce_euclidean_norm(tensor, axes))


def _row_squares(tensor: tf.Tensor) -> tf.Tensor:
    """Squared norms of the rows of [B, 1, n], not less than the true ones."""
    width = tensor.shape[2]
    return _squares(_as_rows(tensor, width)) + width * _SMALLEST


def _as_rows(tensor: tf.Tensor, width: int) -> tf.Tensor:
    """A tensor as [..., width], the one that it was made of if it was.

    A kernel and a bias have the same upstream rows, which have to be seen to
    be the same if norms are to be taken once.
    """
    op = getattr(tensor, "op", None)  # Eager tensors have none.
    while op is not None and op.type in ("Reshape", "ExpandDims", "Squeeze"):
        source = op.inputs[0]
        if source.shape.rank == 2 and source.shape[1] == width:
            return source
        op = source.op
    return tf.reshape(tensor, [-1, width])


def _groups(tensor: tf.Tensor, size: int) -> tf.Tensor:
    """Rows in groups of `size`: [B // size, size, ...]."""
    rows = tensor.shape[0]
    if rows is None or rows % size:
        tensor = tensor[: tf.shape(tensor)[0] // size * size]
    return tf.reshape(tensor, [-1, size, *tensor.shape[1:]])


def _joined(groups: tf.Tensor) -> tf.Tensor:
    """The parts of a group's examples in one row: [G, size * parts, ...]."""
    _, size, parts, *rest = groups.shape
    return tf.reshape(groups, [-1, size * parts, *rest])


def _column(weights: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """One number per example, to be multiplied with [B, ...]."""
    shape = [-1] + [1] * (tensor.shape.rank - 1)
    return tf.cast(tf.reshape(weights, shape), tensor.dtype)


def _kept(tensor: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Zero where an example is not valid, whatever was there."""
    return tf.math.multiply_no_nan(tensor, _column(valid, tensor))
