"""Secret keys for noise: drawn from the operating system, never used twice.

A key is two int64 numbers. The root key of a run exists only in the memory of
its process: it is no constant of a graph, it is in no checkpoint, and a copy
of the object that holds it draws a root of its own. So does a forked process.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_sparse_dp.local_variable import TPU_STRATEGIES, local_variable

# XLA and TPUs have other default generators; the same one everywhere.
_PHILOX = tf.random.Algorithm.PHILOX.value
_SCRAMBLER = np.array([0x02461E293EC8F720], np.uint64)
_BLOCK = 16  # Bytes that Philox makes of one counter.
_PIECE = 2**18  # Numbers that are drawn at once on a TPU.


def fold_in(key: tf.Tensor, data: tf.Tensor | int) -> tf.Tensor:
    """A new key, one for each value of `data`, as good as independent."""
    pair = tf.cast(tf.stack([0, data]), tf.int64)
    return random_bits([2], tf.bitwise.bitwise_xor(key, pair), tf.int64)


def philox_state(key: tf.Tensor) -> list[tf.Tensor]:
    """Philox's own key, and the upper half of its counter: uint64 [1] each.

    Of the key as it is scrambled, so that keys may be alike.
    """
    scrambled = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[2],
        key=_SCRAMBLER,
        counter=tf.bitcast(key, tf.uint64),
        alg=_PHILOX,
        dtype=tf.uint64,
    )
    return tf.split(scrambled, 2)


def random_bits(
    shape: Sequence[int | tf.Tensor], key: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    """Integers of which every bit is random.

    What `tf.random.stateless_uniform` gives with Philox, bit for bit, but with
    a quarter of its operations: tracing a step draws from many keys.

    Reference: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
    2011.
    """
    own, upper = philox_state(key)

    def bits(
        shape: Sequence[int | tf.Tensor], start: np.ndarray | tf.Tensor
    ) -> tf.Tensor:
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=shape,
            key=own,
            counter=tf.concat([[start], upper], 0),
            alg=_PHILOX,
            dtype=dtype,
        )

    on_tpu = isinstance(tf.distribute.get_strategy(), TPU_STRATEGIES)
    if on_tpu and all(isinstance(size, int) for size in shape):
        size = math.prod(shape)  # type: ignore[arg-type]
        if size > _PIECE:
            return tf.reshape(_in_pieces(bits, size, dtype), shape)
    return bits(shape, np.uint64(0))


def _in_pieces(
    bits: Callable[..., tf.Tensor], size: int, dtype: tf.DType
) -> tf.Tensor:
    """The same numbers, drawn one piece after another.

    XLA lays Philox's blocks out as rows of four words, which TPUs fill up to
    128: all at once take 32 times the memory that the numbers take.
    """
    starts = np.arange(-(-size // _PIECE), dtype=np.uint64)
    pieces = tf.map_fn(
        lambda start: bits([_PIECE], start),
        tf.constant(starts * np.uint64(_PIECE * dtype.size // _BLOCK)),
        fn_output_signature=dtype,
    )
    return tf.reshape(pieces, [-1])[:size]


class _InNoFile:
    """What a variable has to be that must not be saved."""

    def _refused(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "The key of noise was about to be saved, with which anybody could "
            "take the noise off again. Save the model, not the training step; "
            "and build functions that are to be exported when they are "
            "exported, not before."
        )

    def __repr__(self) -> str:
        return "<a key of noise>"

    _serialize_to_tensors = _export_to_saved_model_graph = _refused
    _gather_saveables_for_checkpoint = _copy_trackable_to_cpu = _refused
    __copy__ = __deepcopy__ = __reduce__ = _refused


def _secret(value: np.ndarray, name: str) -> tf.Variable:
    """A variable that is in no file, and neither are its copies on a TPU."""
    variable: Any = local_variable(value, name=name)
    for part in (variable, *getattr(variable, "values", ())):

        class Secret(_InNoFile, type(part)):  # type: ignore[misc]
            """A variable that is in no file."""

        part.__class__ = Secret
    return variable


_Streams: TypeAlias = "weakref.WeakKeyDictionary[KeyStream, memoryview]"
_FORKED: _Streams = weakref.WeakKeyDictionary()  # With the memory of roots.


def _give_roots() -> None:
    """New roots in a forked process, which would draw its parent's noise.

    Into their memory: an operation of TensorFlow might wait for a lock that a
    thread held which there is no more.
    """
    for memory in _FORKED.values():
        place = np.asarray(memory).ctypes.data
        ctypes.memmove(place, os.urandom(memory.nbytes), memory.nbytes)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_roots)


class KeyStream:
    """A sequence of keys without repetition, for use in traced functions.

    The counter is not saved with a model and never goes back, so restoring an
    older state cannot bring back noise that was used already.

    Args:
      seed: For tests only: makes the keys reproducible, hence not secret.
    """

    def __init__(self, seed: int | None = None):
        self._seed = seed
        if seed is None:
            root = np.frombuffer(os.urandom(16), np.int64)
        else:
            root = np.array([seed, 0], np.int64)
        self._root = _secret(root, "noise_root")
        self._count = local_variable(0, name="noise_count", dtype=tf.int64)
        self._outlive_fork()

    def _outlive_fork(self) -> None:
        """Lets forked processes have other roots, where they can train."""
        with tf.init_scope():
            if self.seeded or hasattr(self._root, "values"):
                return  # On a TPU, which a forked process does not have.
            value = self._root.read_value()
            if tf.executing_eagerly() and "CPU" in value.device:
                _FORKED[self] = memoryview(value)

    @property
    def seeded(self) -> bool:
        """Whether the keys are reproducible."""
        return self._seed is not None

    @property
    def variables(self) -> list[tf.Variable]:
        """The root, which is secret, and the number of keys so far."""
        return [self._root, self._count]

    def next(self) -> tf.Tensor:
        """The next key. Each run of the traced operation gives another."""
        return fold_in(
            tf.convert_to_tensor(self._root),
            self._count.assign_add(1, read_value=True),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyStream:
        return KeyStream(self._seed)

    def __reduce__(self) -> tuple[type[KeyStream], tuple[int | None]]:
        return (KeyStream, (self._seed,))
