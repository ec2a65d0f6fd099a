"""What the model of a private selection may claim."""

from __future__ import annotations

import dataclasses

from tf_sparse_dp.accounting.adaptive_plan import Plan
from tf_sparse_dp.accounting.calibration import shown
from tf_sparse_dp.accounting.statement import PrivacyStatement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    r"""That a model was chosen among several runs, and what that cost.

    **Guarantee**: the selection's, $(\varepsilon, \delta)$, in place of the one
    run's. Steps after it are charged with all of the run's plan once more,
    $\varepsilon + \varepsilon_1$ at $\delta + \delta_1$ (basic composition,
    which holds whatever they depend on).

    Args:
      epsilon: Of the whole selection.
      delta: Of the whole selection.
      compositions: What the run had taken when it was selected.

    Example:
      >>> Selected(epsilon=3.0, delta=1e-6, compositions=100).epsilon
      3.0
    """

    epsilon: float
    delta: float
    compositions: int

    def stated(
        self, statement: PrivacyStatement, plan: Plan | None
    ) -> PrivacyStatement:
        """The statement of the run, with the figures of the selection."""
        told = (
            "It was selected among several runs, and the figure is that of the "
            f"whole selection: epsilon = {shown(self.epsilon)} at delta = "
            f"{shown(self.delta)}."
        )
        before, delta = statement.spent_before
        epsilon, delta = before + self.epsilon, delta + self.delta
        more = statement.compositions - self.compositions
        if more > 0 and plan is not None:
            epsilon, delta = epsilon + plan.epsilon, delta + plan.delta
            told += (
                f" Afterwards {more} more were taken, for which all of the "
                f"run's budget, epsilon = {shown(plan.epsilon)} at delta = "
                f"{shown(plan.delta)}, is added."
            )
        if statement.epsilon is None:  # There is no claim to replace.
            return dataclasses.replace(statement, selected=told)
        return dataclasses.replace(
            statement,
            selected=told,
            epsilon=epsilon,
            epsilon_spent=epsilon,
            delta=delta,
        )
