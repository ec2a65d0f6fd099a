"""The form that statements about privacy have in plain words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def wrapped(lines: Iterable[str]) -> str:
    """Lines of at most 78 characters; those of lists are indented.

    Example:
      >>> print(wrapped(["Private.", *conditions(["n is public."], [])]))
      Private.
      <BLANKLINE>
      This holds if:
      - n is public.
    """
    return "\n".join(
        textwrap.fill(
            line,
            width=78,
            break_on_hyphens=False,
            subsequent_indent="  " if line.startswith("- ") else "",
        )
        for line in lines
    )


def conditions(
    assumptions: Sequence[str], not_covered: Sequence[str]
) -> list[str]:
    """What a statement rests on, and what it does not speak of."""
    lines = []
    for title, entries in (
        ("This holds if:", assumptions),
        ("Not covered:", not_covered),
    ):
        if entries:
            lines += ["", title, *(f"- {entry}" for entry in entries)]
    return lines
