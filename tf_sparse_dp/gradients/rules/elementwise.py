"""Operations that act on each entry alone, with broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_sparse_dp.gradients.dims import broadcast
from tf_sparse_dp.gradients.factors import DenseFactor, Factor
from tf_sparse_dp.gradients.rules.registry import lifting, mixed, typing
from tf_sparse_dp.gradients.sizes import Sizes
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_UNARY = """
    Abs Acos Acosh AsString Asin Asinh Atan Atanh Ceil Cos Cosh Digamma
    Elu Erf Erfc Erfinv Exp Expm1 Floor Invert IsFinite IsInf IsNan LeakyRelu
    Lgamma Log Log1p LogicalNot Ndtri OnesLike Reciprocal Relu Relu6 Rint Round
    Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square Tan Tanh
    ZerosLike
""".split()
_LINEAR_UNARY = """
    Cast Identity Neg PreventGradient Snapshot StopGradient
""".split()
_NARY = """
    Atan2 BitwiseAnd BitwiseOr BitwiseXor ClipByValue Div EluGrad Equal
    FloorDiv FloorMod Greater GreaterEqual InvGrad LeakyReluGrad Less
    LeftShift LessEqual LogicalAnd LogicalOr Maximum Minimum Mod MulNoNan
    NotEqual Pow RightShift
    ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad Select SelectV2 SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference TanhGrad
    TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
""".split()
# Derivatives: linear in what comes from above, the input of this number.
UPSTREAM = {
    **dict.fromkeys(
        "EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad "
        "SoftsignGrad".split(),
        0,
    ),
    **dict.fromkeys(
        "InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad "
        "TanhGrad".split(),
        1,
    ),
}
_SUMS = "Add AddV2 AddN Sub".split()
_PRODUCTS = "Mul RealDiv DivNoNan".split()

BATCH_STATISTIC = (
    "A statistic of the batch reaches single examples. Replace "
    "BatchNormalization by LayerNormalization (or freeze it with "
    "trainable=False), and losses that divide by a batch total by ones that "
    "average per example."
)
POST_PROCESSED = (
    "Here a total of the batch decides what single examples get, or a "
    "gradient was changed after it was summed. A loss must be a plain sum or "
    "mean over examples; often it is a mask (mask_zero=True) or sample weights "
    "whose total Keras divides by: let no mask reach the loss. Replace tf.cond "
    "by tf.where with a condition per example. Remove gradient clipping or "
    "normalisation in the training step: clip_norm clips per example."
)
_PAIRED = (
    "Scores between different examples of the batch (in-batch negatives, "
    "in-batch softmax) cannot be private per example. Draw negatives from a "
    "public catalogue instead, with "
    "tf_sparse_dp.integrations.recommenders.Retrieval."
)


@typing(*_UNARY)
def _unary(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if isinstance(inputs[0], Summed):
        return mixed(op, "is not linear in a sum over examples", POST_PROCESSED)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return inputs[0]


@typing("L2Loss")
def _half_squares(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    # Of a gradient's rows or of a whole gradient, by tf.linalg.global_norm.
    return mixed(op, "is not linear in a sum over examples", POST_PROCESSED)


@typing(*_LINEAR_UNARY)
def _linear_unary(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if isinstance(inputs[0], Summed) and op.type == "Cast":
        kinds = (op.inputs[0].dtype, op.outputs[0].dtype)
        if not all(kind.is_floating for kind in kinds):
            return mixed(op, "rounds a sum over examples", POST_PROCESSED)
    analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
    return inputs[0]


@typing("EnsureShape")
def _ensured(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    # A shape that is not as it should be stops the run; shapes are public.
    return inputs[0]


@typing("IdentityN")
def _identities(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> list[Type]:
    return list(inputs)


@typing(*_NARY)
def _nary(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    if any(isinstance(kind, Summed) for kind in inputs):
        upstream = UPSTREAM.get(op.type)
        if upstream is not None and isinstance(inputs[1 - upstream], Free):
            return SUMMED
        if op.type == "SelectV2" and isinstance(inputs[0], Free):
            if not any(isinstance(kind, Batched) for kind in inputs):
                return SUMMED
        return _statistic(op, inputs)
    if op.type == "Select":
        ranks = [tensor.shape.rank for tensor in op.inputs]
        if ranks[0] != 0 and len(set(ranks)) > 1:
            # A vector selects whole rows, against the rule of broadcasting.
            return mixed(op, "selects rows by a vector", "Use tf.where.")
    return aligned(analysis, op, inputs)


@typing(*_SUMS)
def _sum(analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]) -> Type:
    if any(isinstance(kind, Summed) for kind in inputs):
        if any(isinstance(kind, Batched) for kind in inputs):
            return _statistic(op, inputs)
        return SUMMED
    return aligned(analysis, op, inputs)


@typing(*_PRODUCTS)
def _product(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    left, right = inputs
    if isinstance(left, Summed) and isinstance(right, Free):
        return SUMMED
    if isinstance(right, Summed) and isinstance(left, Free):
        if op.type == "Mul":
            return SUMMED
    if isinstance(left, Summed) or isinstance(right, Summed):
        return _statistic(op, inputs)
    return aligned(analysis, op, inputs)


def _statistic(op: tf.Operation, inputs: Sequence[Type]) -> Type:
    if any(isinstance(kind, Batched) for kind in inputs):
        return mixed(
            op,
            "combines a sum over examples with single examples",
            BATCH_STATISTIC,
        )
    return mixed(op, "is not linear in a sum over examples", POST_PROCESSED)


def aligned(
    analysis: Analysis,
    op: tf.Operation,
    inputs: Sequence[Type],
    tensors: Sequence[tf.Tensor] | None = None,
) -> Type:
    """Type of a broadcasting operation on batched and free tensors."""
    tensors = op.inputs if tensors is None else tensors
    shapes: list[Any] = [analysis.sizes.dims(tensor) for tensor in tensors]
    if any(shape is None for shape in shapes):
        return mixed(op, "has an input of unknown rank")
    rank = max(len(shape) for shape in shapes)
    result: Batched | None = None
    for kind, shape in zip(inputs, shapes, strict=True):
        if not isinstance(kind, Batched):
            continue
        here = kind.moved_to(kind.axis + rank - len(shape))
        if result is None:
            result = here
        elif result.axis != here.axis:
            return mixed(op, "pairs different examples", _PAIRED)
        elif result.blocks != here.blocks:
            return mixed(op, "pairs rows of different examples", _PAIRED)
    if result is None:
        return mixed(op, "has no batched input")
    rows = analysis.sizes.rows(result.per_example)
    for kind, shape in zip(inputs, shapes, strict=True):
        axis = result.axis - (rank - len(shape))
        if isinstance(kind, Free) and axis >= 0:
            if shape[axis] != 1 and shape[axis] != rows:
                return mixed(
                    op,
                    f"meets a constant of size {shape[axis]} on the example "
                    "axis",
                    "Give constants size 1 on the example axis.",
                )
    _remember_dims(analysis.sizes, op, shapes)
    return result


def _remember_dims(sizes: Sizes, op: tf.Operation, shapes: list[Any]) -> None:
    dims = shapes[0]
    for shape in shapes[1:]:
        dims = broadcast(dims, shape)
    static = op.outputs[0].shape
    if static.rank == len(dims):
        dims = [
            there if here is None else here
            for here, there in zip(dims, static.as_list(), strict=True)
        ]
    sizes.set_dims(op.outputs[0], dims)


@typing("BiasAdd")
def _bias_add(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    value, bias = inputs
    if isinstance(value, Batched) and isinstance(bias, Free):
        channels = _channel_axis(op)
        if channels is None or value.axis == channels:
            return mixed(op, "has its channels on the example axis")
        analysis.sizes.copy_dims(op.inputs[0], op.outputs[0])
        return value
    return mixed(op, "adds example data as a bias")


def _channel_axis(op: tf.Operation) -> int | None:
    rank = op.inputs[0].shape.rank
    if rank is None:
        return None
    return rank - 1 if op.get_attr("data_format") == b"NHWC" else 1


@lifting(
    "EnsureShape", "Identity", "PreventGradient", "StopGradient", "Snapshot"
)
def _lift_identity(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    return factor


@lifting("Cast")
def _lift_cast(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    return factor.cast(op.outputs[0].dtype)


@lifting("Neg")
def _lift_neg(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    return factor.scaled(-1.0)


@lifting("Mul", "RealDiv", "DivNoNan")
def _lift_product(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    other = op.inputs[1 - index]
    if op.type == "RealDiv":
        other = 1.0 / other
    elif op.type == "DivNoNan":
        other = tf.math.divide_no_nan(tf.ones_like(other), other)
    if other.shape.rank == 0:
        return factor.scaled(other)
    if factor.shape != tuple(op.outputs[0].shape):
        factor = spread_terms(factor, op.outputs[0].shape)
    return factor.multiplied(other)


def spread_terms(factor: Factor, shape: tf.TensorShape) -> Factor:
    """Every term broadcast to a shape."""
    if not shape.is_fully_defined():
        raise ValueError("has a shape that is not known while tracing")
    lead = [1] * (shape.rank - len(factor.shape))
    aligned = factor.reshaped([*lead, *factor.shape])
    terms = aligned.per_example()
    copies = shape.num_elements() // max(math.prod(factor.shape), 1)
    slack = factor.squared_slack()
    return DenseFactor(
        tf.broadcast_to(terms, [tf.shape(terms)[0], *shape]),
        None if slack is None else copies * slack,
    )
