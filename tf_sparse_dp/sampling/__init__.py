"""Who is in a batch: the only part of the library that sees examples."""

from __future__ import annotations

from tf_sparse_dp.sampling.bias_reduced import BiasReducedSampling
from tf_sparse_dp.sampling.epochs import EpochSampling
from tf_sparse_dp.sampling.padding import VALIDITY_DTYPE, is_validity_column
from tf_sparse_dp.sampling.poisson import PoissonSampling
from tf_sparse_dp.sampling.sources import RandomAccess
from tf_sparse_dp.sampling.step_kinds import (
    DrawnPart,
    StepKind,
    kind_of,
    step_kinds,
)
from tf_sparse_dp.sampling.truncated_geometric import TruncatedGeometric
from tf_sparse_dp.sampling.units import UserSampling
from tf_sparse_dp.sampling.varying import VaryingPoissonSampling

__all__ = [
    "VALIDITY_DTYPE",
    "BiasReducedSampling",
    "DrawnPart",
    "EpochSampling",
    "PoissonSampling",
    "RandomAccess",
    "StepKind",
    "TruncatedGeometric",
    "UserSampling",
    "VaryingPoissonSampling",
    "is_validity_column",
    "kind_of",
    "step_kinds",
]
