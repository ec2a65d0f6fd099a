"""The rates of sparse private optimization, and data on which they bite.

`rates` has Tables 1 and 2 of the paper and the theorems behind them as
functions, `regime` says in words where a problem stands, and `hard_instances`
generates the data sets of the lower bounds.

Reference: Ghazi, Guzmán, Kamath, Kumar and Manurangsi, "Differentially
Private Optimization with Sparse Gradients" (2024).
"""

from tf_sparse_dp.theory import hard_instances, rates
from tf_sparse_dp.theory.rates import Bound
from tf_sparse_dp.theory.regimes import Regime, regime

__all__ = ["Bound", "Regime", "hard_instances", "rates", "regime"]
