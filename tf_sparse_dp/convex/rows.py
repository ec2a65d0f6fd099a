"""Rows of data, sparse and of bounded norm, and their labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

_ULP = 2.0**-52


def as_csr(data: Any) -> sparse.csr_matrix:
    """Rows [n, d] in float64: of scipy, of TensorFlow, or dense.

    A `tf.SparseTensor` is known by its parts, so that TensorFlow need not be
    there. Entries that repeat are added.

    Raises:
      ValueError: Not two axes, ids of no entry, or numbers that are not finite.
    """
    if all(hasattr(data, n) for n in ("indices", "values", "dense_shape")):
        places = np.asarray(data.indices)
        shape = tuple(int(size) for size in np.asarray(data.dense_shape))
        if len(shape) != 2:
            raise ValueError(
                f"Rows of shape {shape} were given; expected two axes, [n, d]."
            )
        matrix = sparse.coo_matrix(
            (np.asarray(data.values, np.float64), (places[:, 0], places[:, 1])),
            shape=shape,
        ).tocsr()
    elif sparse.issparse(data):
        matrix = sparse.csr_matrix(data, dtype=np.float64, copy=True)
    else:
        dense = np.asarray(data, np.float64)
        if dense.ndim != 2:
            raise ValueError(
                f"Rows of shape {dense.shape} were given; expected two axes, "
                "[n, d]. Reshape your data."
            )
        matrix = sparse.csr_matrix(dense)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if not np.all(np.isfinite(matrix.data)):
        raise ValueError(
            "Rows hold NaN or infinity; expected finite numbers. Clean the "
            "data row by row, without regard to other rows."
        )
    return matrix


def as_targets(
    labels: Any, count: int, *, signs: bool, bound: float | None
) -> np.ndarray:
    """Labels [count] in float64.

    Args:
      labels: One per row.
      count: How many rows there are.
      signs: Whether all have to be -1 or 1.
      bound: Size that labels are clipped to, one by one. None for none.

    Raises:
      ValueError: Not one per row, not finite, or not -1 or 1.
    """
    targets = np.asarray(labels, np.float64)
    if targets.shape != (count,):
        raise ValueError(
            f"Labels of shape {targets.shape} were given for {count} rows; "
            "expected one label per row."
        )
    if not np.all(np.isfinite(targets)):
        raise ValueError(
            "Labels hold NaN or infinity; expected finite numbers."
        )
    if signs and not np.all(np.abs(targets) == 1):
        raise ValueError(
            "Labels other than -1 and 1 were given; expected these two for "
            "loss='logistic' and loss='hinge'."
        )
    return targets if bound is None else np.clip(targets, -bound, bound)


def clipped(
    matrix: sparse.csr_matrix, row_norm: float, sparsity: int
) -> sparse.csr_matrix:
    """Rows with few entries and an L2 norm of at most `row_norm`.

    Of rows with more than `sparsity` entries the largest stay (of equal ones,
    those of smaller ids), and then the row is scaled. What becomes of a row
    depends on nothing but the row and public numbers, so that neighbours stay
    neighbours.

    Example:
      >>> rows = clipped(as_csr([[3.0, 4.0, 1.0]]), 1.0, sparsity=2)
      >>> rows.toarray().round(6)
      array([[0.6, 0.8, 0. ]])
    """
    counts = np.diff(matrix.indptr)
    owners = np.repeat(np.arange(matrix.shape[0]), counts)
    if counts.max(initial=0) > sparsity:
        order = np.lexsort((matrix.indices, -np.abs(matrix.data), owners))
        rank = np.arange(len(order)) - np.repeat(matrix.indptr[:-1], counts)
        kept = np.sort(order[rank < sparsity])
        matrix = sparse.csr_matrix(
            (matrix.data[kept], (owners[kept], matrix.indices[kept])),
            shape=matrix.shape,
        )
        counts = np.diff(matrix.indptr)
        owners = np.repeat(np.arange(matrix.shape[0]), counts)
    # By the largest entry first: squares of large numbers would overflow.
    largest = np.zeros(matrix.shape[0])
    np.maximum.at(largest, owners, np.abs(matrix.data))
    largest[largest == 0] = 1.0
    relative = matrix.data / largest[owners]
    squares = np.bincount(owners, relative**2, minlength=matrix.shape[0])
    # Rounded up by more than what the sum can have lost.
    lengths = np.sqrt(squares) * (1 + (counts + 16) * _ULP)
    with np.errstate(over="ignore"):  # Too long is too long.
        outside = lengths * largest > row_norm
    scaled = relative * (row_norm / np.maximum(lengths, 1.0))[owners]
    data = np.where(outside[owners], scaled, matrix.data)
    return sparse.csr_matrix(
        (data, matrix.indices, matrix.indptr), shape=matrix.shape
    )


def with_constant(
    matrix: sparse.csr_matrix, constant: float
) -> sparse.csr_matrix:
    """Rows with one more entry, the same for all: that of the intercept."""
    column = sparse.csr_matrix(np.full((matrix.shape[0], 1), constant))
    return sparse.hstack([matrix, column], format="csr")
