r"""Tables 1 and 2 of the paper and the theorems behind them, as functions.

Every function returns a `Bound`. **Absolute constants are left out**, as the
paper leaves them out: a bound's value is a rate, fit for slopes and for
comparing regimes, not a promise of an error. Logarithms are taken to be at
least 1, so that no bound vanishes where d is near s or n ε near d.

Symbols: n examples, d coordinates, each example's vector or gradient with s
coordinates that are not zero at most and L2 norm L = `lipschitz` at most,
D = `distance` of the start from a minimiser (or the diameter),
B = `loss_range`, β = `beta` the probability of failure. δ = 0 means pure
differential privacy. Neighbours: one example is replaced; n is public.

The tables are stated for success with constant probability, and Table 2 leaves
out L, D and powers of ln n; so do the functions that say "Table". Those named
for an algorithm state its theorem. Where the two disagree the docstring says
so.

Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
Private Optimization with Sparse Gradients" (2024). Theorems are named as the
source of the paper labels them.
"""

from tf_sparse_dp.theory.algorithm_rates import (
    bias_reduced_convex,
    bias_reduced_nonconvex,
    exponential_mechanism,
    output_perturbation_erm,
    output_perturbation_sco,
)
from tf_sparse_dp.theory.bound import CONSTANT, DENSE, SPARSE, Bound
from tf_sparse_dp.theory.mean_rates import (
    block_lower,
    compressed_sensing,
    dense_rate,
    mean_lower,
    mean_upper,
    packing_lower,
    projection,
)
from tf_sparse_dp.theory.risk_rates import (
    erm_lower,
    erm_upper,
    sco_lower,
    sco_upper,
    stationarity_upper,
)

__all__ = [
    "Bound",
    "CONSTANT",
    "DENSE",
    "SPARSE",
    "bias_reduced_convex",
    "bias_reduced_nonconvex",
    "block_lower",
    "compressed_sensing",
    "dense_rate",
    "erm_lower",
    "erm_upper",
    "exponential_mechanism",
    "mean_lower",
    "mean_upper",
    "output_perturbation_erm",
    "output_perturbation_sco",
    "packing_lower",
    "projection",
    "sco_lower",
    "sco_upper",
    "stationarity_upper",
]
