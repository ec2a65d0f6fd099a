"""Without noise, training is what a loop over examples gives."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_dp as tsdp
from tests import model_cases as cases

# Graphs differ between versions most where layers and losses are made of many
# operations.
LANE = {
    "embeddings",
    "shared table",
    "masked mean pooling",
    "dense on sequences",
    "layer norm on sequences",
    "regularisers",
    "sample weights",
    "binary cross-entropy of logits",
    "sparse cross-entropy",
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.lane] if case.name in LANE else [],
        )
        for case in cases.CASES
    ],
)
def test_weights_equal_those_of_a_loop(case: cases.Case) -> None:
    model = cases.built(case)
    initial = [v.numpy().copy() for v in model.trainable_variables]
    clip_norm = cases.median_norm(case, model)  # Half of the examples clip.
    expected = cases.loop_weights(case, model, clip_norm, 8.0)
    optimizer = tsdp.DPSparseOptimizer(
        tf.keras.optimizers.SGD(cases.LEARNING_RATE),
        clip_norm=clip_norm,
        noise_multiplier=0.0,
        expected_batch_size=8,
        loss_reduction=case.reduction,
    )
    model.compile(optimizer=optimizer, loss=case.loss(), **case.compile)
    model.fit(cases.dataset(case), verbose=0)
    moved = 0.0
    for v, want, start in zip(
        model.trainable_variables, expected, initial, strict=True
    ):
        np.testing.assert_allclose(v.numpy(), want, rtol=0, atol=1e-5)
        moved = max(moved, float(np.abs(want - start).max()))
    assert moved > 1e-3  # The comparison is not one of zeros.
    assert optimizer.compositions_spent == 3
