from __future__ import annotations

import math

import pytest

from tf_sparse_dp.accounting.search import largest_within

pytestmark = [pytest.mark.once]

CURVES = {
    "root": lambda n: 0.01 * math.sqrt(n),
    "line": lambda n: 0.001 * n,
    "bend": lambda n: 0.02 * math.sqrt(n) + n / 30_000,
    "steps": lambda n: math.floor(n / 700),
    "cliff": lambda n: 0.0 if n < 4321 else math.inf,
    "wall": lambda n: 0.5 * (n > 0) if n < 321 else math.inf,
    "never": lambda n: 7.0 * (n > 0),
    "always": lambda n: 0.1 * (n > 0),
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("most", [0, 1, 2, 999, 1000, 10_000, 3_000_000])
def test_the_last_that_fits(curve, most):
    asked = []

    def epsilon_of(n):
        assert 1 <= n <= most
        assert n not in asked
        asked.append(n)
        return curve(n)

    found = largest_within(epsilon_of, 1.0, most)
    assert 0 <= found <= most
    assert found == 0 or (curve(found) <= 1.0 and found in asked)
    assert found == most or (curve(found + 1) > 1.0 and found + 1 in asked)
    assert len(asked) <= 2 * math.log2(most + 2)


@pytest.mark.parametrize("name", ["root", "bend", "line"])
def test_few_evaluations_on_curves_as_they_are(name):
    asked = []
    largest_within(
        lambda n: asked.append(n) or CURVES[name](n), 1.0, 10_000_000
    )
    assert len(asked) <= 12
