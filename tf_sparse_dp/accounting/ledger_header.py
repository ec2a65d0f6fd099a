"""What a ledger belongs to."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

import dp_accounting

from tf_sparse_dp.accounting.event_json import canonical_json
from tf_sparse_dp.errors import PrivacyStateError
from tf_sparse_dp.version import __version__

_RELATIONS = {
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# Facts about a run that another run of the same plan need not share.
_CIRCUMSTANCES = ("mechanism", "clip_norm", "was_seeded", "library_version")


def relation_name(relation: dp_accounting.NeighboringRelation) -> str:
    """Our word for a relation of `dp_accounting`."""
    (name,) = (n for n, known in _RELATIONS.items() if known is relation)
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerHeader:
    """The public facts that give a ledger's events their meaning.

    Args:
      account: What pays: `{"class_name": "PrivacyPlan", "config":
        plan.get_config()}`, or the same of a filter. Plain values.
      mechanism: A description of the mechanism, in plain values.
      noise: "gaussian" or "laplace"; "" where a budget pays for both.
      neighbouring_relation: "add_or_remove_one", "zero_out" or "replace_one":
        what the events hold for.
      clip_norm: The bound on a unit's contribution; None where the runs that
        share a budget have bounds of their own.
      unit: What is protected, in a word.
      spent_before: Epsilon and delta that were spent on the same data to make
        the mechanism, such as by `FrequencySelection.private`.
      was_seeded: Whether noise or batches came from a fixed seed.
      library_version: Of the version that wrote the ledger.

    Raises:
      TypeError, ValueError: An argument is not as described.
    """

    account: Mapping[str, Any]
    neighbouring_relation: str
    mechanism: Any = None
    noise: str = ""
    clip_norm: float | None = None
    unit: str = "example"
    spent_before: tuple[float, float] = (0.0, 0.0)
    was_seeded: bool = False
    library_version: str = __version__

    def __post_init__(self) -> None:
        if self.neighbouring_relation not in _RELATIONS:
            raise ValueError(
                f"neighbouring_relation is {self.neighbouring_relation!r}, "
                f"expected one of {sorted(_RELATIONS)}."
            )
        for name in ("noise", "unit", "library_version"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(
                    f"{name} is {getattr(self, name)!r}, expected text."
                )
        if not isinstance(self.was_seeded, bool):
            raise TypeError(
                f"was_seeded is {self.was_seeded!r}, expected True or False."
            )
        pair = tuple(self.spent_before)
        if len(pair) != 2 or not all(map(_at_least_zero, pair)):
            raise ValueError(
                f"spent_before is {self.spent_before!r}, expected an epsilon "
                "and a delta, finite and at least 0."
            )
        if self.clip_norm is not None and not _at_least_zero(self.clip_norm):
            raise ValueError(
                f"clip_norm is {self.clip_norm!r}, expected a number or None."
            )
        if not isinstance(self.account, Mapping):
            raise TypeError(
                f"account is {self.account!r}, expected the class name and "
                "config of a plan or a filter."
            )
        object.__setattr__(self, "spent_before", pair)
        # As JSON gives it back: lists for tuples.
        for name in ("account", "mechanism"):
            try:
                plain = json.loads(canonical_json(getattr(self, name)))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name} cannot be saved: {error}") from None
            object.__setattr__(self, name, plain)

    def __hash__(self) -> int:
        return hash(canonical_json(self.to_config()))

    @property
    def neighboring_relation(self) -> dp_accounting.NeighboringRelation:
        """The relation, in the words of `dp_accounting`."""
        return _RELATIONS[self.neighbouring_relation]

    def to_config(self) -> dict[str, Any]:
        """Plain values from which `from_config` makes an equal header."""
        config = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }
        config["spent_before"] = list(self.spent_before)
        return config

    @classmethod
    def from_config(cls, config: object) -> LedgerHeader:
        """The inverse of `to_config`.

        Raises:
          PrivacyStateError: It is not the config of a header.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        try:
            if not isinstance(config, dict) or set(config) != names:
                raise TypeError(f"expected {sorted(names)}.")
            return cls(**config)
        except (TypeError, ValueError) as error:
            raise PrivacyStateError(
                f"A ledger's header cannot be read: {error} It was changed, "
                "or is of another version of this package."
            ) from error

    def summary(self) -> str:
        """What it belongs to, in a few words."""
        config = self.account.get("config")
        known = config if isinstance(config, dict) else {}
        names = ("epsilon", "delta", "noise_multiplier")
        facts = [f"{name}={known[name]!r}" for name in names if name in known]
        if self.noise:
            facts.append(f"noise={self.noise!r}")
        return f"{self.account.get('class_name')}({', '.join(facts)})"

    def differences(self, other: LedgerHeader) -> list[str]:
        """What keeps two headers from belonging to the same thing.

        The epsilon of a plan is left out: it follows from delta, noise and
        sampling, and a later version may find another for them.
        """
        mine, others = self._identity(), other._identity()
        return list(_differences("", mine, others))

    def _identity(self) -> dict[str, Any]:
        config = self.to_config()
        for name in _CIRCUMSTANCES:
            # What was spent to make it tells mechanisms of one cost apart.
            if name != "mechanism" or not any(self.spent_before):
                del config[name]
        plan = self.account.get("config")
        if self.account.get("class_name") == "PrivacyPlan" and isinstance(
            plan, dict
        ):
            plan = {n: value for n, value in plan.items() if n != "epsilon"}
            config["account"] = {**self.account, "config": plan}
        return config


def _at_least_zero(value: object) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and 0 <= value < math.inf  # type: ignore[operator]


def _differences(path: str, mine: Any, others: Any) -> Any:
    if isinstance(mine, dict) and isinstance(others, dict):
        for name in sorted(mine.keys() | others.keys()):
            yield from _differences(
                f"{path}.{name}" if path else name,
                mine.get(name),
                others.get(name),
            )
    elif mine != others:
        yield f"{path} is {mine!r} here and {others!r} there"
