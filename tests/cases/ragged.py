"""Ragged and sparse features: lists of ids of any length, pooled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cases.case import EXAMPLES, KERAS_3, KERASES, Case, keras, layers

_random = np.random.RandomState(7)


def _lists(shortest: int) -> tf.RaggedTensor:
    lengths = _random.randint(shortest, 6, EXAMPLES)
    lengths[-1] = shortest  # What lies at the end decides where rows end.
    ids = _random.randint(0, 9, lengths.sum())
    return tf.RaggedTensor.from_row_lengths(ids, lengths)


IDS = _lists(1)
MAYBE_NONE = _lists(0)
WEIGHTS = tf.RaggedTensor.from_row_lengths(
    _random.rand(len(IDS.values)).astype("float32") + 0.1, IDS.row_lengths()
)
WORDS = IDS.with_values(tf.strings.as_string(IDS.values))
SINGLE = _random.randint(0, 9, EXAMPLES).astype("int32")
COUNTS = tf.sparse.from_dense(
    _random.binomial(2, 0.3, (EXAMPLES, 9)).astype("float32")
)
REAL = _random.randn(EXAMPLES, 1).astype("float32")


class Table(layers.Layer):
    """A table that the model looks up by itself."""

    def build(self, shape: Any) -> None:
        self.rows = self.add_weight(
            name="rows", shape=(9, 4), initializer="normal"
        )

    def call(self, single: Any) -> Any:
        return tf.gather(tf.convert_to_tensor(self.rows), single)

    def pooled(self, lookup: Callable[..., Any], *args: Any, **options: Any):  # type: ignore[no-untyped-def]
        rows = self.rows.value if KERAS_3 else self.rows
        return lookup(rows, *args, **options)


class Pooled(keras.Model):
    """A list's rows, pooled somehow, and a score of them."""

    def __init__(self, pool: Callable[[Any, Any], Any]):
        super().__init__()
        self.table = layers.Embedding(9, 4, embeddings_initializer="normal")
        self.own = Table()
        self.own.build(None)
        self.hidden = layers.Dense(3, activation="tanh")
        self.hidden.build((None, 4))
        self.pool = pool
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.score(self.pool(self, inputs))


def _mean(model: Any, ids: Any) -> Any:
    return tf.reduce_mean(model.table(ids), axis=1)


def _root(model: Any, ids: Any) -> Any:
    lengths = tf.cast(ids.row_lengths(), tf.float32)
    return tf.reduce_sum(model.table(ids), 1) / tf.sqrt(lengths)[:, None]


def _weighted(model: Any, inputs: Any) -> Any:
    return model.own.pooled(
        tf.nn.embedding_lookup_sparse,
        inputs["ids"],
        inputs["weights"],
        combiner="sqrtn",
    )


def _safe(model: Any, ids: Any) -> Any:
    return model.own.pooled(
        tf.nn.safe_embedding_lookup_sparse, ids, combiner="mean"
    )


def _shared(model: Any, inputs: Any) -> Any:
    history = tf.reduce_sum(model.table(inputs["ids"]), 1)
    return history * model.table(inputs["single"])


def _of_length(model: Any, ids: Any) -> Any:
    ids = ids.to_tensor(shape=[None, 4])
    return tf.reduce_sum(model.hidden(model.table(ids)), 1)


def _longest(model: Any, ids: Any) -> Any:
    return tf.reduce_sum(model.table(ids.to_tensor()), 1)


def _dense(model: Any, ids: Any) -> Any:
    rows = model.hidden(model.table(ids.values))
    return tf.reduce_max(ids.with_values(rows), 1)


def _attention(model: Any, inputs: Any) -> Any:
    ids = inputs["ids"]
    rows, count = ids.value_rowids(), ids.nrows()
    keys = model.table(ids.values)
    query = tf.gather(model.own(inputs["single"]), rows)
    scores = tf.exp(tf.reduce_sum(query * keys, 1))
    total = tf.math.unsorted_segment_sum(scores, rows, count)
    scores = scores / tf.gather(total, rows)
    return tf.math.unsorted_segment_sum(scores[:, None] * keys, rows, count)


class Hashed(keras.Model):
    """Ragged strings, numbered by a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = layers.StringLookup(
            vocabulary=[str(number) for number in range(7)]
        )
        self.table = layers.Embedding(8, 4, embeddings_initializer="normal")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        ids = inputs.with_values(self.numbers(inputs.values))
        return self.score(tf.reduce_sum(self.table(ids), 1))


def _functional() -> Any:
    ids = keras.Input((None,), dtype="int64", ragged=True)
    rows = layers.Embedding(9, 4, embeddings_initializer="normal")(ids)
    pooled = layers.GlobalAveragePooling1D()(rows)
    return keras.Model(ids, layers.Dense(1)(pooled))


def _on_sparse() -> Any:
    counts = keras.Input((9,), sparse=True)
    hidden = layers.Dense(4, activation="tanh")(counts)
    return keras.Model(counts, layers.Dense(1)(hidden))


def _tpu_embedding(lengths: int) -> Callable[[], Any]:
    def build() -> Any:
        import tensorflow_recommenders as tfrs

        config = tf.tpu.experimental.embedding
        items = config.TableConfig(
            9, 4, name="items", combiner="mean", initializer=_normal
        )
        words = config.TableConfig(
            9, 3, name="words", combiner="sqrtn", initializer=_normal
        )
        embedding = tfrs.layers.embedding.TPUEmbedding(
            {
                "ids": config.FeatureConfig(items),
                "single": config.FeatureConfig(items),
                "words": config.FeatureConfig(
                    words, max_sequence_length=lengths
                ),
            },
            optimizer=config.SGD(0.1),
        )
        return _OnTPU(embedding)

    return build


def _normal(shape: Any, dtype: Any = tf.float32) -> Any:
    return tf.random.stateless_normal(shape, [1, 2], dtype=dtype)


class _OnTPU(keras.Model):
    def __init__(self, embedding: Any):
        super().__init__()
        self.embedding = embedding
        self.flat = layers.Flatten()
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        rows = self.embedding(inputs)
        parts = [rows["ids"], rows["single"], self.flat(rows["words"])]
        return self.score(tf.concat(parts, 1))


def _case(name: str, pool: Any, inputs: Any, **options: Any) -> Case:
    return Case(name, lambda: Pooled(pool), inputs, REAL, **options)


_TF_KERAS = KERASES[1]
_LENGTH = "the longest example decides the length"
_ON_TPU = {"ids": IDS, "single": SINGLE, "words": IDS.to_sparse()}
CASES = [
    # Old Keras 3 chooses among ragged ids with operations that have no rule, so
    # no case that calls Embedding on them is part of the lane.
    _case("ragged ids, mean", _mean, IDS),
    _case("ragged ids, sqrtn by hand", _root, IDS),
    _case(
        "ragged ids and weights, embedding_lookup_sparse",
        _weighted,
        {"ids": IDS, "weights": WEIGHTS},
        lane=True,
    ),
    _case("ragged ids, safe_embedding_lookup_sparse", _safe, MAYBE_NONE),
    _case(
        "ragged ids, to_sparse, safe_embedding_lookup_sparse",
        lambda model, ids: _safe(model, ids.to_sparse()),
        MAYBE_NONE,
        lane=True,
    ),
    _case(
        "ragged ids and an id, shared table",
        _shared,
        {"ids": MAYBE_NONE, "single": SINGLE},
    ),
    _case("ragged ids, to_tensor of fixed length", _of_length, MAYBE_NONE),
    _case(
        "ragged ids, to_tensor",
        _longest,
        IDS,
        refused="has a length that the batch decides",
        why=_LENGTH,
    ),
    _case("ragged ids, dense, max pooling", _dense, IDS),
    _case(
        "ragged ids, attention to an id",
        _attention,
        {"ids": IDS, "single": SINGLE},
    ),
    Case("ragged words, StringLookup", Hashed, WORDS, REAL),
    Case(
        "ragged ids, GlobalAveragePooling1D",
        _functional,
        IDS,
        REAL,
        only=_TF_KERAS,
    ),
    Case("dense on sparse features", _on_sparse, COUNTS, REAL),
    _case(
        "sparse ids, safe_embedding_lookup_sparse",
        _safe,
        MAYBE_NONE.to_sparse(),
        only=_TF_KERAS,
    ),
    Case(
        "TPUEmbedding on ragged and sparse ids",
        _tpu_embedding(0),
        _ON_TPU,
        REAL,
        only=_TF_KERAS,
    ),
    Case(
        "TPUEmbedding with sequences",
        _tpu_embedding(3),
        {**_ON_TPU, "words": IDS},
        REAL,
        only=_TF_KERAS,
    ),
]
