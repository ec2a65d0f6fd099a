"""Budgets for events that are chosen as training goes."""

from tf_sparse_dp.accounting.filters.approximate import ApproxDPFilter
from tf_sparse_dp.accounting.filters.concentrated import ZcdpFilter
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.filters.pld import PldFilter
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter

__all__ = [
    "ApproxDPFilter",
    "PldFilter",
    "PrivacyFilter",
    "RenyiFilter",
    "ZcdpFilter",
]
