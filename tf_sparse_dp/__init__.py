"""Private training of recommenders with large embedding tables, in Keras."""

from tf_sparse_dp import audit, convex, integrations, layers, rules, theory
from tf_sparse_dp.accounting import (
    ApproxDpEvent,
    ApproxDPFilter,
    BiasReducedBudget,
    FailingDpEvent,
    Ledger,
    LedgerFile,
    LedgerHeader,
    PldFilter,
    PrivacyFilter,
    PrivacyOdometer,
    PrivacyPlan,
    PrivacyStatement,
    PublicMixtureDpEvent,
    RenyiFilter,
    SelectionPlan,
    SharedBudget,
    ZcdpFilter,
    batch_size_for_budget,
    noise_for_budget,
    selection_budget,
    steps_for_budget,
)
from tf_sparse_dp.callbacks import PrivacyBudget
from tf_sparse_dp.errors import (
    BudgetExhausted,
    NotSeparableError,
    PrivacyStateError,
    PrivacyWarning,
)
from tf_sparse_dp.explanation import explain
from tf_sparse_dp.gradients.explain import Explanation
from tf_sparse_dp.gradients.per_example import (
    PerExampleGradients,
    per_example_gradients,
)
from tf_sparse_dp.iterates import (
    AverageIterate,
    ProjectedIterate,
    RandomIterate,
)
from tf_sparse_dp.mean_estimation import PrivateMean, private_mean
from tf_sparse_dp.mechanisms import (
    BiasReduction,
    CompressedSensing,
    FrequencySelection,
    Gaussian,
    Laplace,
    PartitionSelection,
    Projection,
    Threshold,
)
from tf_sparse_dp.optimizers import DPSparseOptimizer, DualAveraging
from tf_sparse_dp.private_selection import SelectionResult, private_selection
from tf_sparse_dp.sampling import (
    BiasReducedSampling,
    EpochSampling,
    PoissonSampling,
    RandomAccess,
    UserSampling,
    VaryingPoissonSampling,
)
from tf_sparse_dp.separability import SeparabilityReport, check_separable
from tf_sparse_dp.version import __version__

__all__ = [
    "ApproxDPFilter",
    "ApproxDpEvent",
    "AverageIterate",
    "BiasReducedBudget",
    "BiasReducedSampling",
    "BiasReduction",
    "BudgetExhausted",
    "CompressedSensing",
    "DPSparseOptimizer",
    "DualAveraging",
    "EpochSampling",
    "Explanation",
    "FailingDpEvent",
    "FrequencySelection",
    "Gaussian",
    "Laplace",
    "Ledger",
    "LedgerFile",
    "LedgerHeader",
    "NotSeparableError",
    "PartitionSelection",
    "PerExampleGradients",
    "PldFilter",
    "PoissonSampling",
    "PrivacyBudget",
    "PrivacyFilter",
    "PrivacyOdometer",
    "PrivacyPlan",
    "PrivacyStateError",
    "PrivacyStatement",
    "PrivacyWarning",
    "PrivateMean",
    "ProjectedIterate",
    "Projection",
    "PublicMixtureDpEvent",
    "RandomAccess",
    "RandomIterate",
    "RenyiFilter",
    "SelectionPlan",
    "SelectionResult",
    "SeparabilityReport",
    "SharedBudget",
    "Threshold",
    "UserSampling",
    "VaryingPoissonSampling",
    "ZcdpFilter",
    "__version__",
    "audit",
    "batch_size_for_budget",
    "check_separable",
    "convex",
    "explain",
    "integrations",
    "layers",
    "noise_for_budget",
    "per_example_gradients",
    "private_mean",
    "private_selection",
    "rules",
    "selection_budget",
    "steps_for_budget",
    "theory",
]
