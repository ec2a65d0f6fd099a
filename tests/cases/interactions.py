"""Feature interactions, tied tables, and the models named after them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.cases.case import (
    CLASSES,
    FEATURES,
    FEW_IDS,
    IDS,
    KERAS_3,
    MASKED_IDS,
    MIXED,
    REAL,
    SEQUENCES,
    Case,
    Through,
    embedding,
    functional,
    keras,
    layers,
)


class Cross(layers.Layer):
    """x0 * (W x + b) + x, as in DCN v2; of low rank if asked."""

    def __init__(self, rank: int | None = None):
        super().__init__()
        self.rank = rank

    def build(self, shape: Any) -> None:
        width = shape[-1]
        if self.rank is not None:
            self.down = layers.Dense(self.rank, use_bias=False)
            self.down.build(shape)
        self.up = layers.Dense(width)
        self.up.build((None, self.rank or width))

    def call(self, inputs: Any) -> Any:
        x = inputs if self.rank is None else self.down(inputs)
        return inputs * self.up(x) + inputs


class CrossVector(layers.Layer):
    """x0 (xᵀ w) + b + x, as in the first DCN."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 1))
        self.bias = self.add_weight(name="bias", shape=(shape[-1],))

    def call(self, inputs: Any) -> Any:
        return inputs * (inputs @ self.kernel) + self.bias + inputs


class DotInteraction(layers.Layer):
    """All dot products between features, the lower triangle of them."""

    def call(self, inputs: Any) -> Any:
        products = tf.matmul(inputs, inputs, transpose_b=True)
        mask = tf.linalg.band_part(tf.ones([5, 5]), -1, 0)
        mask = mask - tf.linalg.band_part(mask, 0, 0)
        return tf.reshape(products * mask, [-1, 25])


class FactorizationMachine(keras.Model):
    """Linear terms, and ((Σ v)² - Σ v²) / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = embedding(30, 1)
        self.factors = embedding(30, 4)
        self.deep = layers.Dense(3, activation="relu")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        factors = self.factors(inputs)
        pairs = tf.square(tf.reduce_sum(factors, 1)) - tf.reduce_sum(
            tf.square(factors), 1
        )
        linear = tf.reduce_sum(self.linear(inputs), 1)
        deep = self.deep(tf.reshape(factors, [-1, 20]))
        score = self.score(deep)
        return score + linear + 0.5 * tf.reduce_sum(pairs, 1, keepdims=True)


class NeuralCollaborative(keras.Model):
    """Generalised matrix factorisation beside a network, as in NCF."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [embedding(30), embedding(6), embedding(30), embedding(6)]
        self.hidden = layers.Dense(4, activation="relu")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        user, items, _ = inputs
        item = items[:, 0]
        product = self.tables[0](user) * self.tables[1](item)
        both = tf.concat([self.tables[2](user), self.tables[3](item)], 1)
        return self.score(tf.concat([product, self.hidden(both)], 1))


class Experts(keras.Model):
    """Several experts under one gate, as in MMoE."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = [layers.Dense(3, activation="relu") for _ in range(3)]
        self.gate = layers.Dense(3, activation="softmax")
        self.score = layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        experts = tf.stack([expert(inputs) for expert in self.experts], 1)
        gate = self.gate(inputs)[:, :, tf.newaxis]
        return self.score(tf.reduce_sum(experts * gate, 1))


class Tied(keras.Model):
    """One table looks items up and scores all of them."""

    def __init__(self, bias: bool = False):
        super().__init__()
        self.items = embedding(6, 4)
        self.hidden = layers.Dense(4, activation="tanh")
        self.bias = bias

    def build(self, shape: Any) -> None:
        self.items.build((None,))
        self.hidden.build((None, 4))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.hidden(tf.reduce_mean(self.items(inputs), 1))
        table = tf.convert_to_tensor(self.items.embeddings)
        return tf.matmul(x, table, transpose_b=True)


class Lookups(keras.Model):
    """Tables that are plain variables, read in several ways."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.score = layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(
            name="table", shape=(6, 4), initializer="normal"
        )
        self.score.build((None, 4))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        table = tf.convert_to_tensor(self.table) if KERAS_3 else self.table
        if self.how == "embedding_lookup":
            x = tf.nn.embedding_lookup(table, inputs)
        elif self.how == "gather":
            x = tf.gather(table, inputs)
        elif self.how == "gather of a column":
            x = tf.transpose(tf.gather(table, inputs % 4, axis=1), [1, 2, 0])
            x = x[..., :4]
        elif self.how == "gather_nd":
            x = tf.gather_nd(table, inputs[..., tf.newaxis])
        elif self.how == "gather_nd of entries":
            where = tf.stack([inputs, inputs % 4], -1)
            x = tf.gather_nd(table, where)[..., tf.newaxis] * tf.ones([4])
        else:
            x = tf.one_hot(inputs, 6) @ table
        return self.score(tf.reduce_mean(tf.nn.tanh(x), 1))


class LowRank(keras.Model):
    """A kernel that is the product of two weights."""

    def build(self, shape: Any) -> None:
        self.left = self.add_weight(name="left", shape=(4, 2))
        self.right = self.add_weight(name="right", shape=(2, 3))
        self.third = self.add_weight(name="third", shape=(3,))
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        kernel = tf.matmul(self.left, self.right)
        x = tf.nn.tanh(inputs @ kernel)
        return tf.reduce_sum(x * self.third, 1, keepdims=True)


def _wide_and_deep() -> Any:
    ids = keras.Input((5,), dtype="int32")
    dense = keras.Input((4,))
    wide = layers.Dense(1)(dense)
    deep = layers.Flatten()(embedding()(ids))
    deep = layers.Dense(1)(layers.Dense(4, "relu")(deep))
    return keras.Model([ids, dense], layers.Add()([wide, deep]))


def _dot_of_fields() -> Any:
    ids = keras.Input((5,), dtype="int32")
    x = DotInteraction()(embedding()(ids))
    return keras.Model(ids, layers.Dense(1)(x))


def _of_recommenders(name: str) -> Any:
    from tensorflow_recommenders.layers import feature_interaction

    one = keras.Input((), dtype="int32")
    two = keras.Input((), dtype="int32")
    fields = [embedding()(one), embedding()(two)]
    if name == "Cross":
        x = layers.Concatenate()(fields)
        x = feature_interaction.Cross()(x, x)
        x = feature_interaction.Cross(projection_dim=2)(x, x)
    else:
        x = feature_interaction.DotInteraction(
            skip_gather=name.endswith("masked")
        )(fields)
    return keras.Model([one, two], layers.Dense(1)(x))


def _pairs(x: Any) -> Any:
    """Dot products of different fields, each pair once."""
    products = tf.reshape(tf.matmul(x, x, transpose_b=True), [-1, 25])
    return tf.gather(
        products, [5 * i + j for i in range(5) for j in range(i)], axis=1
    )


_CHOSEN: dict[str, Any] = {
    "tf.gather": lambda x: tf.gather(x, [0, 3, 3], axis=1),
    "tf.gather, last axis": lambda x: tf.gather(x, [[2, 0], [1, 2]], axis=-1),
    "tf.boolean_mask": lambda x: tf.reshape(
        tf.boolean_mask(x, [True, False, True, True, False], axis=1), [-1, 9]
    ),
    "keras.ops.take": lambda x: keras.ops.take(x, [0, -1, 0], axis=1),
}


def _in_batch(labels: Any, scores: Any) -> Any:
    scores = tf.matmul(scores, scores, transpose_b=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.range(tf.shape(scores)[0]), scores
    )


_TWO = (IDS, MASKED_IDS[:, 0])

CASES = [
    Case("cross layers", lambda: functional(Cross, Cross), MIXED, REAL),
    Case(
        "cross layers of low rank",
        lambda: functional(lambda: Cross(2)),
        MIXED,
        REAL,
    ),
    Case("cross layers, vectors", lambda: functional(CrossVector), MIXED, REAL),
    Case("dot interaction, lower triangle", _dot_of_fields, MASKED_IDS, REAL),
    Case("factorization machine", FactorizationMachine, MASKED_IDS, REAL),
    Case("neural collaborative filtering", NeuralCollaborative, MIXED, REAL),
    Case("mixture of experts", Experts, FEATURES, REAL),
    Case("wide and deep", _wide_and_deep, (MASKED_IDS, FEATURES), REAL),
    Case(
        "tied table",
        Tied,
        FEW_IDS,
        CLASSES,
        loss=lambda: keras.losses.SparseCategoricalCrossentropy(
            from_logits=True
        ),
    ),
    Case("kernel as a product of weights", LowRank, FEATURES, REAL),
    *(
        Case(f"lookup by {how}", lambda how=how: Lookups(how), FEW_IDS, REAL)
        for how in (
            "embedding_lookup",
            "gather",
            "gather of a column",
            "gather_nd",
            "gather_nd of entries",
            "one_hot",
        )
    ),
    *(
        Case(
            f"tfrs {name}",
            lambda name=name: _of_recommenders(name),
            _TWO,
            REAL,
            only="tf-keras",
        )
        for name in ("Cross", "DotInteraction", "DotInteraction, masked")
    ),
    *(
        Case(
            f"constant places by {how}",
            lambda choose=choose: Through(
                layers.Dense(3), choose, layers.Flatten()
            ),
            SEQUENCES,
            REAL,
            only="Keras 3" if how.startswith("keras") else "",
            lane=how == "tf.gather",
        )
        for how, choose in _CHOSEN.items()
    ),
    Case(
        "dot interaction, pairs by tf.gather",
        lambda: Through(layers.Dense(3), _pairs),
        SEQUENCES,
        REAL,
    ),
    Case(
        "in-batch softmax",
        lambda: functional(outputs=3),
        MIXED,
        REAL,
        loss=lambda: _in_batch,
        refused="MatMul pairs different examples.*public catalogue",
        why="every example is a negative of every other",
    ),
]
