"""Budgets for events that are chosen as training goes."""

from tf_sparse_dp.accounting.filters.approximate import ApproxDPFilter
from tf_sparse_dp.accounting.filters.bias_reduced import BiasReducedFilter
from tf_sparse_dp.accounting.filters.children import ChildFilter
from tf_sparse_dp.accounting.filters.concentrated import ZcdpFilter
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.filters.pld import PldFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter
from tf_sparse_dp.accounting.filters.shared import SharedBudget

__all__ = [
    "ApproxDPFilter",
    "BiasReducedFilter",
    "ChildFilter",
    "PldFilter",
    "PrivacyFilter",
    "RenyiFilter",
    "SharedBudget",
    "ZcdpFilter",
]
