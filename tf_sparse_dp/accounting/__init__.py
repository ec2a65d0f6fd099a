"""What training costs in privacy: plans, their events, and statements.

Nothing here needs TensorFlow.
"""

from tf_sparse_dp.accounting.events import Sampling
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.statement import (
    PrivacyStatement,
    privacy_statement,
)

__all__ = ["PrivacyPlan", "PrivacyStatement", "Sampling", "privacy_statement"]
