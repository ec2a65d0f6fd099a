"""Epsilon of one event at a delta, by whichever account knows it."""

from __future__ import annotations

import dp_accounting
from dp_accounting import privacy_accountant

from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.accounting.filters.renyi import RenyiFilter

_Relation = dp_accounting.NeighboringRelation
# Nothing is stopped here, so that any order may be the best one.
_ORDERS = (*range(2, 64), 96, 128, 192, 256, 384, 512, 768, 1024)


def event_epsilon(
    event: dp_accounting.DpEvent,
    delta: float,
    neighboring_relation: dp_accounting.NeighboringRelation,
) -> float:
    """The epsilon, rounded up; infinite if there is none.

    Losses of privacy where they are known for the event; Rényi divergences
    elsewhere, also where a unit is replaced, which moves sums by twice the
    norm that noise multipliers refer to.

    Raises:
      UnsupportedEventError: No account knows the event.
    """
    if neighboring_relation is not _Relation.REPLACE_ONE:
        try:
            return composed_epsilon(
                [(event, 1)],
                delta=delta,
                neighboring_relation=neighboring_relation,
            )
        except privacy_accountant.UnsupportedEventError:
            pass
    account = RenyiFilter(
        epsilon=1e3,
        delta=0.5,
        orders=_ORDERS,
        neighboring_relation=neighboring_relation,
    )
    return float(account.compose(event).get_epsilon(delta))
