"""Where README.md has claims, and figures that no claim covers."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Numbers that are no result of ours, with the words around them.
EXEMPT = (
    "Python 3.11",
    "Keras 3",
    "TensorFlow 2.16 and 2.21",
    "δ = 0",
    "up to 10¹² parameters and 4,096 chips, on paper",
    "(2024)",
    "Apache-2.0",
)
_HIDDEN = re.compile(
    r"^```.*?^```"  # Blocks of code,
    r"|^ {4}[^\n]*"  # indented ones,
    r"|`[^`\n]*`"  # code in a sentence,
    r"|\]\([^)\s]*\)"  # targets of links,
    r"|<!--.*?-->",  # and what is not shown.
    re.M | re.S,
)
# Digits, and the words that compare.
_FIGURE = re.compile(
    r"[\d⁰¹²³⁴⁵⁶⁷⁸⁹][\d⁰¹²³⁴⁵⁶⁷⁸⁹.,/]*|\b(?:times|twice|faster|slower|cheaper)\b"
)
_SPACE = re.compile(r"\s+")
_AROUND = 40


def flat(text: str) -> str:
    """With one space wherever a line may break."""
    return _SPACE.sub(" ", text)


def uncovered(text: str, words: Iterable[str]) -> list[str]:
    """Figures outside code that neither `words` nor `EXEMPT` cover.

    Args:
      text: What README.md says.
      words: All claims, with the figures that stand there.
    """
    shown = flat(_HIDDEN.sub(lambda m: re.sub(r"\S", "~", m[0]), text))
    whole = flat(text)
    covered = [
        (at.start(), at.end())
        for phrase in (*words, *EXEMPT)
        for at in re.finditer(re.escape(phrase), whole)
    ]
    return [
        whole[max(at.start() - _AROUND, 0) : at.end() + _AROUND]
        for at in _FIGURE.finditer(shown)
        if not any(
            begin <= at.start() and at.start() < end for begin, end in covered
        )
    ]


def unused(text: str) -> list[str]:
    """Exempt words that do not stand there any more."""
    return [phrase for phrase in EXEMPT if phrase not in flat(text)]
