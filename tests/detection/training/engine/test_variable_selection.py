"""What training may change: by expression, and by the rules of batch norm."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.layers.batch_norm import BatchNormalization
from detection.models.registry import build_detector
from detection.training.engine.variable_selection import ChangingVariables, decayed_variables, freeze_variables
from schemas.errors import ConfigError


class _Net(keras.Model):
    def __init__(self, *, batch_norm: bool = True) -> None:
        super().__init__(name="net")
        self.stem = keras.layers.Conv2D(2, 1, name="stem")
        self.norm = BatchNormalization(name="norm") if batch_norm else keras.layers.Activation("relu", name="norm")
        self.head = keras.layers.Conv2D(1, 1, name="head")
        self.stem.build((None, 4, 4, 3))
        self.norm.build((None, 4, 4, 2))
        self.head.build((None, 4, 4, 2))
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        hidden = self.stem(inputs)
        return self.head(self.norm(hidden, training=training) if training else self.norm(hidden))


WEIGHTS = ["stem/kernel", "stem/bias", "norm/gamma", "norm/beta", "head/kernel", "head/bias"]
STATISTICS = ["norm/moving_mean", "norm/moving_variance"]


def _paths(changing: ChangingVariables) -> tuple[list[str], list[str]]:
    trainable, statistics = ([variable.path for variable in variables] for variables in changing)
    return trainable, statistics


@pytest.mark.parametrize(
    ("options", "trainable", "statistics"),
    [
        ({}, WEIGHTS, STATISTICS),
        ({"freeze": ["stem"]}, WEIGHTS[2:], STATISTICS),
        ({"freeze": ["stem", "norm"]}, WEIGHTS[4:], []),
        ({"freeze": [".*(kernel|gamma)"]}, ["stem/bias", "norm/beta", "head/bias"], STATISTICS),
        ({"freeze": ["(?!.*moving_)(stem|norm)"]}, WEIGHTS[4:], STATISTICS),
        ({"trainable": ["head"]}, WEIGHTS[4:], []),
        ({"freeze": ["ead|ernel|norm/m"], "match": "anywhere"}, ["stem/bias", "norm/gamma", "norm/beta"], []),
        ({"freeze": ["^stem", "a$"], "match": "anywhere"}, WEIGHTS[4:], STATISTICS),
        ({"trainable": ["gamma|bias"], "match": "anywhere"}, ["stem/bias", "norm/gamma", "head/bias"], []),
        ({"trainable": ["norm", "head"], "freeze": [".*bias"]}, ["norm/gamma", "norm/beta", "head/kernel"], STATISTICS),
        ({"batch_norm": "statistics"}, WEIGHTS, []),
        ({"batch_norm": "statistics", "freeze": ["stem", "norm/beta"]}, ["norm/gamma", *WEIGHTS[4:]], []),
        ({"batch_norm": "all"}, [*WEIGHTS[:2], *WEIGHTS[4:]], []),
    ],
)
def test_what_is_left_to_change(options: dict, trainable: list[str], statistics: list[str]) -> None:
    assert _paths(freeze_variables(_Net(), **options)) == (trainable, statistics)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"freeze": ["ead"]},
            r"train\.freeze: 'ead' matches no variable from the start of its path, but 2 anywhere in it, such as"
            r" head/bias; to match anywhere, begin with '\.\*' or set train\.pattern_match=anywhere",
        ),
        ({"freeze": ["neck"]}, r"train\.freeze: 'neck' matches no variable; .* is stem/kernel"),
        ({"freeze": ["neck"], "match": "anywhere"}, r"train\.freeze: 'neck' matches no variable; an example"),
        ({"trainable": ["head", "neck"]}, r"train\.trainable: 'neck' matches no variable"),
        ({"freeze": [".*"]}, "leave no variable to train"),
        ({"trainable": ["head"], "freeze": ["head"]}, "leave no variable to train"),
        ({"trainable": ["norm/moving_mean"]}, "leave no variable to train"),
    ],
)
def test_a_freeze_that_cannot_be_is_explained(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze_variables(_Net(), **options)


@pytest.mark.parametrize(
    ("options", "level", "message"),
    [
        ({"freeze": ["stem"]}, "INFO", "train.freeze: 'stem' matches 2 of 8 variables"),
        ({"trainable": ["norm|head"]}, "INFO", "train.trainable: 'norm|head' matches 6 of 8 variables"),
        (
            {"freeze": ["e"], "match": "anywhere", "trainable": ["."]},
            "WARNING",
            "train.trainable: '.' matches 8 of 8 variables: all of them",
        ),
        (
            {"freeze": ["stem|gamma"]},
            "WARNING",
            "train.freeze: 'stem|gamma' matches 2 of 8 variables from the start of their paths, and 3 anywhere in them"
            "; to match anywhere, begin with '.*' or set train.pattern_match=anywhere",
        ),
        ({"freeze": ["bias", "stem"], "match": "anywhere"}, "INFO", "train.freeze: 'bias' matches 2 of 8 variables"),
    ],
)
def test_the_log_tells_how_many_variables_each_expression_matches(
    options: dict, level: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="cocoflow.trainer"):
        freeze_variables(_Net(), **options)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert (level, message) in lines
    assert len(lines) == len(options.get("freeze", [])) + len(options.get("trainable", []))


def test_batch_norm_that_is_not_there_cannot_be_frozen() -> None:
    with pytest.raises(ConfigError, match=r"train\.freeze_batch_norm = all: net has no batch norm"):
        freeze_variables(_Net(batch_norm=False), batch_norm="all")


@pytest.mark.parametrize("options", [{"freeze": ["norm"]}, {"batch_norm": "statistics"}, {"batch_norm": "all"}])
def test_fixed_statistics_stay_and_are_what_training_normalises_by(options: dict) -> None:
    net = _Net()
    net.norm.moving_mean.assign([0.3, -2.0])
    net.norm.moving_variance.assign([4.0, 0.5])
    images = tf.random.stateless_normal([2, 4, 4, 3], [0, 1])
    assert np.abs(net(images, training=True) - net(images)).max() > 0.1
    net.norm.moving_mean.assign([0.3, -2.0])
    net.norm.moving_variance.assign([4.0, 0.5])
    freeze_variables(net, **options)
    np.testing.assert_array_equal(net(images, training=True), net(images))
    np.testing.assert_array_equal(net.norm.moving_mean, np.array([0.3, -2.0], np.float32))
    np.testing.assert_array_equal(net.norm.moving_variance, np.array([4.0, 0.5], np.float32))


def test_scale_and_offset_train_on_fixed_statistics(op_determinism: None) -> None:
    """As in Mask R-CNN: output = gamma * (x - mean) / sqrt(variance + epsilon) + beta with constants inside."""
    net = _Net()
    net.norm.moving_mean.assign([1.0, 2.0])
    net.norm.moving_variance.assign([4.0, 9.0])
    freeze_variables(net, batch_norm="statistics")
    hidden = tf.random.stateless_normal([2, 4, 4, 2], [0, 1])
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        loss = tf.reduce_sum(net.norm(hidden, training=True) ** 2) / 2
    gamma, beta, inputs = tape.gradient(loss, [net.norm.gamma.value, net.norm.beta.value, hidden])
    scale = 1 / np.sqrt(np.array([4.0, 9.0]) + net.norm.epsilon)
    normalised = (hidden.numpy() - [1.0, 2.0]) * scale
    np.testing.assert_allclose(gamma, (normalised**2).sum((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(beta, normalised.sum((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(inputs, normalised * scale, rtol=1e-4, atol=1e-6)


def test_d0_keeps_training_what_the_original_did(oracles: dict) -> None:
    oracle = oracles["effdet.freeze.d0"]
    d0 = build_detector("efficientdet-d0", num_classes=90)
    elements, tensors = [], []
    for pattern in oracle["inputs"]["patterns"]:
        left = freeze_variables(d0, freeze=[pattern]).trainable
        tensors.append(len(left))
        elements.append(sum(int(np.prod(variable.shape)) for variable in left))
    assert elements == oracle["expected"]["remaining_elements"]
    assert tensors == oracle["expected"]["remaining_tensors"]


def _variable(path: str, value: object = (0.0,)) -> keras.Variable:
    layer, name = path.split("/")
    with keras.name_scope(layer):
        return keras.Variable(np.array(value, np.float32), name=name)


def _names(variables: tuple[keras.Variable, ...]) -> list[str]:
    return [variable.path for variable in variables]


def test_kernels_decay_and_nothing_else() -> None:
    names = ("kernel", "depthwise_kernel", "pointwise_kernel", "bias", "gamma", "beta", "WSM")
    decayed = decayed_variables([*(_variable(f"net/{name}") for name in names), _variable("kernel_norm/gamma")])
    assert _names(decayed) == ["net/kernel", "net/depthwise_kernel", "net/pointwise_kernel"]
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
    assert not any("depthwise" in path for path in _names(dense))


def test_kernels_are_left_out_by_expression() -> None:
    variables = [_variable("stem/kernel"), _variable("head/kernel"), _variable("head/bias")]
    assert _names(decayed_variables(variables, ["head"])) == ["stem/kernel"]
    with pytest.raises(ConfigError, match=r"weight_decay_exclude: 'neck' matches no variable; .* is stem/kernel"):
        decayed_variables(variables, ["neck"])
    with pytest.raises(ConfigError, match=r"weight_decay_exclude: 'ead' matches no .* 1 anywhere in it, such as"):
        decayed_variables(variables, ["ead"])
    assert _names(decayed_variables(variables, ["ead"], match="anywhere")) == ["stem/kernel"]
