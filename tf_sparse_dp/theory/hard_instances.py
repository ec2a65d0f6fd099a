r"""Data sets on which no private mean can be accurate: test beds.

The lower bounds of the paper come from random data sets. `packing_data` has
copies of one sparse vector, `block_data` many small hard data sets along a
diagonal, so that each example touches one block only; rows that are left over
are zero (padding). Pure privacy uses blocks of copies, approximate privacy
blocks of random signs as in fingerprinting codes.

All rows have s entries that are not zero at most and L2 norm 1 at most. An
algorithm whose error falls clearly below `HardData.error` on these data more
often than it says is not private, whatever its proof says.

Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
Private Optimization with Sparse Gradients" (2024), section 4; Bun, Steinke and
Ullman, "Make up your mind: the price of online queries in differential
privacy" (2017).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import sparse

from tf_sparse_dp.theory import rates
from tf_sparse_dp.theory.bound import check, check_whole

# Two vectors of a packing are farther apart than this.
SEPARATION = 1 / math.sqrt(2)
# Who does not know which vector of a packing it is misses it by half of that.
_PACKING_ERROR = SEPARATION / 2
_PACKING_PROBABILITY = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardData:
    """A hard data set, and how hard it is.

    Attributes:
      rows: [n, d], `scipy.sparse.csr_matrix` of float64.
      block_rows: n₀, rows of one block.
      block_columns: t, columns of one block.
      blocks: K. Block k fills rows k n₀ to (k+1) n₀ and columns k t to (k+1) t;
        everything else is zero.
      error: No algorithm with the given privacy has an L2 error for the mean of
        the rows below this, but with probability 1 - `probability` over the
        data and the algorithm. With a delta it is the rate only, for the
        constant is not known: see `proven`.
      probability: As above; None with a delta ("constant").
      proven: Whether `error` holds as a number (pure) or as a rate.
    """

    rows: sparse.csr_matrix
    block_rows: int
    block_columns: int
    blocks: int
    error: float
    probability: float | None
    proven: bool


def log_packing_size(d: int, s: int) -> float:
    r"""Logarithm of a size that packings of s-sparse vectors can have at least.

    The vectors have s entries $1/\sqrt s$ and zeros, and any two differ in more
    than s/2 places, hence by more than $1/\sqrt 2$ in L2 norm. Of all vectors,
    one picked rules out those that differ from it in s/2 places at most: r
    entries removed and r others added, 2r ≤ s/2. So at least
    $\binom ds / \sum_{r ≤ s/4} \binom sr \binom{d-s}r$ can be picked, which is
    no less than the lemma's $(d/s - 1/2)^{s/2}$ (lem:sparse_codes).
    """
    check(1, d, s, 1.0, 0.0)
    ruled_out = sum(
        math.comb(s, r) * math.comb(d - s, r) for r in range(s // 4 + 1)
    )
    return math.log(math.comb(d, s)) - math.log(ruled_out)


def sparse_packing(
    d: int, s: int, size: int, *, seed: int | None = None
) -> sparse.csr_matrix:
    r"""Vectors with s entries $1/\sqrt s$, any two more than $1/\sqrt 2$ apart.

    Random vectors that are far enough from those already picked; as long as
    `size` is at most the size that `log_packing_size` promises there always are
    some.

    Returns:
      [size, d].

    Raises:
      ValueError: An argument is out of range, or `size` is more than promised.

    Example:
      >>> from tf_sparse_dp.theory import hard_instances
      >>> hard_instances.sparse_packing(50, 4, 10, seed=0).shape
      (10, 50)
    """
    check_whole("size", size)
    promised = log_packing_size(d, s)
    if math.log(size) > promised:
        raise ValueError(
            f"size={size} was given; expected at most {math.exp(promised):.4g} "
            f"vectors of {s} entries among {d}, which is how many are sure to "
            "exist. Lower size, or raise d or s."
        )
    random = np.random.default_rng(seed)
    picked = np.empty((size, s), np.int64)
    count = 0
    while count < size:
        support = random.choice(d, s, replace=False)
        shared = np.isin(picked[:count], support).sum(axis=1)
        # They differ in 2 (s - shared) places.
        if not (4 * (s - shared) <= s).any():
            picked[count] = np.sort(support)
            count += 1
    return _from_supports(picked, d)


def packing_data(
    n: int, d: int, s: int, epsilon: float, *, seed: int | None = None
) -> HardData:
    r"""Copies of one random sparse vector, and zeros: hard for pure privacy.

    **Why it is hard** (lem:packing_DP_LB). Let p vectors be a packing and $n_0
    < \ln(p/2)/ε$. Data sets of $n_0$ copies of one of them differ from each
    other in $n_0$ rows, so what an ε-private algorithm finds for one of them it
    finds for every other with at least $e^{-εn_0} > 2/p$ times that
    probability; if it came within half a separation with probability 1/2 or
    more on average, probabilities would sum to more than 1. With $n - n_0$ zero
    rows added, the mean and its error shrink by $n_0/n$.

    The vector drawn here is uniform among all with s equal entries. That is a
    uniform member of a fixed packing after a uniform permutation of the
    coordinates; a permuted packing is one, so the bound holds on average over
    permutations, and no packing need be built.

    Args:
      n: Rows.
      d: Columns.
      s: Entries of a row.
      epsilon: Of the algorithms that are to fail.
      seed: Of the draw.

    Raises:
      ValueError: An argument is out of range, or epsilon is so large that one
        copy is too many.
    """
    check(n, d, s, epsilon, 0.0)
    return block_data(n, d, s, epsilon, block_columns=d, seed=seed)


def block_data(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    *,
    block_columns: int | None = None,
    seed: int | None = None,
) -> HardData:
    r"""Independent hard blocks along a diagonal, and zeros.

    **Why it is hard** (lem:block_diagonal_bootstrap, `rates.block_lower`): an
    algorithm that is private for all rows is private for the rows of each
    block, so it fails on each block with constant probability, whatever is in
    the others; squared errors add up.

    Pure: blocks as in `packing_data`, with as many columns t as make the proven
    error largest. Approximate: t = s columns and $n_0 ≈ \sqrt{s \ln(1/δ)}/ε$
    rows of signs $±1/\sqrt s$; the signs of a column are independent with
    a mean that is itself uniform on [-1, 1], so that a good estimate of the
    means gives away rows.

    Args:
      n: Rows.
      d: Columns.
      s: Entries of a row.
      epsilon: Of the algorithms that are to fail.
      delta: As above; 0 is pure differential privacy.
      block_columns: Columns of a block, for pure privacy, from 2s to d.
      seed: Of the draw.

    Raises:
      ValueError: An argument is out of range, or epsilon is so large that
        not even one row is hard.

    Example:
      >>> from tf_sparse_dp.theory import hard_instances
      >>> hard = hard_instances.block_data(1000, 10_000, 4, 1.0, seed=0)
      >>> hard.rows.shape, hard.blocks * hard.block_rows <= 1000
      ((1000, 10000), True)
    """
    check(n, d, s, epsilon, delta)
    if 2 * s > d:
        raise ValueError(
            f"s={s} and d={d} were given; expected s of at most d/2: the lower "
            "bounds are for sparse vectors."
        )
    random = np.random.default_rng(seed)
    if delta == 0:
        return _pure(n, d, s, epsilon, block_columns, random)
    if block_columns is not None:
        raise ValueError(
            f"block_columns={block_columns} was given with delta={delta:g}; "
            "expected none: blocks of signs have s columns."
        )
    return _approximate(n, d, s, epsilon, delta, random)


def _pure(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    columns: int | None,
    random: np.random.Generator,
) -> HardData:
    if columns is None:
        grid = np.geomspace(2 * s, d, 40)
        widths = sorted({int(width) for width in grid} | {2 * s, d})
    elif not 2 * s <= columns <= d:
        raise ValueError(
            f"block_columns={columns!r} was given; expected from 2s = {2 * s} "
            f"to d = {d}."
        )
    else:
        widths = [columns]
    layouts = [_pure_layout(n, d, s, epsilon, width) for width in widths]
    possible = [layout for layout in layouts if layout is not None]
    if not possible:
        raise ValueError(
            f"epsilon={epsilon:g} was given for s={s} and d={d}; expected "
            "less: one row may already be found under so little noise, and "
            "the lower bound says nothing. Lower epsilon, or raise s or d."
        )
    best = max(possible, key=lambda layout: layout["error"])
    supports = [
        np.sort(random.choice(best["block_columns"], s, replace=False))
        for _ in range(best["blocks"])
    ]
    blocks = [
        _from_supports(
            np.tile(support, (best["block_rows"], 1)), best["block_columns"]
        )
        for support in supports
    ]
    return HardData(rows=padded_blocks(blocks, n, d), proven=True, **best)


def _pure_layout(
    n: int, d: int, s: int, epsilon: float, columns: int
) -> dict[str, Any] | None:
    """Rows and number of blocks of that width, and the error they prove."""
    # The largest whole number strictly below ln(p/2)/epsilon.
    copies = math.ceil((log_packing_size(columns, s) - math.log(2)) / epsilon)
    rows = min(n, copies - 1)
    if rows < 1:
        return None
    blocks = min(n // rows, d // columns)
    error = _PACKING_ERROR * rows / n
    probability = _PACKING_PROBABILITY
    if blocks > 1:
        error, probability = rates.block_lower(
            n=n,
            block_rows=rows,
            blocks=blocks,
            error=_PACKING_ERROR,
            probability=_PACKING_PROBABILITY,
        )
    return {
        "block_rows": rows,
        "block_columns": columns,
        "blocks": blocks,
        "error": error,
        "probability": probability,
    }


def _approximate(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float,
    random: np.random.Generator,
) -> HardData:
    rows = math.floor(math.sqrt(s * math.log(1 / delta)) / epsilon)
    rows = min(n, rows)
    if rows < 1:
        raise ValueError(
            f"epsilon={epsilon:g} was given for s={s} and delta={delta:g}; "
            "expected at most sqrt(s ln(1/delta)): beyond, not even one row is "
            "hard. Lower epsilon, or raise s."
        )
    count = min(n // rows, d // s)
    blocks = []
    for _ in range(count):
        means = random.uniform(-1, 1, s)
        signs = np.where(random.uniform(-1, 1, (rows, s)) < means, 1.0, -1.0)
        blocks.append(sparse.csr_matrix(signs / math.sqrt(s)))
    bound = rates.mean_lower(n=n, d=d, s=s, epsilon=epsilon, delta=delta)
    return HardData(
        rows=padded_blocks(blocks, n, d),
        block_rows=rows,
        block_columns=s,
        blocks=count,
        error=bound.value,
        probability=None,
        proven=False,
    )


def padded_blocks(
    blocks: list[sparse.csr_matrix], n: int, d: int
) -> sparse.csr_matrix:
    """Blocks along the diagonal of an [n, d] matrix that is zero elsewhere.

    Raises:
      ValueError: They do not fit.
    """
    diagonal = sparse.block_diag(blocks, format="csr")
    if diagonal.shape[0] > n or diagonal.shape[1] > d:
        raise ValueError(
            f"blocks that fill {diagonal.shape} were given; expected them to "
            f"fit into ({n}, {d})."
        )
    starts = np.full(n + 1, diagonal.nnz, diagonal.indptr.dtype)
    starts[: len(diagonal.indptr)] = diagonal.indptr
    return sparse.csr_matrix(
        (diagonal.data, diagonal.indices, starts), shape=(n, d)
    )


def _from_supports(supports: np.ndarray, d: int) -> sparse.csr_matrix:
    """Rows with equal entries of norm 1 at the places given."""
    count, s = supports.shape
    return sparse.csr_matrix(
        (
            # Norms are 1 at most, also after rounding.
            np.full(count * s, np.nextafter(1 / math.sqrt(s), 0)),
            supports.ravel(),
            np.arange(0, count * s + 1, s),
        ),
        shape=(count, d),
    )
