"""Which weights decay, and how much loss they make."""

import keras
import numpy as np
import pytest

from detection.models.registry import build_detector
from detection.training.engine.weight_decay import decayed_variables, l2_loss
from schemas.errors import ConfigError


def _variable(path: str, value: object = (0.0,)) -> keras.Variable:
    layer, name = path.split("/")
    with keras.name_scope(layer):
        return keras.Variable(np.array(value, np.float32), name=name)


def _paths(variables: tuple[keras.Variable, ...]) -> list[str]:
    return [variable.path for variable in variables]


def test_l2_is_the_original_s(oracles: dict) -> None:
    oracle = oracles["loss.l2"]
    kernel = _variable("head/kernel", oracle["inputs"]["w"])
    np.testing.assert_allclose(l2_loss([kernel], oracle["inputs"]["weight_decay"]), oracle["expected"], rtol=1e-6)
    assert float(l2_loss([], 1.0)) == 0.0


def test_kernels_decay_and_nothing_else() -> None:
    names = ("kernel", "depthwise_kernel", "pointwise_kernel", "bias", "gamma", "beta", "WSM")
    decayed = decayed_variables([*(_variable(f"net/{name}") for name in names), _variable("kernel_norm/gamma")])
    assert _paths(decayed) == ["net/kernel", "net/depthwise_kernel", "net/pointwise_kernel"]
    assert decayed_variables([_variable("net/bias")], ["net"]) == ()


def test_d0_decays_what_the_original_did(oracles: dict) -> None:
    d0 = build_detector("efficientdet-d0", num_classes=90)
    expected = oracles["effdet.vars.d0"]["expected"]
    decayed = decayed_variables(d0.trainable_variables)
    assert len(decayed) == expected["l2_tensors"]
    assert sum(int(np.prod(variable.shape)) for variable in decayed) == expected["l2_elements"]
    # The TF Object Detection API: all but the depthwise ones, of which there is one a block, one a fusion node, one a
    # head layer and two predictions.
    dense = decayed_variables(d0.trainable_variables, [".*depthwise"])
    assert len(decayed) - len(dense) == 16 + 3 * 8 + 2 * (3 + 1)
    assert not any("depthwise" in path for path in _paths(dense))


def test_kernels_are_left_out_by_expression() -> None:
    variables = [_variable("stem/kernel"), _variable("head/kernel"), _variable("head/bias")]
    assert _paths(decayed_variables(variables, ["head"])) == ["stem/kernel"]
    with pytest.raises(ConfigError, match=r"weight_decay_exclude: 'neck' matches no variable.*like stem/kernel"):
        decayed_variables(variables, ["neck"])
    with pytest.raises(ConfigError, match=r"weight_decay_exclude: 'ead' matches no .* 1 further on, such as head/ker"):
        decayed_variables(variables, ["ead"])
    assert _paths(decayed_variables(variables, ["ead"], match="anywhere")) == ["stem/kernel"]
