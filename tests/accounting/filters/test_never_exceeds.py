"""No sequence of events, however it is chosen, exceeds a budget.

What was spent is added up once more in whole numbers of 2^-240, from costs and
budgets that mpmath finds with 90 digits by formulas written down here anew.
`pytest --sequences 100000` tries more of them than the default; the last time
on 2026-11-18, on each of three filters: none exceeds.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import dp_accounting
import mpmath
import pytest
from mpmath import mpf

from tf_sparse_dp import (
    ApproxDpEvent,
    ApproxDPFilter,
    BudgetExhausted,
    FailingDpEvent,
    PrivacyFilter,
    PublicMixtureDpEvent,
    RenyiFilter,
    ZcdpFilter,
)
from tf_sparse_dp.accounting.filters.additive import AdditiveFilter

pytestmark = [pytest.mark.once]

BITS = 240
Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent


@pytest.fixture(autouse=True)
def digits() -> Any:
    with mpmath.workdps(90):
        yield


def whole(value: Any, up: bool) -> int:
    scaled = mpf(value) * mpf(2) ** BITS
    return int(mpmath.ceil(scaled) if up else mpmath.floor(scaled))


# What releases cost, exactly.


def renyi(event: Any, alpha: int) -> mpf:
    """Divergence at an integer order, from the moment of the ratio."""
    match event:
        case Gaussian():
            return mpf(alpha) / (2 * mpf(event.noise_multiplier) ** 2)
        case Laplace():
            return mpmath.log(_laplace_moment(event, alpha)) / (alpha - 1)
        case Poisson():
            q = mpf(event.sampling_probability)
            moment = mpmath.fsum(
                mpmath.binomial(alpha, k)
                * q**k
                * (1 - q) ** (alpha - k)
                * (
                    mpmath.exp((k - 1) * renyi(event.event, k))
                    if k > 1
                    else mpf(1)
                )
                for k in range(alpha + 1)
            )
            return mpmath.log(moment) / (alpha - 1)
        case ApproxDpEvent():
            grown = mpmath.exp(mpf(event.epsilon))
            moment = (grown**alpha + grown ** (1 - alpha)) / (1 + grown)
            return mpmath.log(moment) / (alpha - 1)
        case FailingDpEvent():
            return renyi(event.event, alpha)
        case PublicMixtureDpEvent():
            moment = mpmath.fsum(
                mpf(p) * mpmath.exp((alpha - 1) * renyi(part, alpha))
                for p, part in zip(
                    event.probabilities, event.events, strict=True
                )
            )
            return mpmath.log(moment) / (alpha - 1)
        case dp_accounting.SelfComposedDpEvent():
            return event.count * renyi(event.event, alpha)
        case dp_accounting.ComposedDpEvent():
            return mpmath.fsum(renyi(part, alpha) for part in event.events)
    raise TypeError(event)


def _laplace_moment(event: Any, k: int) -> mpf:
    loss = 1 / mpf(event.noise_multiplier)
    rise = k * mpmath.exp((k - 1) * loss)
    return (rise + (k - 1) * mpmath.exp(-k * loss)) / (2 * k - 1)


def concentrated(event: Any) -> mpf:
    match event:
        case Gaussian() | Laplace():
            return 1 / (2 * mpf(event.noise_multiplier) ** 2)
        case ApproxDpEvent():
            return mpf(event.epsilon) ** 2 / 2
        case FailingDpEvent():
            return concentrated(event.event)
        case PublicMixtureDpEvent():
            return max(concentrated(part) for part in event.events)
        case dp_accounting.SelfComposedDpEvent():
            return event.count * concentrated(event.event)
        case dp_accounting.ComposedDpEvent():
            return mpmath.fsum(concentrated(part) for part in event.events)
    raise TypeError(event)


def squared(event: Any) -> mpf:
    if isinstance(event, Poisson):
        inner = mpmath.sqrt(squared(event.event))
        q = mpf(event.sampling_probability)
        return mpmath.log(1 + q * mpmath.expm1(inner)) ** 2
    return 2 * concentrated(event)


def revealed(event: Any) -> tuple[mpf, mpf]:
    """The sums of deltas and of failures."""
    match event:
        case ApproxDpEvent():
            return mpf(event.delta), mpf(0)
        case FailingDpEvent():
            delta, failure = revealed(event.event)
            return delta, failure + mpf(event.failure_probability)
        case Poisson():
            delta, failure = revealed(event.event)
            return delta * mpf(event.sampling_probability), failure
        case PublicMixtureDpEvent():
            parts = [revealed(part) for part in event.events]
            weights = [mpf(p) for p in event.probabilities]
            return tuple(
                mpmath.fsum(
                    w * part[i] for w, part in zip(weights, parts, strict=True)
                )
                for i in (0, 1)
            )
        case dp_accounting.SelfComposedDpEvent():
            return tuple(event.count * part for part in revealed(event.event))
        case dp_accounting.ComposedDpEvent():
            parts = [revealed(part) for part in event.events]
            return tuple(
                mpmath.fsum(column) for column in zip(*parts, strict=True)
            )
    return mpf(0), mpf(0)


# Budgets, exactly.


def renyi_budget(epsilon: float, delta: Any, alpha: Any) -> mpf:
    """Where the bound on delta of Canonne, Kamath and Steinke is delta."""
    a = mpf(alpha)
    log = mpmath.log(delta) + mpmath.log(a - 1) - a * mpmath.log(1 - 1 / a)
    return mpf(epsilon) + log / (a - 1)


@dataclasses.dataclass
class Account:
    """A filter's kind, its events, and the exact numbers of both."""

    make: Callable[[], AdditiveFilter]
    events: list[Any]
    budgets: list[int]
    event_delta: int
    sizes: dict[Any, list[int]]
    charges: dict[Any, int]

    def __post_init__(self) -> None:
        self.nearly = {
            event: [size / 2**BITS for size in sizes]
            for event, sizes in self.sizes.items()
        }

    @classmethod
    def of(
        cls,
        make: Callable[[], AdditiveFilter],
        events: list[Any],
        budgets: list[mpf],
        size: Callable[[Any], list[mpf]],
    ) -> Account:
        made = make()
        price = 1 + mpmath.exp(mpf(made.epsilon))
        charges = {e: revealed(e) for e in events}
        return cls(
            make,
            events,
            [whole(b, up=False) for b in budgets],
            whole(made.event_delta, up=False),
            {e: [whole(s, up=True) for s in size(e)] for e in events},
            {e: whole(d + price * p, True) for e, (d, p) in charges.items()},
        )

    def exceeded(self, spent: list[tuple[Any, int]]) -> bool:
        totals = [0] * len(self.budgets)
        charge = 0
        for event, count in spent:
            charge += count * self.charges[event]
            for place, size in enumerate(self.sizes[event]):
                totals[place] += count * size
        within = any(t <= b for t, b in zip(totals, self.budgets, strict=True))
        return not within or charge > self.event_delta


def _quotient(limit: float, gone: float, size: float) -> float:
    return (limit - gone) / size


def adversary(
    rng: random.Random, account: Account, budget: AdditiveFilter
) -> list[tuple[Any, int]]:
    """Spends what is left, aiming at the very edge, and hopes for more."""
    spent = []
    limits = budget.budgets.tolist()
    for _ in range(rng.randint(1, 5)):
        event = rng.choice(account.events)
        gone = budget.spent.tolist()
        left = max(map(_quotient, limits, gone, account.nearly[event]))
        edge = min(max(int(left), 0), 2**52)
        some = int(edge * rng.random())
        count = max(1, rng.choice((1, some, edge, edge + 1)))
        try:
            budget.spend(event, count)
        except BudgetExhausted:
            if rng.random() < 0.5:
                break
        else:
            spent.append((event, count))
    return spent


def pool(rng: random.Random, event_delta: float) -> list[Any]:
    """Releases without sampling, of very different sizes."""

    def log_uniform(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    releases: list[Any] = []
    for _ in range(6):
        noise = log_uniform(0.5, 1e5)
        pure = ApproxDpEvent(log_uniform(1e-6, 1.0))
        small = log_uniform(1e-9, 1.0) * event_delta
        releases += [
            Gaussian(noise),
            Laplace(noise),
            pure,
            ApproxDpEvent(pure.epsilon, small),
            FailingDpEvent(Gaussian(noise), small / 100),
            dp_accounting.SelfComposedDpEvent(Laplace(noise), 3),
            dp_accounting.ComposedDpEvent((Gaussian(2 * noise), pure)),
            PublicMixtureDpEvent((0.75, 0.25), (Gaussian(noise), pure)),
        ]
    return releases


def without_gaussians(event: Any) -> bool:
    return "Gaussian" not in repr(event)


def renyi_accounts(rng: random.Random) -> list[Account]:
    accounts = []
    for epsilon, delta, orders in (
        (0.3, 1e-5, [48, 64]),
        (1.0, 1e-6, [14, 20, 26]),
        (3.0, 1e-6, [7]),
        (8.0, 1e-9, [2, 3, 4, 6]),
    ):

        def make(e=epsilon, d=delta, o=orders) -> RenyiFilter:
            return RenyiFilter(epsilon=e, delta=d, orders=o)

        event_delta = make().event_delta
        share = (mpf(delta) - mpf(event_delta)) / len(orders)
        events = pool(rng, event_delta)
        for _ in range(4):
            q = 10 ** rng.uniform(-4, -0.5)
            z = 10 ** rng.uniform(0, 2)
            events += [
                Poisson(q, Gaussian(z)),
                Poisson(q, Laplace(z)),
                FailingDpEvent(Poisson(q, Gaussian(z)), event_delta / 1e4),
            ]
        budgets = [renyi_budget(epsilon, share, a) for a in orders]
        accounts.append(
            Account.of(
                make,
                events,
                budgets,
                lambda event, o=orders: [renyi(event, a) for a in o],
            )
        )
    return accounts


def zcdp_accounts(rng: random.Random) -> list[Account]:
    accounts = []
    for epsilon, delta in ((0.01, 1e-10), (1.0, 1e-5), (3.0, 1e-6), (20, 0.01)):

        def make(e=epsilon, d=delta) -> ZcdpFilter:
            return ZcdpFilter(epsilon=e, delta=d)

        event_delta = make().event_delta
        rest = mpf(delta) - mpf(event_delta)

        def rate(log: float, e=epsilon, d=rest) -> float:
            a = 1 + math.exp(log)
            return float(renyi_budget(e, d, a) / a)

        # Golden sections: the best order, and so the largest budget.
        low, high = -8.0, 20.0
        for _ in range(60):
            left, right = low + (high - low) * 0.382, low + (high - low) * 0.618
            if rate(left) < rate(right):
                low = left
            else:
                high = right
        best = 1 + mpmath.exp(mpf(low))
        accounts.append(
            Account.of(
                make,
                pool(rng, event_delta),
                [renyi_budget(epsilon, rest, best) / best],
                lambda event: [concentrated(event)],
            )
        )
    return accounts


def approximate_accounts(rng: random.Random) -> list[Account]:
    accounts = []
    for epsilon, delta in ((0.01, 1e-10), (1.0, 1e-5), (3.0, 1e-6), (20, 0.01)):

        def make(e=epsilon, d=delta) -> ApproxDPFilter:
            return ApproxDPFilter(epsilon=e, delta=d)

        event_delta = make().event_delta
        log = -2 * mpmath.log(mpf(delta) - mpf(event_delta))
        root = mpmath.sqrt(log + 2 * mpf(epsilon)) - mpmath.sqrt(log)
        events = list(filter(without_gaussians, pool(rng, event_delta)))
        for _ in range(4):
            q = 10 ** rng.uniform(-4, -0.5)
            e = 10 ** rng.uniform(-5, 0.3)
            events += [
                Poisson(q, ApproxDpEvent(e, event_delta / 100)),
                Poisson(q, Laplace(1 / e)),
            ]
        accounts.append(
            Account.of(make, events, [root**2], lambda e: [squared(e)])
        )
    return accounts


KINDS = {
    "renyi": renyi_accounts,
    "zcdp": zcdp_accounts,
    "approximate": approximate_accounts,
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_sequence_exceeds_the_budget(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sequences = request.config.getoption("--sequences")
    rng = random.Random(20230613)
    accounts = KINDS[kind](rng)
    releases = 0
    for number in range(sequences):
        account = accounts[number % len(accounts)]
        spent = adversary(rng, account, account.make())
        releases += len(spent)
        assert not account.exceeded(spent), (account.make(), spent)
    assert releases > sequences / 2  # It is not that all was refused.


class Lagging(ZcdpFilter):
    """Asks what was spent before, as a loop does that checks afterwards."""

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        return bool(self.spent[0] <= self.budgets[0])


class Careless(ZcdpFilter):
    """Does not count what events reveal with small probability."""

    def _fits(self, event: dp_accounting.DpEvent, count: int) -> bool:
        return bool(self._after(event, count).sizes[0] <= self.budgets[0])


@pytest.mark.parametrize("wrong", [Lagging, Careless])
def test_the_search_finds_filters_that_are_wrong(
    wrong: type[PrivacyFilter],
) -> None:
    rng = random.Random(20230613)
    accounts = zcdp_accounts(rng)
    found = 0
    for number in range(400):
        account = accounts[number % len(accounts)]
        right = account.make()
        budget = wrong(epsilon=right.epsilon, delta=right.delta)
        found += account.exceeded(adversary(rng, account, budget))
    assert found
