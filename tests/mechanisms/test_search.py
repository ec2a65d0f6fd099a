"""Binary search finds the same with and without XLA."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_dp.mechanisms.search import last_not_above

pytestmark = pytest.mark.once


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100])
def test_search(size: int, jit_compile: bool | None) -> None:
    ordered = np.sort(
        np.random.default_rng(size).choice(3 * size, size, replace=False)
    )
    wanted = np.arange(-2, 3 * size + 2)
    search = last_not_above
    if jit_compile is not None:
        search = tf.function(search, jit_compile=jit_compile)
    found = search(tf.constant(ordered), tf.constant(wanted))
    expected = np.searchsorted(ordered, wanted, side="right") - 1
    np.testing.assert_array_equal(found, np.maximum(expected, 0))


def test_each_way_is_taken() -> None:
    ascending = tf.constant([1, 2, 3], tf.int64)
    for jit_compile in (False, True):
        traced = tf.function(last_not_above, jit_compile=jit_compile)
        graph = traced.get_concrete_function(ascending, ascending).graph
        kinds = {operation.type for operation in graph.get_operations()}
        assert ("UpperBound" in kinds) != jit_compile
