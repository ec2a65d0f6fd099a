"""The rows of Tables 1 and 2: what is measured, over what, against which rate.

A `Row` is one algorithm in one row of a table. Those with the same `panel` are
drawn together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import paper_sgd
from paper_algorithms import exponential, mean, output_perturbation
from paper_data import DELTA, EPSILON, Outcome, Setting, block_data

import tf_sparse_dp as tsdp
from tf_sparse_dp.theory import rates

Rate = Callable[[Setting], rates.Bound]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One algorithm in one row of a table.

    Attributes:
      key: A short name.
      panel: The row of panels that it is drawn in.
      algorithm: What was measured.
      remark: What else one has to know.
      measure: From a setting, the number of trials and a seed for the data.
      upper: The rate from above, up to a constant.
      lower: The rate from below, up to a constant, or None.
      proven: A lower bound that is a number as it stands, or None.
      base: The setting at which the upper rate is scaled to what was measured.
      sweeps: By "n", "d" or "s", the values that it takes in place of that of
        `base`, which is one of them.
      nothing: The error of the initial point, zero, on the data for which it
        is largest: what one has without learning.
      trials: At each setting, in a full run.
      smoke_trials: In a small one.
    """

    key: str
    panel: str
    algorithm: str
    remark: str = ""
    measure: Callable[[Setting, int, int], Outcome]
    upper: Rate
    lower: Rate | None
    proven: Callable[[Setting, int], float] | None = None
    base: Setting
    sweeps: Mapping[str, tuple[int, ...]]
    nothing: float = 1.0
    trials: int = 8
    smoke_trials: int = 2

    def at(self, over: str, value: int) -> Setting:
        """The base, but for one of n, d and s."""
        return dataclasses.replace(self.base, **{over: value})

    def settings(self) -> list[Setting]:
        """All that are to be measured; those that sweeps share once."""
        return list(
            dict.fromkeys(
                self.at(over, value)
                for over, values in self.sweeps.items()
                for value in values
            )
        )

    def smaller(self) -> Row:
        """At two values each, and with few trials."""
        sweeps = {}
        for name, values in self.sweeps.items():
            base = getattr(self.base, name)
            sweeps[name] = tuple(sorted({min(values), base}))
            if len(sweeps[name]) == 1:
                sweeps[name] = values[:2]
        return dataclasses.replace(
            self, sweeps=sweeps, trials=self.smoke_trials
        )


def rows(smoke: bool) -> list[Row]:
    """All of them, of a size for minutes or for a quick look."""
    found = [*_mean_rows(smoke), *_convex_rows(smoke), *_sgd_rows(smoke)]
    return [row.smaller() for row in found] if smoke else found


def _rate(function: Callable[..., rates.Bound], **fixed: float) -> Rate:
    return lambda at: function(n=at.n, d=at.d, s=at.s, epsilon=EPSILON, **fixed)


def _mean_rows(smoke: bool) -> list[Row]:
    base = Setting(n=2**8 if smoke else 2**12, d=2**26, s=4)
    sweeps = {
        "n": (2**6, 2**8) if smoke else (2**10, 2**12, 2**14, 2**16),
        "d": (2**14, 2**18, 2**22, 2**26, 2**30),
        "s": (2, 4, 8, 16, 32),
    }
    narrow = Setting(n=2**13 if smoke else 2**14, d=64, s=4)
    many = (2**10, 2**13) if smoke else (2**12, 2**14, 2**16)
    found = []
    for name, delta in (("pure", 0.0), ("approximate", DELTA)):
        noise = "Laplace" if delta == 0 else "Gaussian"
        common = {
            "panel": f"Table 1, {name}: mean",
            "upper": _rate(rates.mean_upper, delta=delta),
            "lower": _rate(rates.mean_lower, delta=delta),
        }
        if delta == 0:
            common["lower"] = None
            common["proven"] = lambda at, seed: block_data(at, 0.0, seed)[1]
        measure = functools.partial(mean, delta=delta)
        found += [
            Row(
                key=f"mean, {name}",
                algorithm=f"private_mean: Projection, {noise} noise",
                measure=measure,
                base=base,
                sweeps=sweeps,
                **common,
            ),
            Row(
                key=f"mean, {name}, dense",
                algorithm=f"the same at d = {narrow.d}",
                remark="Here the last term of the minimum decides.",
                measure=measure,
                base=narrow,
                sweeps={"n": many},
                trials=32,
                smoke_trials=8,
                **common,
            ),
        ]
    few = (2**6, 2**7) if smoke else (2**7, 2**8, 2**9, 2**10)
    found.append(
        Row(
            key="mean, approximate, sensing",
            algorithm="private_mean: CompressedSensing",
            remark="The mechanism that the table cites. d is 128 n or more: "
            "with fewer coordinates it measures none, and adds noise to each.",
            measure=functools.partial(
                mean, delta=DELTA, mechanism=tsdp.CompressedSensing()
            ),
            base=Setting(n=few[1], d=128 * few[-1], s=4),
            sweeps={"n": few},
            trials=4,
            **common,
        )
    )
    return found


def _convex_rows(smoke: bool) -> list[Row]:
    d = 2**13 if smoke else 2**17
    base = Setting(n=2**9 if smoke else 2**12, d=d, s=4)
    sweeps = {
        "n": (2**7, 2**9) if smoke else tuple(2**k for k in range(10, 15)),
        "d": (d // 4, d, 4 * d),
        "s": (2, 4, 8, 16),
    }
    found = []
    for name, delta, loss in (
        ("approximate", DELTA, "linear losses on the unit ball"),
        ("pure", 0.0, "Huber losses"),
    ):
        for task, upper, lower in (
            ("ERM", rates.erm_upper, rates.erm_lower),
            ("SCO", rates.sco_upper, rates.sco_lower),
        ):
            row = Row(
                key=f"{task}, {name}",
                panel=f"Table 2, {name}: convex {task}",
                algorithm=f"OutputPerturbation, λ of the theorem, {loss}",
                measure=functools.partial(
                    output_perturbation, delta=delta, objective=task.lower()
                ),
                upper=_rate(upper, delta=delta),
                lower=_rate(lower, delta=delta),
                base=base,
                sweeps=sweeps,
                # Huber's loss of labels 1 at the margin 0.
                nothing=0.5 if delta == 0 else 1.0,
                trials=16 if delta == 0 else 8,
            )
            least = dataclasses.replace(
                row,
                key=f"{task}, {name}, least bound",
                algorithm=f"the same, λ of the least bound, {loss}",
                remark="λ by our smaller sensitivity; not the paper's.",
                measure=functools.partial(row.measure, regularization="bound"),
                sweeps={"n": sweeps["n"]},
            )
            found += [row, least] if delta == 0 else [row]
    found.append(
        Row(
            key="ERM, pure, exponential",
            panel="Table 2, pure: convex ERM, exponential mechanism",
            algorithm="SparseExponentialMechanism, linear losses",
            remark="Exact expectations over its law, of tiny problems: its net "
            "grows too fast for others. The upper rate is the theorem's alone: "
            "with so few coordinates the table's dense term is smaller.",
            measure=exponential,
            upper=_rate(rates.exponential_mechanism),
            lower=_rate(rates.erm_lower),
            base=Setting(n=2**6, d=8, s=1),
            sweeps={
                "n": (2**4, 2**5, 2**6, 2**7),
                "d": (4, 8, 16),
                "s": (1, 2, 4),
            },
        )
    )
    fewer = Setting(n=2**8 if smoke else 2**9, d=4, s=1)
    found.append(
        dataclasses.replace(
            found[-1],
            key=f"{found[-1].key}, d = {fewer.d}",
            remark="For larger n. Errors jump with the distance of the least "
            "risk on the net from that on the ball.",
            base=fewer,
            sweeps={"n": tuple(2**k for k in range(6, 9 if smoke else 13))},
        )
    )
    return found


def _sgd_rows(smoke: bool) -> list[Row]:
    d = 2**12 if smoke else 2**20
    base = Setting(n=2**6 if smoke else 2**11, d=d, s=4)
    few = (2**5, 2**6) if smoke else (2**10, 2**11, 2**12)

    def gradient(
        setting: Setting, trials: int, _: int, accounting: str = "tight"
    ) -> Outcome:
        run = functools.partial(paper_sgd.gradient_norm, accounting=accounting)
        return paper_sgd.worst_error(run, setting, trials, 1.0)

    def risk(setting: Setting, trials: int, _: int) -> Outcome:
        return paper_sgd.worst_error(
            paper_sgd.excess_risk, setting, trials, 2.0
        )

    stationary = Row(
        key="gradient norm, approximate",
        panel="Table 2, approximate: gradient norm",
        algorithm="bias-reduced SGD, tight account, 1 - cos",
        remark="Root mean square over the iterates, one of which is returned. "
        "The paper has no lower bound here.",
        measure=gradient,
        upper=_rate(rates.stationarity_upper, delta=DELTA),
        lower=None,
        base=base,
        sweeps={"n": few, "d": (d // 4, d), "s": (2, 4, 8)},
        trials=3,
        smoke_trials=1,
    )
    times = paper_sgd.noise_ratio(base)
    return [
        Row(
            key="ERM, approximate, SGD",
            panel="Table 2, approximate: convex ERM",
            algorithm="bias-reduced SGD, tight account, linear losses",
            measure=risk,
            upper=_rate(rates.bias_reduced_convex, delta=DELTA),
            lower=_rate(rates.erm_lower, delta=DELTA),
            base=dataclasses.replace(base, n=few[-1]),
            sweeps={"n": (few[0], few[-1])},
            trials=2,
            smoke_trials=1,
        ),
        stationary,
        dataclasses.replace(
            stationary,
            key="gradient norm, approximate, paper's noise",
            algorithm="the same with the paper's noise and stopping rule",
            remark=f"{times:.0f} times the noise at the base.",
            measure=functools.partial(gradient, accounting="paper"),
            sweeps={"n": few[:2]},
            trials=2,
        ),
    ]
