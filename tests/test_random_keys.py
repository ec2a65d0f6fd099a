"""Keys never repeat, and a copy of a stream is another stream."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.noise_claims import FALSE_ALARM
from tf_sparse_dp.random_keys import KeyStream, fold_in, random_bits

pytestmark = pytest.mark.once

KEY = tf.constant([2**40 + 3, -5], tf.int64)


def taken(stream: KeyStream, count: int) -> list[tuple[int, ...]]:
    return [tuple(stream.next().numpy()) for _ in range(count)]


def folded(key: tf.Tensor, data: list[int]) -> list[tuple[int, ...]]:
    each = tf.function(lambda d: fold_in(key, d))
    return [tuple(each(tf.constant(d, tf.int64)).numpy()) for d in data]


def test_folding_is_a_function() -> None:
    data = [0, 1, -1, 2**62]
    assert folded(KEY, data) == folded(KEY, data)
    assert folded(KEY, [3]) == [tuple(fold_in(KEY, 3).numpy())]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_folding_is_the_same_everywhere(jit_compile: bool) -> None:
    compiled = tf.function(fold_in, jit_compile=jit_compile)
    np.testing.assert_array_equal(compiled(KEY, 9), fold_in(KEY, 9))


@pytest.mark.lane
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", [tf.int32, tf.uint32, tf.int64, tf.uint64])
def test_bits_are_those_of_tensorflow(
    dtype: tf.DType, jit_compile: bool
) -> None:
    given = tf.function(
        lambda key: random_bits([3, 7], key, dtype), jit_compile=jit_compile
    )
    for key in (KEY, fold_in(KEY, 1), tf.zeros([2], tf.int64)):
        expected = tf.random.stateless_uniform(
            [3, 7], key, minval=None, maxval=None, dtype=dtype, alg="philox"
        )
        np.testing.assert_array_equal(given(key), expected)


def test_folding_gives_different_keys() -> None:
    """Two of n keys of 128 bits are equal with probability n² 2⁻¹²⁹."""
    data = [*range(-500, 1500), 2**32, 2**62, -(2**62)]
    keys = folded(KEY, data)
    assert len(set(keys)) == len(data)
    for half in (0, 1):
        assert len({key[half] for key in keys}) == len(data)


def test_folding_twice_tells_the_order() -> None:
    firsts = [fold_in(KEY, i) for i in range(8)]
    keys = {tuple(fold_in(k, j).numpy()) for k in firsts for j in range(8)}
    assert len(keys) == 64


def test_bits_of_folded_keys_are_fair() -> None:
    """Each bit is a fair coin, also together with the bits of a neighbour."""
    keys = np.array(folded(KEY, list(range(512))), np.int64)
    bits = np.unpackbits(keys.view(np.uint8))
    changes = np.unpackbits((keys[1:] ^ keys[:-1]).view(np.uint8))
    for coins in (bits, changes):
        test = stats.binomtest(int(coins.sum()), coins.size, 0.5)
        assert test.pvalue > FALSE_ALARM


def test_a_stream_never_repeats() -> None:
    stream = KeyStream()
    step = tf.function(stream.next)
    several = tf.function(
        lambda: tf.map_fn(lambda _: stream.next(), tf.range(20, dtype=tf.int64))
    )
    keys = [tuple(step().numpy()) for _ in range(20)]
    keys += [tuple(key) for key in several().numpy()]
    keys += taken(stream, 20)
    assert len(set(keys)) == 60


def test_streams_differ_unless_seeded() -> None:
    assert not set(taken(KeyStream(), 50)) & set(taken(KeyStream(), 50))
    assert taken(KeyStream(7), 5) == taken(KeyStream(7), 5)
    assert not set(taken(KeyStream(7), 50)) & set(taken(KeyStream(8), 50))
    assert KeyStream(7).seeded and KeyStream(0).seeded
    assert not KeyStream().seeded


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_draws_its_own_keys(duplicate) -> None:
    stream = KeyStream()
    before = taken(stream, 5)
    other = duplicate(stream)
    assert not set(taken(other, 20)) & set(before + taken(stream, 20))


def test_the_root_is_in_no_pickle() -> None:
    stream = KeyStream()
    root = stream._root.numpy()
    text = pickle.dumps(stream)
    for half in root:
        assert half.tobytes() not in text
        assert str(half).encode() not in text
