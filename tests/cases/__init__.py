"""Models that are trained exactly as a loop over examples would, or refused.

Each module in this package holds one family of models in its list `CASES`;
a new file is found by itself. `pytest tests/optimizers/test_against_loop.py
--write-table` runs all of them and writes docs/models.md.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.cases.case import Case


def _collected() -> list[Case]:
    cases: list[Case] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found = importlib.import_module(f"{__name__}.{module}")
        cases.extend(getattr(found, "CASES", []))
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"Several cases are called {sorted(twice)}.")
    return cases


CASES = _collected()
