"""Matrix products of all kinds, read as two-operand Einstein sums."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_sparse_dp.gradients.factors import (
    DenseFactor,
    Factor,
    OuterFactor,
    product_slack,
)
from tf_sparse_dp.gradients.rows import example_major
from tf_sparse_dp.gradients.rules.elementwise import (
    BATCH_STATISTIC,
    POST_PROCESSED,
)
from tf_sparse_dp.gradients.rules.registry import (
    factoring,
    lifting,
    mixed,
    typing,
)
from tf_sparse_dp.gradients.types import (
    SUMMED,
    Batched,
    Block,
    Dim,
    Free,
    Summed,
    Type,
)

if TYPE_CHECKING:
    from tf_sparse_dp.gradients.analysis import Analysis

_PRODUCTS = (
    "MatMul",
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Einsum",
)
_IN_BATCH = (
    "Every example is scored against every other (in-batch negatives, "
    "in-batch softmax). Draw negatives from a public catalogue instead, with "
    "tf_sparse_dp.integrations.recommenders.Retrieval."
)


@dataclasses.dataclass(frozen=True)
class _Equation:
    left: str
    right: str
    out: str


def _einsum_equation(analysis: Analysis, op: tf.Operation) -> _Equation | None:
    operands, _, out = op.get_attr("equation").decode().partition("->")
    parts = operands.split(",")
    shapes = [analysis.sizes.dims(tensor) for tensor in op.inputs]
    if len(parts) > 2 or any(shape is None for shape in shapes):
        return None
    unused = [x for x in string.ascii_letters if x not in operands + out]
    sizes = [
        _hidden(part, shape)  # type: ignore[arg-type]
        for part, shape in zip(parts, shapes, strict=True)
    ]
    widest = max(len(x) for x in sizes)
    shared, alone = unused[:widest], unused[widest:]
    for place, part in enumerate(parts):
        labels = shared[widest - len(sizes[place]) :]
        for axis in range(1, len(labels) + 1):
            others = [x[-axis] for x in sizes if len(x) >= axis]
            if sizes[place][-axis] == 1 and any(x != 1 for x in others):
                labels[-axis] = alone.pop()  # Broadcast: an axis of its own.
        parts[place] = part.replace("...", "".join(labels))
    out = out.replace("...", "".join(shared))
    if any(len(set(x)) < len(x) for x in (*parts, out)):
        return None
    return _Equation(parts[0], parts[1] if len(parts) == 2 else "", out)


def _hidden(labels: str, shape: list[Dim]) -> list[Dim]:
    """The sizes that an operand's ellipsis stands for."""
    before, dots, after = labels.partition("...")
    return shape[len(before) : len(shape) - len(after)] if dots else []


def _equation(analysis: Analysis, op: tf.Operation) -> _Equation | None:
    if op.type == "Einsum":
        return _einsum_equation(analysis, op)
    shapes = [analysis.sizes.dims(tensor) for tensor in op.inputs]
    if None in shapes:
        return None
    flags = (
        ("transpose_a", "transpose_b")
        if op.type == "MatMul"
        else ("adj_x", "adj_y")
    )
    left = "ki" if op.get_attr(flags[0]) else "ik"
    right = "jk" if op.get_attr(flags[1]) else "kj"
    left_lead, right_lead = (shape[:-2] for shape in shapes)  # type: ignore[index]
    rank = max(len(left_lead), len(right_lead))
    shared, lefts, rights = "abcdefgh"[:rank], "", ""
    for axis in range(rank):
        for lead, other in ((left_lead, right_lead), (right_lead, left_lead)):
            here = axis - (rank - len(lead))
            there = axis - (rank - len(other))
            label = shared[axis]
            if (
                here >= 0
                and lead[here] == 1
                and there >= 0
                and other[there] != 1
            ):
                label = label.upper()  # Broadcast: an axis of its own.
            if here >= 0 and lead is left_lead:
                lefts += label
            elif here >= 0:
                rights += label
    return _Equation(lefts + left, rights + right, shared + "ij")


@typing(*_PRODUCTS)
def _product(
    analysis: Analysis, op: tf.Operation, inputs: Sequence[Type]
) -> Type:
    if any(isinstance(kind, Summed) for kind in inputs):
        if any(isinstance(kind, Batched) for kind in inputs):
            return mixed(
                op,
                "combines a sum over examples with single examples",
                BATCH_STATISTIC,
            )
        if sum(isinstance(kind, Summed) for kind in inputs) == 1:
            return SUMMED
        return mixed(op, "is not linear in a sum over examples", POST_PROCESSED)
    equation = _equation(analysis, op)
    if equation is None:
        return mixed(op, "has a form that is not understood")
    labels = (equation.left, equation.right)[: len(inputs)]
    carriers = {
        (text[kind.axis], kind.blocks)
        for text, kind in zip(labels, inputs, strict=True)
        if isinstance(kind, Batched)
    }
    if len(carriers) != 1:
        return mixed(op, "pairs different examples", _IN_BATCH)
    label, blocks = carriers.pop()
    sizes: dict[str, Dim] = {}
    for text, tensor in zip(labels, op.inputs, strict=True):
        dims = analysis.sizes.dims(tensor)
        if dims is None:
            return mixed(op, "has an input of unknown rank")
        sizes.update(zip(text, dims, strict=True))
    rows = analysis.sizes.rows(Batched(0, blocks).per_example)
    for text, kind, tensor in zip(labels, inputs, op.inputs, strict=True):
        if isinstance(kind, Free) and label in text:
            dims = analysis.sizes.dims(tensor)
            if dims is None or dims[text.index(label)] != rows:
                return mixed(op, "meets a constant on the example axis")
    sizes[label] = rows
    if label not in equation.out:
        return SUMMED
    analysis.sizes.set_dims(op.outputs[0], [sizes[x] for x in equation.out])
    return Batched(equation.out.index(label), blocks)


@factoring(*_PRODUCTS)
def _product_terms(analysis: Analysis, op: tf.Operation) -> Factor:
    equation = _equation(analysis, op)
    if len(op.inputs) != 2:
        raise ValueError("sums over examples without a partner")
    left, right = op.inputs
    kinds = [analysis.type(left), analysis.type(right)]
    if equation is None or not any(isinstance(k, Batched) for k in kinds):
        raise ValueError("multiplies something that has no example axis")
    carrier = next(
        text[kind.axis]
        for text, kind in zip(
            (equation.left, equation.right), kinds, strict=True
        )
        if isinstance(kind, Batched)
    )
    blocks = next(kind.blocks for kind in kinds if isinstance(kind, Batched))
    if not (carrier in equation.left and carrier in equation.right):
        raise ValueError("sums over examples without a partner")
    # Both operands as [B, rows per example, other axes]: "*" are the rows.
    left = _by_example(analysis, left, equation.left, carrier, blocks)
    right = _by_example(analysis, right, equation.right, carrier, blocks)
    lefts = equation.left.replace(carrier, "")
    rights = equation.right.replace(carrier, "")
    inner = [x for x in lefts if x in rights and x not in equation.out]
    rows = [x for x in lefts if x not in rights]
    columns = [x for x in rights if x not in lefts]
    sizes = dict(zip(lefts, left.shape[2:], strict=True))
    sizes.update(zip(rights, right.shape[2:], strict=True))
    shared = [x for x in lefts if x in rights and x in equation.out]
    if shared or any(x not in equation.out for x in rows + columns):
        return _materialised(left, right, lefts, rights, equation.out)
    left = _grouped(analysis, left, lefts, inner, rows, sizes)
    right = _grouped(analysis, right, rights, inner, columns, sizes)
    layout: list[tuple[str, tuple[int, ...]]] = []
    order = rows + columns
    if [len(rows), len(columns)] != [1, 1]:
        layout.append(("reshape", tuple(sizes[x] for x in order)))
    if "".join(order) != equation.out:
        permutation = tuple(order.index(x) for x in equation.out)
        layout.append(("transpose", permutation))
    return OuterFactor(left, right, tuple(layout))


@lifting(*(name for name in _PRODUCTS if name != "MatMul"))
def _lift_product(
    analysis: Analysis, op: tf.Operation, factor: Factor, index: int
) -> Factor:
    """Every term times the same matrix."""
    equation = _equation(analysis, op)
    if equation is None or len(op.inputs) != 2:
        raise ValueError("has a form that is not understood")
    texts = [equation.left, equation.right]
    example = next(x for x in string.ascii_letters if x not in "".join(texts))
    texts[index] = example + texts[index]
    terms = factor.cast(tf.float32).per_example()
    other = tf.cast(op.inputs[1 - index], terms.dtype)
    operands = [other, terms] if index else [terms, other]
    slack = product_slack(terms, other[tf.newaxis])
    inherited = factor.squared_slack()
    if inherited is not None:
        slack += inherited * tf.reduce_sum(tf.square(other))
    text = f"{','.join(texts)}->{example}{equation.out}"
    return DenseFactor(tf.einsum(text, *operands), slack)


def _by_example(
    analysis: Analysis,
    tensor: tf.Tensor,
    labels: str,
    carrier: str,
    blocks: tuple[Block, ...],
) -> tf.Tensor:
    kind = Batched(labels.index(carrier), blocks)
    return example_major(analysis, tensor, kind)


def _grouped(
    analysis: Analysis,
    tensor: tf.Tensor,
    labels: str,
    inner: list[str],
    outer: list[str],
    sizes: dict[str, int],
) -> tf.Tensor:
    """[B, rows, labels...] as [B, rows * inner labels, outer labels]."""
    order = [labels.index(x) + 2 for x in inner + outer]
    if order != sorted(order):
        tensor = tf.transpose(tensor, [0, 1, *order])
    steps, width = tensor.shape[1], 1
    for label in inner:
        steps *= sizes[label]
    for label in outer:
        width *= sizes[label]
    return tf.reshape(tensor, [analysis.batch_size, steps, width])


def _materialised(
    left: tf.Tensor, right: tf.Tensor, lefts: str, rights: str, out: str
) -> Factor:
    unused = [x for x in string.ascii_letters if x not in lefts + rights]
    example, row = unused[:2]
    terms = tf.einsum(
        f"{example}{row}{lefts},{example}{row}{rights}->{example}{out}",
        left,
        right,
    )
    # (Σ |l||r|)² over all products that are added up, by Cauchy-Schwarz.
    return DenseFactor(terms, product_slack(left, right))
