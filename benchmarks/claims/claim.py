"""A claim: words with figures in them, and the record that they rest on."""

from __future__ import annotations

import dataclasses
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
# What a figure may look like where the words stand.
_NUMBER = r"[-+]?\d[\d.,/]*\d|[-+]?\d|\S+"
_WORDS = r".{0,200}?"


class Figure(float):
    """A number; in a format, `2s` means two significant digits."""

    def __format__(self, spec: str) -> str:
        if spec.endswith("s"):
            return significant(self, int(spec[:-1]))
        return format(float(self), spec)


def significant(value: float, digits: int) -> str:
    """The value with so many significant digits, and no exponent."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a figure")
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """What a record says about a claim.

    Attributes:
      figures: By their names in the claim's words; numbers, or words that
        depend on the record, such as who did not finish.
      broken: Where the claim's condition does not hold, in words.
    """

    figures: Mapping[str, float | str]
    broken: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """Words of README.md that a record supports.

    Attributes:
      words: As they stand there, figures left open: "1/{threshold:2s} of".
      record: The name of a file in `benchmarks/results`, without its ending.
      measure: What the record's rows say. Raises if rows are missing, for what
        was not measured does not hold.
      measured: The figures in short, for the table.
      condition: What has to hold for the words to stay.
    """

    words: str
    record: str
    measure: Callable[[Sequence[Row]], Finding]
    measured: str
    condition: str

    def find(self, rows: Sequence[Row]) -> Finding:
        """Raises ValueError where the rows do not have what it takes."""
        try:
            return self.measure([_tidy(row) for row in rows])
        except KeyError as error:
            raise ValueError(f"rows lack {error}") from error
        except (TypeError, ArithmeticError) as error:
            raise ValueError(f"rows have no numbers: {error}") from error

    def filled(self, finding: Finding) -> str:
        """The words with their figures."""
        return filled(self.words, finding.figures)

    def pattern(self, figures: Mapping[str, float | str]) -> re.Pattern[str]:
        """Finds the words whatever their figures are."""
        parts = []
        for text, name, _, _ in string.Formatter().parse(self.words):
            parts.append(re.escape(text))
            if name is not None:
                word = isinstance(figures.get(name, ""), str)
                parts.append(f"({_WORDS if word else _NUMBER})")
        return re.compile("".join(parts))

    @property
    def open(self) -> str:
        """The words without figures."""
        parts = string.Formatter().parse(self.words)
        return "".join(
            text + ("" if name is None else "…") for text, name, _, _ in parts
        )


def filled(template: str, figures: Mapping[str, float | str]) -> str:
    """A template with its figures."""
    return template.format_map(
        {
            name: value if isinstance(value, str) else Figure(value)
            for name, value in figures.items()
        }
    )


def _tidy(row: Row) -> dict[str, Any]:
    """Rows call the same thing `extra_ms` and `extra ms`."""
    return {key.replace("_", " "): value for key, value in row.items()}


def having(rows: Sequence[Row], /, **values: Any) -> list[Row]:
    """The rows with these values, of which there has to be one."""
    found = [
        row
        for row in rows
        if all(row[key] == value for key, value in values.items())
    ]
    if not found:
        raise ValueError(f"no row has {values}")
    return found
