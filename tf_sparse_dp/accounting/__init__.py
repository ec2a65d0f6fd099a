"""What training costs in privacy: plans, budgets, events, and statements.

Nothing here needs TensorFlow.
"""

from tf_sparse_dp.accounting.dp_events import (
    ApproxDpEvent,
    FailingDpEvent,
    PublicMixtureDpEvent,
)
from tf_sparse_dp.accounting.events import Sampling
from tf_sparse_dp.accounting.filters import (
    ApproxDPFilter,
    PldFilter,
    PrivacyFilter,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.statement import (
    PrivacyStatement,
    privacy_statement,
)

__all__ = [
    "ApproxDPFilter",
    "ApproxDpEvent",
    "FailingDpEvent",
    "PldFilter",
    "PrivacyFilter",
    "PrivacyPlan",
    "PrivacyStatement",
    "PublicMixtureDpEvent",
    "RenyiFilter",
    "Sampling",
    "ZcdpFilter",
    "privacy_statement",
]
