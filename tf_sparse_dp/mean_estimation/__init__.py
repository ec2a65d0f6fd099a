"""Private means of vectors, outside training."""

from tf_sparse_dp.mean_estimation.estimator import PrivateMean, private_mean

__all__ = ["PrivateMean", "private_mean"]
