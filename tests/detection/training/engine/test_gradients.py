"""Clipping and multiplication of gradients: against the oracle's, hand-computed and numpy's numbers."""

from typing import Any, get_args

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.registry import build_detector
from detection.ops.replicas import sum_over_replicas
from detection.training.engine.gradients import Regularization, is_bias, regularization_loss, transform_gradients
from schemas.config.train.optimization import BiasVariables


def _variables(*names: str) -> list[keras.Variable]:
    return [keras.Variable([0.0], name=name) for name in names]


def _norms(gradients: list[tf.Tensor]) -> list[float]:
    return [float(np.linalg.norm(gradient.numpy())) for gradient in gradients]


def test_l2_loss_equals_the_original(oracles: dict) -> None:
    oracle = oracles["loss.l2"]
    kernel = keras.Variable(np.array(oracle["inputs"]["w"], np.float32), name="kernel")
    l2 = Regularization([kernel], 0.0, oracle["inputs"]["weight_decay"])
    np.testing.assert_allclose(regularization_loss([l2]), oracle["expected"], rtol=1e-6)
    assert float(regularization_loss([])) == 0.0


def test_the_l1_loss_is_the_sum_of_absolute_values() -> None:
    first, second = (keras.Variable(np.array(values, np.float32)) for values in ([1.0, -2.0], [[3.0]]))
    parts = [Regularization([first, second], 0.5, 0.0), Regularization([second], 0.25, 2.0)]
    assert float(regularization_loss(parts)) == pytest.approx(0.5 * 6.0 + 0.25 * 3.0 + 2.0 * 9.0 / 2.0)


def test_each_gradient_then_all_together_as_automl(oracles: dict) -> None:
    oracle = oracles["clip.per_var_then_global"]
    gradients = [tf.constant([0.0, 30.0]), tf.constant([4.0])]
    clipped = transform_gradients(gradients, _variables("kernel", "kernel"), per_variable_norm=10.0, global_norm=10.0)
    np.testing.assert_allclose(_norms(clipped), oracle["expected"], atol=oracle["tolerance"])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, [[3.0, -4.0], [0.5]]),
        ({"value": 1.0}, [[1.0, -1.0], [0.5]]),
        ({"per_variable_norm": 1.0}, [[0.6, -0.8], [0.5]]),
        ({"global_norm": 25.25**0.5 / 2}, [[1.5, -2.0], [0.25]]),
        ({"norm_ratio": 25.25**0.5 / 2 / 3**0.5}, [[1.5, -2.0], [0.25]]),
        ({"value": 3.0, "per_variable_norm": 2.0**0.5}, [[1.0, -1.0], [0.5]]),
        ({"global_norm": 100.0}, [[3.0, -4.0], [0.5]]),
    ],
)
def test_each_rule_alone_and_in_order(rules: Any, expected: list[list[float]]) -> None:
    gradients = [tf.constant([3.0, -4.0]), tf.constant([0.5])]
    changed = transform_gradients(gradients, _variables("kernel", "kernel"), **rules)
    for got, value in zip(changed, expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-6)


def test_the_norm_ratio_counts_weights_as_mask_rcnn(oracles: dict) -> None:
    oracle = oracles["clip.ratio"]
    for elements, bound in zip(oracle["inputs"]["elements"], oracle["expected"], strict=True):
        # All of it in one element, so that the norm adds up exactly.
        gradients = [tf.one_hot(0, elements - 1, on_value=1000.0), tf.zeros([1])]
        clipped = transform_gradients(gradients, _variables("kernel", "bias"), norm_ratio=oracle["inputs"]["ratio"])
        np.testing.assert_allclose(_norms(clipped), [bound, 0.0], atol=oracle["tolerance"])


def test_bias_gradients_are_multiplied_before_clipping_unless_compatibility_is_asked_for(oracles: dict) -> None:
    oracle = oracles["clip.bias_gradient"]
    inputs, expected = oracle["inputs"], oracle["expected"]
    gradients = [tf.constant([inputs["clipped_kernel"]]), tf.constant([inputs["clipped_bias"]])]
    variables = _variables("kernel", "bias")
    rules = {"bias_multiplier": 2.0, "global_norm": inputs["clip_norm"]}

    after = transform_gradients(gradients, variables, **rules, multiply_after_clipping=True)
    np.testing.assert_allclose(_norms(after), [expected["applied_kernel"], expected["applied_bias"]], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(_norms(after)), expected["applied_norm"], atol=oracle["tolerance"])

    before = transform_gradients(gradients, variables, **rules)
    np.testing.assert_allclose(_norms(before), np.array([3.0, 8.0]) * 5.0 / np.hypot(3.0, 8.0), rtol=1e-6)


@pytest.mark.parametrize(("rule", "beta"), [("bias_and_beta", 3.0), ("bias", 1.0)])
def test_biases_go_by_the_variables_own_name(rule: BiasVariables, beta: float) -> None:
    with keras.name_scope("bias_free"):
        variables = _variables("kernel", "bias", "beta", "gamma", "depthwise_bias")
    changed = transform_gradients(
        [tf.constant([1.0])] * 5, variables, bias_multiplier=3.0, bias_variables=rule, value=100.0
    )
    assert [float(gradient[0]) for gradient in changed] == [1.0, 3.0, beta, 1.0, 3.0]


def test_which_variables_of_an_efficientdet_each_rule_multiplies() -> None:
    """The OD API's `.*/biases` are those of convolutions; TPU Mask R-CNN's rule takes batch norm's offsets, too."""
    detector = build_detector("efficientdet-d0", num_classes=3)
    variables = detector.trainable_variables
    taken = {rule: {v.path for v in variables if is_bias(v, rule)} for rule in get_args(BiasVariables)}
    layers = [layer for layer in detector._flatten_layers() if layer.trainable_variables]
    norms = [layer for layer in layers if isinstance(layer, BatchNormalization)]
    biases = {layer.bias.path for layer in layers if getattr(layer, "bias", None) is not None}
    assert (len(norms), len(biases)) == (108, 70)
    assert taken == {"bias": biases, "bias_and_beta": biases | {norm.beta.path for norm in norms}}


def test_two_replicas_clip_the_gradient_of_the_global_batch(two_replicas: tf.distribute.Strategy) -> None:
    """Clipped before the sum, the two gradients of norm 3 and 4 would come out with norms 1 and 1."""

    def per_replica() -> list[tf.Tensor]:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        own = tf.where(first, tf.constant([3.0, 0.0]), tf.constant([0.0, 4.0]))
        return transform_gradients([sum_over_replicas(own)], _variables("kernel"), global_norm=1.0)

    (clipped,) = two_replicas.run(per_replica)
    for got in two_replicas.experimental_local_results(clipped):
        np.testing.assert_allclose(got, [0.6, 0.8], rtol=1e-6)
