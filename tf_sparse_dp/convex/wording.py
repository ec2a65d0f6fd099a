"""The form that claims of one release have in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from tf_sparse_dp.accounting.wording import conditions, wrapped


def claim(
    first: str,
    assumptions: Sequence[str],
    not_covered: Sequence[str],
    *,
    seeded: bool,
) -> str:
    """A first line, and below it what it rests on and does not speak of.

    Example:
      >>> print(claim("Private.", ["n is public."], ["Time."], seeded=True))
      NOT PRIVATE, the seed is fixed. Were it not: Private.
      <BLANKLINE>
      This holds if:
      - n is public.
      <BLANKLINE>
      Not covered:
      - Time.
    """
    if seeded:
        first = f"NOT PRIVATE, the seed is fixed. Were it not: {first}"
    # The first line stays one: programs may cut it where they like.
    return first + "\n" + wrapped(conditions(assumptions, not_covered))
