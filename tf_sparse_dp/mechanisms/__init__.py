"""From clipped sums to private sums."""

from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism

__all__ = ["Gaussian", "Mechanism"]
