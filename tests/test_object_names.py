"""Names of Keras objects that go on from an earlier count."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tf_sparse_dp.object_names import name_counts, set_name_counts

# Where Keras keeps the counts differs between versions.
pytestmark = pytest.mark.lane


def names() -> list[str]:
    """All names that a new model has, its optimizer's included."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(3, name="dense_7"),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(), loss="mse")
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    return [
        model.name,
        model.optimizer.name,
        *(layer.name for layer in model.layers),
        *(getattr(v, "path", v.name) for v in variables),
    ]


def test_names_are_the_same_again() -> None:
    before = name_counts()
    first = names()
    after = name_counts()
    assert names() != first  # Otherwise there would be nothing to hide.
    set_name_counts(before)
    assert names() == first
    assert name_counts() == after
