"""How a budget pays for output perturbation."""

from __future__ import annotations

import dp_accounting
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting import ApproxDpEvent, PrivacyFilter

_REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def pay(
    budget: PrivacyFilter, epsilon: float, delta: float, multiplier: float
) -> None:
    """Takes one release out of a budget, before the data are used.

    Args:
      budget: For `NeighboringRelation.REPLACE_ONE`.
      epsilon: The release's.
      delta: The release's; 0 where its noise is Laplace, else it is Gaussian.
      multiplier: Noise over the sensitivity.

    Raises:
      BudgetExhausted: The budget does not suffice; nothing was taken.
      ValueError: The budget is for another relation.
    """
    if budget.neighboring_relation is not _REPLACE_ONE:
        raise ValueError(
            f"{budget!r} is for {budget.neighboring_relation}, expected "
            "REPLACE_ONE, for which output perturbation is private. Make "
            "a filter with neighboring_relation=REPLACE_ONE."
        )
    # Filters take noise over the norm of one unit: replacing moves two.
    event: dp_accounting.DpEvent
    if delta == 0:
        event = dp_accounting.LaplaceDpEvent(2 * multiplier)
    else:
        event = dp_accounting.GaussianDpEvent(2 * multiplier)
    try:
        budget.can_spend(event)
    except privacy_accountant.UnsupportedEventError:
        event = ApproxDpEvent(epsilon, delta)
    budget.spend(event)
