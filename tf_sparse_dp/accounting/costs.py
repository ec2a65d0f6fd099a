"""What an event costs in Rényi divergence."""

from tf_sparse_dp.accounting.divergences import poisson_gaussian_divergence

__all__ = ["poisson_gaussian_divergence"]
