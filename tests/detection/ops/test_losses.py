from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.ops.losses import focal_loss, huber_loss

Oracles = dict[str, dict[str, Any]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("loss.focal_g1.5", {}),
        ("loss.focal_g2", {"gamma": 2.0}),
        ("loss.focal_label_smoothing", {"label_smoothing": 0.1}),
    ],
)
def test_focal_loss(oracles: Oracles, name: str, options: dict[str, float]) -> None:
    inputs = oracles[name]["inputs"]
    targets = np.array(inputs["targets"]) == 1
    result = focal_loss(np.array(inputs["logits"], np.float32), targets, **options)
    np.testing.assert_allclose(result, oracles[name]["expected"], atol=1e-6)


def test_focal_loss_of_the_untrained_head(oracles: Oracles) -> None:
    expected = oracles["head.class_bias"]["expected"]
    result = focal_loss(np.array([expected["bias"]] * 2, np.float32), np.array([False, True]))
    np.testing.assert_allclose(result, [expected["focal_negative"], expected["focal_positive"]], rtol=1e-5)


def test_focal_loss_and_its_gradient_are_finite_for_any_logit() -> None:
    logits = tf.constant([-200.0, -30.0, 0.0, 30.0, 200.0])
    for gamma in (0.0, 0.5, 1.5):
        for target in (False, True):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                loss = focal_loss(logits, tf.fill([5], target), gamma=gamma)
            assert np.isfinite(loss).all()
            assert np.isfinite(tape.gradient(loss, logits)).all()


def test_without_focusing_it_is_weighted_cross_entropy() -> None:
    logits = np.array([-1.5, 0.3, 2.0], np.float32)
    result = focal_loss(logits, np.array([True, True, True]), alpha=0.25, gamma=0.0)
    np.testing.assert_allclose(result, 0.25 * np.log1p(np.exp(-logits)), rtol=1e-5)


def test_huber_loss(oracles: Oracles) -> None:
    oracle = oracles["loss.box_huber_0.1"]
    targets = np.array(oracle["inputs"]["targets"], np.float32)
    losses = huber_loss(np.array(oracle["inputs"]["predictions"], np.float32) - targets, delta=0.1).numpy()
    # The original leaves out the coordinate whose target is 0; ours has its loss too.
    np.testing.assert_allclose(losses[targets != 0].sum() / 4, oracle["expected"][0], atol=1e-7)
    np.testing.assert_allclose(losses[targets == 0], [0.1 * 0.3 - 0.005], atol=1e-7)


def test_huber_loss_is_quadratic_then_linear() -> None:
    np.testing.assert_allclose(
        huber_loss(np.array([-0.2, 0.5, 3.0], np.float32), delta=0.5), [0.02, 0.125, 1.375], rtol=1e-6
    )
