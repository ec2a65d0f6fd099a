"""What other libraries' users need to train privately."""

from tf_sparse_dp.integrations import recommenders

__all__ = ["recommenders"]
