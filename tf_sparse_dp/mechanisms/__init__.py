"""From clipped sums to private sums."""

from tf_sparse_dp.mechanisms.frequency_selection import FrequencySelection
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism
from tf_sparse_dp.mechanisms.partition_selection import PartitionSelection

__all__ = ["FrequencySelection", "Gaussian", "Mechanism", "PartitionSelection"]
