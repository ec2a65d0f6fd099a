"""Who is in a batch: the only part of the library that sees examples."""

from __future__ import annotations

from tf_sparse_dp.sampling.epochs import EpochSampling
from tf_sparse_dp.sampling.padding import VALIDITY_DTYPE, is_validity_column
from tf_sparse_dp.sampling.poisson import PoissonSampling
from tf_sparse_dp.sampling.sources import RandomAccess
from tf_sparse_dp.sampling.units import UserSampling

__all__ = [
    "VALIDITY_DTYPE",
    "EpochSampling",
    "PoissonSampling",
    "RandomAccess",
    "UserSampling",
    "is_validity_column",
]
