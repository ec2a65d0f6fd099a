"""Parts of a budget for several models or runs."""

from __future__ import annotations

from typing import Any, NoReturn

import dp_accounting

from tf_sparse_dp.accounting.composition import composed_epsilon
from tf_sparse_dp.accounting.filters.interface import PrivacyFilter
from tf_sparse_dp.accounting.reservations import Reservation
from tf_sparse_dp.errors import PrivacyStateError


class ChildFilter(PrivacyFilter):
    """One of several that spend one budget; made by `PrivacyFilter.child`.

    **Guarantee**: what all children of a filter release, together with what
    the filter itself paid for, is within the filter's budget. So is whatever
    is made of it: who trains five models as five children, looks at all of
    them and keeps the best has paid for looking, since all five are composed.

    Children may take turns in any order, and choose what to release by what
    others have released meanwhile. Put in the order in which they were made,
    all releases are one sequence, of which each was paid for before it was
    made (`accounting.reservations`), which is all that a filter's theorem asks
    for. **Assumption**: a release is made at one moment, with fresh randomness
    of its own, from the data and from earlier releases; of several at the same
    moment none depends on the others. A mechanism that answers again and again
    under one event, such as tree aggregation, needs more: that filters hold
    for mechanisms that are questioned in turns is proven by Haney, Shoemate,
    Tian, Vadhan, Vyrros, Xu and Zhang, *Concurrent composition for interactive
    differential privacy with adaptive privacy-loss parameters* (2023), for
    (ε, δ)-DP and for Rényi DP of one fixed order: `ApproxDPFilter`,
    `ZcdpFilter`, and `RenyiFilter` with a single order.

    With a cap, what the child releases is by itself within the cap's budget.

    Args:
      name: Of the model or run.
      parent: Whose budget it is.
      cap: A new filter of its own, or None.
    """

    def __init__(
        self, name: str, parent: PrivacyFilter, cap: PrivacyFilter | None
    ):
        budget = parent if cap is None else cap
        super().__init__(
            budget.epsilon, budget.delta, parent.neighboring_relation
        )
        if cap is not None and (
            cap.neighboring_relation is not parent.neighboring_relation
            or cap.entries
            or cap is parent
        ):
            raise ValueError(
                f"cap is {cap!r} for {cap.neighboring_relation} with "
                f"{len(cap.entries)} entries, expected a filter of which "
                f"nothing was spent, for {parent.neighboring_relation}. Make "
                "one for this child alone."
            )
        self._name = name
        self._parent = parent
        self._cap = cap
        self._lock = parent._lock  # One for the whole family.
        self._above: dict[
            Reservation, list[tuple[PrivacyFilter, Reservation]]
        ] = {}

    @property
    def name(self) -> str:
        """Of the model or run."""
        return self._name

    @property
    def _payers(self) -> tuple[PrivacyFilter, ...]:
        """The cap first: only this process spends it."""
        if self._cap is None:
            return (self._parent,)
        return self._cap, self._parent

    def events_of(self, run: str) -> int:
        """How many events of a run are charged, in the child and above."""
        with self._lock:
            return min(payer.events_of(run) for payer in self._payers)

    def compose(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        run: str | None = None,
    ) -> ChildFilter:
        with self._lock:
            self._check_process()
            self.can_spend(event, count)  # Raises if a payer cannot say.
            for payer in self._payers:
                payer.compose(event, count, run=run)
            self._charge(event, count, run=run)
        return self

    def reserve(
        self,
        event: dp_accounting.DpEvent,
        count: int = 1,
        *,
        at_least: int | None = None,
        run: str | None = None,
    ) -> Reservation:
        with self._lock:
            self._check_process()
            above: list[tuple[PrivacyFilter, Reservation]] = []
            try:
                for payer in self._payers:
                    part = payer.reserve(
                        event, count, at_least=at_least, run=run
                    )
                    above.append((payer, part))
                    # The parent may pay for fewer than the cap.
                    at_least = count if at_least is None else at_least
                    count = part.count
                reservation = self._hold(event, count, run)
            except BaseException:
                for payer, part in above:
                    payer.settle(part, 0)
                raise
            self._above[reservation] = above
            return reservation

    def settle(self, reservation: Reservation, used: int) -> None:
        with self._lock:
            self._check_reserved(reservation)
            used = reservation.check_used(used)
            above = self._above[reservation]
            while above:  # A file may fail; then the rest is tried again.
                payer, part = above[0]
                payer.settle(part, used)
                above.pop(0)
            del self._above[reservation]
            super().settle(reservation, used)

    def can_spend(self, event: dp_accounting.DpEvent, count: int = 1) -> bool:
        with self._lock:
            return all(
                [payer.can_spend(event, count) for payer in self._payers]
            )

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        return self.can_spend(event, count)

    def remaining(self) -> float:
        with self._lock:
            return min(payer.remaining() for payer in self._payers)

    def get_epsilon(self, target_delta: float) -> float:
        """Of what this child spent, had it been fixed beforehand."""
        if self._cap is not None:
            return float(self._cap.get_epsilon(target_delta))
        return composed_epsilon(
            self.entries,
            delta=target_delta,
            neighboring_relation=self.neighboring_relation,
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "name": self._name,
            "parent": {
                "class_name": type(self._parent).__name__,
                "config": self._parent.get_config(),
            },
            "cap": None
            if self._cap is None
            else {
                "class_name": type(self._cap).__name__,
                "config": self._cap.get_config(),
            },
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NoReturn:
        """Refuses: a budget of its own is not what a child has.

        Raises:
          PrivacyStateError: Always, saying what to do.
        """
        raise PrivacyStateError(
            f"The child {config.get('name')!r} cannot be made from its config: "
            "its budget is its parent's, which others spend as well. Make a "
            "child of that, and an optimizer with it, and restore the state "
            "of the saved one (load the model with compile=False, compile it, "
            "and restore a checkpoint)."
        )

    def _maybe_compose(
        self, event: dp_accounting.DpEvent, count: int, do_compose: bool
    ) -> Any:
        # Payers compose by themselves; a child only keeps its entries.
        for payer in self._payers:
            error = payer._maybe_compose(event, count, False)
            if error is not None:
                return error
        return None

    def _forget(self) -> None:
        pass  # Sums are kept by the payers.

    def __repr__(self) -> str:
        return f"<child {self._name!r} of {self._parent!r}>"
