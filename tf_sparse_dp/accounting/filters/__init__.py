"""Budgets for events that are chosen as training goes."""

from tf_sparse_dp.accounting.filters.interface import PrivacyFilter

__all__ = ["PrivacyFilter"]
