"""Diagonals of matrices that stand on an example's own axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.rules.registry import mixed, typing
from tf_sparse_dp.gradients.rules.structure import KEEP_AXIS
from tf_sparse_dp.gradients.types import Batched, Free, Type

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis


# How many of the last axes of the input belong to a matrix or its diagonal.
_OWN_AXES = {
    "MatrixDiag": 1,
    "MatrixDiagPart": 2,
    "MatrixDiagPartV3": 2,
    "MatrixDiagV3": 1,
}


@typing(*_OWN_AXES)
def _diagonal(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    kind, *others = inputs
    rank = op.inputs[0].shape.rank
    if not all(isinstance(other, Free) for other in others):
        return mixed(op, "takes a diagonal that example data choose")
    if not isinstance(kind, Batched) or rank is None:
        return mixed(op, "of a sum over examples")
    own = _OWN_AXES[op.type]
    if op.type.endswith("V3") and not _single(analysis, op.inputs[1]):
        return mixed(op, "takes several diagonals at once")
    if kind.axis >= rank - own:
        return mixed(op, "over the example axis", KEEP_AXIS)
    return kind


@typing("MatrixSetDiag", "MatrixSetDiagV3")
def _set_diagonal(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    matrix, diagonal, *others = inputs
    rank = op.inputs[0].shape.rank
    if not all(isinstance(other, Free) for other in others):
        return mixed(op, "takes a diagonal that example data choose")
    if others and not _single(analysis, op.inputs[2]):
        return mixed(op, "sets several diagonals at once")
    if not isinstance(matrix, Batched) or rank is None:
        return mixed(op, "sets a constant's diagonal to example data")
    if matrix.axis >= rank - 2:
        return mixed(op, "over the example axis", KEEP_AXIS)
    if not isinstance(diagonal, Free) and diagonal != matrix:
        return mixed(op, "joins rows of different examples", KEEP_AXIS)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return matrix


def _single(analysis: Analysis, number: tf.Tensor) -> bool:
    """Whether one diagonal is meant, so that its axes are as usual."""
    return number.shape.rank == 0 and analysis.sizes.scalar(number) is not None
