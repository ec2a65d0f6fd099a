"""Private convex optimization outside of training, with sparse data."""

from __future__ import annotations

from typing import Any

from tf_sparse_dp.convex.domains import Ball, Box, Unconstrained
from tf_sparse_dp.convex.exponential import SparseExponentialMechanism
from tf_sparse_dp.convex.exponential_release import ExponentialRelease
from tf_sparse_dp.convex.output_perturbation import OutputPerturbation
from tf_sparse_dp.convex.private_weights import PrivateWeights

# Without the estimators, so that a star import needs no scikit-learn.
__all__ = [
    "Ball",
    "Box",
    "ExponentialRelease",
    "OutputPerturbation",
    "PrivateWeights",
    "SparseExponentialMechanism",
    "Unconstrained",
]


def __getattr__(name: str) -> Any:
    """Imports what needs scikit-learn, an optional extra, when it is used."""
    if name in ("OutputPerturbationClassifier", "OutputPerturbationRegressor"):
        from tf_sparse_dp.convex import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
