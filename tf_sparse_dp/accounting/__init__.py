"""What training costs in privacy: plans, budgets, events, and statements.

Nothing here needs TensorFlow.
"""

from tf_sparse_dp.accounting.bias_reduced_sgd import BiasReducedBudget
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
    SharedBudget,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.for_budget import (
    batch_size_for_budget,
    noise_for_budget,
    steps_for_budget,
)
from tf_sparse_dp.accounting.ledger import Ledger
from tf_sparse_dp.accounting.ledger_file import LedgerFile
from tf_sparse_dp.accounting.ledger_header import LedgerHeader
from tf_sparse_dp.accounting.odometer import PrivacyOdometer
from tf_sparse_dp.accounting.plan import PrivacyPlan
from tf_sparse_dp.accounting.selection import SelectionPlan
from tf_sparse_dp.accounting.selection_budget import selection_budget
from tf_sparse_dp.accounting.statement import (
    PrivacyStatement,
    privacy_statement,
)

__all__ = [
    "ApproxDPFilter",
    "ApproxDpEvent",
    "BiasReducedBudget",
    "FailingDpEvent",
    "Ledger",
    "LedgerFile",
    "LedgerHeader",
    "PldFilter",
    "PrivacyFilter",
    "PrivacyOdometer",
    "PrivacyPlan",
    "PrivacyStatement",
    "PublicMixtureDpEvent",
    "RenyiFilter",
    "Sampling",
    "SelectionPlan",
    "SharedBudget",
    "ZcdpFilter",
    "batch_size_for_budget",
    "noise_for_budget",
    "privacy_statement",
    "selection_budget",
    "steps_for_budget",
]
