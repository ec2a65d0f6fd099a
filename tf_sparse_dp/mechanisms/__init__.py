"""From clipped sums to private sums."""

from tf_sparse_dp.mechanisms.automatic import Automatic
from tf_sparse_dp.mechanisms.bias_reduction import BiasReduction
from tf_sparse_dp.mechanisms.compressed_sensing import CompressedSensing
from tf_sparse_dp.mechanisms.frequency_selection import FrequencySelection
from tf_sparse_dp.mechanisms.gaussian import Gaussian
from tf_sparse_dp.mechanisms.interface import Mechanism
from tf_sparse_dp.mechanisms.laplace import Laplace
from tf_sparse_dp.mechanisms.partition_selection import PartitionSelection
from tf_sparse_dp.mechanisms.projection import Projection
from tf_sparse_dp.mechanisms.threshold import Threshold

__all__ = [
    "BiasReduction",
    "CompressedSensing",
    "Automatic",
    "FrequencySelection",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "PartitionSelection",
    "Projection",
    "Threshold",
]
