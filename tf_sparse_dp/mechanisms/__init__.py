"""From clipped sums to private sums."""

from tf_sparse_dp.mechanisms.frequency_selection import FrequencySelection
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism

__all__ = ["FrequencySelection", "Gaussian", "Mechanism"]
