"""Which settings of output perturbation make sense, and have a proof."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import TYPE_CHECKING

from tf_sparse_dp.convex.domains import Domain, Unconstrained
from tf_sparse_dp.errors import PrivacyWarning, callers_level

if TYPE_CHECKING:
    from tf_sparse_dp.convex.output_perturbation import OutputPerturbation

CLASSIFYING = ("logistic", "hinge")
LOSSES = (*CLASSIFYING, "huber", "squared")
# A billion entries of noise end where they should not with less probability.
_LEAST_DELTA = 1e-25


def check(settings: OutputPerturbation) -> None:
    """Refuses what is out of range, and what no proof is there for.

    Raises:
      TypeError: A setting is of the wrong kind.
      ValueError: A setting is out of range, or settings do not go together.
    """
    _check_fields(settings)
    pure = settings.delta == 0
    if not pure and settings.delta < _LEAST_DELTA:
        raise ValueError(
            f"delta={settings.delta} was given; expected 0, or at least "
            f"{_LEAST_DELTA}: the far ends that noise lacks weigh more than "
            "less. Give a larger delta."
        )
    constrained = not isinstance(settings.domain, Unconstrained)
    if pure and constrained:
        raise ValueError(
            f"domain={settings.domain!r} was given with delta=0; expected no "
            "constraints: at a boundary all weights may move, and the L1 "
            "sensitivity has no good bound. Leave out domain, or give a "
            "delta above 0."
        )
    if pure and settings.loss == "hinge":
        raise ValueError(
            "loss='hinge' was given with delta=0; expected a smooth loss, "
            "which the L1 sensitivity needs. Use loss='logistic', or give "
            "a delta above 0."
        )
    if settings.loss == "squared":
        if not constrained:
            raise ValueError(
                "loss='squared' was given without constraints; expected a "
                "bounded domain: elsewhere gradients have no bound. Give "
                "domain=Ball(radius) or Box(low, high), or use "
                "loss='huber'."
            )
        if settings.label_bound is None:
            raise ValueError(
                "loss='squared' was given without label_bound; expected "
                "the size to which labels are clipped, public."
            )


def warn(settings: OutputPerturbation, count: int) -> None:
    """Warns, from public facts, where the guarantee is worth little."""
    if settings.delta * count >= 1:
        warnings.warn(
            f"delta={settings.delta:g} was given for {count} rows; expected "
            f"well below {1 / count:.3g}: with this delta, publishing one "
            "random row in the clear would count as private. Lower delta.",
            PrivacyWarning,
            stacklevel=callers_level(),
        )
    if settings.seed is not None:
        warnings.warn(
            "The noise comes from a fixed seed: whoever knows or guesses "
            "it can take the noise off again. Seeds are for tests; leave "
            "it out.",
            PrivacyWarning,
            stacklevel=callers_level(),
        )


def _check_fields(settings: OutputPerturbation) -> None:
    _one_of("loss", settings.loss, LOSSES)
    _one_of("objective", settings.objective, ("erm", "sco"))
    _number("epsilon", settings.epsilon)
    _number("delta", settings.delta, zero=True, below=1.0)
    _number("row_norm", settings.row_norm)
    _number("intercept", settings.intercept, zero=True)
    _number("huber_threshold", settings.huber_threshold)
    _number("tolerance", settings.tolerance, below=1.0)
    _number("failure_probability", settings.failure_probability, below=1.0)
    if settings.distance is not None:
        _number("distance", settings.distance)
    if settings.label_bound is not None:
        _number("label_bound", settings.label_bound)
    if isinstance(settings.regularization, str):
        _one_of("regularization", settings.regularization, ("theorem", "bound"))
    else:
        _number("regularization", settings.regularization)
    for name in ("sparsity", "seed"):
        value = getattr(settings, name)
        if value is not None and not _is_whole(value):
            raise TypeError(
                f"{name}={value!r} was given; expected None or a whole number."
            )
    if settings.sparsity is not None and settings.sparsity < 1:
        raise ValueError(
            f"sparsity={settings.sparsity} was given; expected at least 1."
        )
    if not isinstance(settings.domain, Domain):
        raise TypeError(
            f"domain={settings.domain!r} was given; expected Unconstrained(), "
            "Ball(radius) or Box(low, high)."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _one_of(name: str, value: object, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise ValueError(
            f"{name}={value!r} was given; expected one of {expected}."
        )


def _number(
    name: str, value: object, *, zero: bool = False, below: float = math.inf
) -> None:
    bounds = "of at least 0" if zero else "above 0"
    bounds += f" and below {below:g}" if below < math.inf else ""
    message = f"{name}={value!r} was given; expected a finite number {bounds}."
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(message)
    number = float(value)
    if not ((number >= 0 if zero else number > 0) and number < below):
        raise ValueError(message)
