"""Initialisation of a training state as the configuration asks for it."""

import json
import logging
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.storage.atomic import write_json
from detection.training.build_step import initialize_from_config, state_from_config
from detection.training.engine.state import TrainState
from detection.training.initialization.initialize import InitReport
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import DataError
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_loop import Values, assert_equal
from tests.detection.training.tiny_run import CATEGORIES, SMALL, tiny_config


def _state(config: Config, strategy: tf.distribute.Strategy | None = None) -> TrainState:
    return state_from_config(config, [{}] * 3, strategy=strategy or tf.distribute.get_strategy())


def _initialize(
    config: Config,
    state: TrainState,
    *,
    base_model: Path | None = None,
    start_step: int = 0,
    strategy: tf.distribute.Strategy | None = None,
) -> InitReport | None:
    return initialize_from_config(
        config,
        state,
        CATEGORIES,
        strategy=strategy or tf.distribute.get_strategy(),
        start_step=start_step,
        base_model=base_model,
    )


def _weights(state: TrainState) -> Values:
    return {variable.path: variable.numpy() for variable in state.model.variables}


def _small_config(*assignments: str) -> Config:
    return tiny_config(*SMALL, *assignments)


@pytest.fixture(scope="module", autouse=True)
def _tiny_is_known() -> None:
    tiny_detector.register()


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Values, Values]:
    """A checkpoint of a state whose slots, step and EMA weights have moved, its raw weights and its EMA weights."""
    state = _state(_small_config("train.seed=5"))
    for number, variable in enumerate([*state.model.variables, *state.optimizer.variables]):
        variable.assign(np.full(variable.shape, number % 97 + 1))
    assert state.ema is not None
    for name, weight in state.ema.weights.items():
        weight.assign(weight + len(name))
    state.step.assign(70)
    folder = tmp_path_factory.mktemp("earlier")
    write_json(folder / LABELS_JSON, CATEGORIES)
    path = state.checkpoint().write(str(folder / "ckpt-70"))
    return str(path), _weights(state), {name: weight.numpy() for name, weight in state.ema.weights.items()}


def test_parts_that_are_frozen_with_random_weights_are_warned_of(
    earlier: tuple[str, Values, Values], caplog: pytest.LogCaptureFixture
) -> None:
    frozen = _small_config("train.freeze=[.*/stem/]")
    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        _initialize(frozen, _state(frozen))
        assert any("such as tiny/stem/kernel, are frozen with random" in m for m in caplog.messages)
        caplog.clear()
        loaded = _small_config("train.freeze=[.*/stem/]", f"train.init.checkpoint={earlier[0]}")
        _initialize(loaded, _state(loaded))
        _initialize(frozen, _state(frozen), start_step=2)
        assert not [message for message in caplog.messages if "frozen" in message]


def test_weights_of_another_network_function_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = _state(tiny_config())
    path = state.checkpoint().write(str(tmp_path / "ckpt-7"))
    write_json(tmp_path / LABELS_JSON, CATEGORIES)
    started = tiny_config(f"train.init.checkpoint={path}")

    def messages(text: str | None) -> list[str]:
        caplog.clear()
        if text is not None:
            (tmp_path / CONFIG_YAML).write_text(text)
        _initialize(started, state)
        return [message for message in caplog.messages if "the loaded weights were trained" in message]

    with caplog.at_level(logging.WARNING, "cocoflow.trainer"):
        assert messages(None) == []
        assert messages(to_yaml(tiny_config())) == []
        [message] = messages(to_yaml(tiny_config("model.overrides.pixel_mean=[1, 2, 3]")))
        assert (
            'with different pixel_mean, so the network behaves differently: set model.overrides to {"pixel_mean": [1.0'
            in message
        )
        assert messages("model: {name: unknown}") == []


@pytest.mark.parametrize("weights", ["raw", "averaged", "auto"])
def test_a_warm_start_takes_weights_and_nothing_else(earlier: tuple[str, Values, Values], weights: str) -> None:
    path, raw, ema_weights = earlier
    config = _small_config(f"train.init={{checkpoint: {path}, weights: {weights}, fine_tune_type: full}}")
    state = _state(config)
    slots = [variable.numpy() for variable in state.optimizer.variables]
    report = _initialize(config, state)

    expected = raw if weights == "raw" else ema_weights
    assert_equal(_weights(state), expected)
    assert state.ema is not None
    assert_equal({name: weight.numpy() for name, weight in state.ema.weights.items()}, expected)
    assert int(state.step) == 0
    for before, variable in zip(slots, state.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), before)
    assert report is not None
    assert report.fresh == ()
    taken = "" if weights == "raw" else f" ({len(ema_weights)} EMA weights)"
    assert str(report) == f"warm start from {path}: {len(raw)} variables loaded{taken}; 0 variables fresh"


def test_raw_values_stand_in_where_no_average_was_kept(tmp_path: Path) -> None:
    config = _small_config("train.ema.include_batch_norm=false")
    state = _state(config)
    for variable in state.model.variables:
        variable.assign(np.full(variable.shape, 2.0))
    path = state.checkpoint().write(str(tmp_path / "ckpt-1"))
    started = _state(warm := _small_config(f"train.init={{checkpoint: {path}, fine_tune_type: full}}"))
    report = _initialize(warm, started)
    assert state.ema is not None
    assert report is not None
    assert report.warm_start is not None
    assert report.warm_start.ema == len(state.ema.weights) < len(state.model.variables)
    values = _weights(started)
    for name, value in values.items():
        expected = state.ema.weights[name].numpy() if name in state.ema.weights else np.full(value.shape, 2.0)
        np.testing.assert_array_equal(value, expected)


def test_precision_and_replicas_of_the_new_run_do_not_matter(
    earlier: tuple[str, Values, Values], two_replicas: tf.distribute.Strategy
) -> None:
    path, _, ema_weights = earlier
    config = _small_config(f"train.init.checkpoint={path}", "train.precision=mixed_bfloat16")
    state = _state(config, two_replicas)
    _initialize(config, state, strategy=two_replicas)
    assert state.ema is not None
    for variable in state.model.variables:
        for held in (variable.value, state.ema.weights[variable.path]):
            for replica in two_replicas.experimental_local_results(held):
                np.testing.assert_array_equal(replica.numpy(), ema_weights[variable.path], err_msg=variable.path)


def test_a_run_that_goes_on_is_not_initialised_again(caplog: pytest.LogCaptureFixture) -> None:
    config = _small_config("train.init.checkpoint=/no/longer/there")
    state = _state(config)
    before = _weights(state)
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        assert _initialize(config, state, start_step=2) is None
    assert caplog.messages == [
        "resumed run: ignoring model.weights and train.init; the weights come from its checkpoint"
    ]
    assert_equal(_weights(state), before)
    with pytest.raises(DataError, match="/no/longer/there: no such file or folder"):
        _initialize(config, state)


def test_without_any_source_the_weights_are_the_seeds(caplog: pytest.LogCaptureFixture) -> None:
    config = _small_config()
    state = _state(config)
    before = _weights(state)
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        assert _initialize(config, state) is None
        assert _initialize(config, state, start_step=2) is None
        assert caplog.messages == []
        assert _initialize(_small_config("train.init.from_previous_model=true"), state) is None
    assert caplog.messages == ["train.init.from_previous_model: no blessed model yet; starting from random weights"]
    assert_equal(_weights(state), before)


def test_a_previous_model_goes_before_a_checkpoint(
    earlier: tuple[str, Values, Values], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _, ema_weights = earlier
    config = _small_config(f"train.init={{from_previous_model: true, checkpoint: {path}}}")
    previous = _state(_small_config("train.seed=9"))
    model = tmp_path / "model" / "Format-Serving"
    values = {name: tf.Variable(value) for name, value in _weights(previous).items()}
    tf.train.Checkpoint(weights=values).write(str(model / "variables" / "variables"))
    (model / "saved_model.pb").touch()
    write_json(model / EXTRA_FILES / LABELS_JSON, CATEGORIES)
    state = _state(config)
    report = _initialize(config, state, base_model=model.parent)
    assert_equal(_weights(state), _weights(previous))
    assert report is not None
    assert report.warm_start is not None
    assert report.warm_start.source == str(model / "variables" / "variables")
    with caplog.at_level(logging.INFO, "cocoflow.trainer"):
        _initialize(config, state)
    assert f"no blessed model yet; starting from {path}" in caplog.text
    assert_equal(_weights(state), ema_weights)


def test_the_report_lists_every_variable_once(tmp_path: Path) -> None:
    start = _state(tiny_config())
    path = start.checkpoint().write(str(tmp_path / "ckpt-70"))
    write_json(tmp_path / LABELS_JSON, CATEGORIES)
    categories = [*CATEGORIES[:2], {"id": 90, "name": "new"}]
    rules = "skip: [box_net], skip_mismatch: true"
    config = tiny_config(f"train.init={{checkpoint: {path}, {rules}}}", "model.overrides={neck: {filters: 24}}")
    state = _state(config)
    report = initialize_from_config(
        config, state, categories, strategy=tf.distribute.get_strategy(), start_step=0, base_model=None
    )
    assert report is not None
    listed = json.loads(json.dumps(report.as_json()))
    warm = listed["warm_start"]
    lists = ("loaded", "loaded_in_part", "skipped", "mismatched", "not_there")
    told = [path for key in lists for path in warm[key]]
    assert sorted(told) == sorted(_weights(state))
    assert warm["loaded_in_part"] == ["class_net/class-predict/bias"]
    assert "efficientnet-nano/stem/conv2d/kernel" in warm["loaded"]
    assert set(warm["skipped"].values()) == {"box_net"}
    kernel = "class_net/class-predict/pointwise_kernel"
    assert warm["mismatched"][kernel] == {"needed": [1, 1, 24, 27], "there": [1, 1, 16, 27]}
    assert warm["not_there"]
    assert set(warm["unused_there"]) <= set(_weights(start))
    assert set(listed["fresh"]) == set(told) - {*warm["loaded"], *warm["loaded_in_part"]}
    assert f"{len(warm['skipped'])} skipped, {len(warm['mismatched'])} with another shape" in str(report)

    whole = tiny_config(f"train.init.checkpoint={path}")
    report = initialize_from_config(
        whole, _state(whole), categories, strategy=tf.distribute.get_strategy(), start_step=0, base_model=None
    )
    assert report is not None
    warm = report.as_json()["warm_start"]
    assert warm["loaded_in_part"] == [kernel, "class_net/class-predict/bias"]
    assert "2 partly; fresh class outputs for new; 0 variables fresh" in str(report)


class TestBackbone:
    """keras.applications' weights, alone and with a checkpoint over them."""

    D0 = ("model.name=efficientdet-d0", "model.overrides={neck: {cells: 1, filters: 16}, head: {layers: 1}}")

    @pytest.fixture(scope="class")
    def theirs(self) -> keras.Model:
        keras.utils.set_random_seed(77)
        return keras.applications.EfficientNetB0(weights=None, include_top=False)

    @pytest.fixture(scope="class")
    def file(self, theirs: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
        path = tmp_path_factory.mktemp("weights") / "b0.weights.h5"
        theirs.save_weights(path)
        return str(path)

    @pytest.fixture(scope="class")
    def state(self) -> TrainState:
        return _state(tiny_config(*self.D0))

    def test_alone(self, theirs: keras.Model, file: str, state: TrainState) -> None:
        before = _weights(state)
        report = _initialize(tiny_config(*self.D0, f"model.backbone_weights={file}"), state)
        assert report is not None
        got = _weights(state)
        stem = theirs.get_layer("stem_conv").get_weights()[0]
        np.testing.assert_array_equal(got["efficientnet-b0/stem/conv2d/kernel"], stem)
        assert state.ema is not None
        np.testing.assert_array_equal(state.ema.weights["efficientnet-b0/stem/conv2d/kernel"].numpy(), stem)
        assert set(report.fresh) == {name for name in got if not name.startswith("efficientnet-b0/")}
        assert_equal({name: got[name] for name in report.fresh}, {name: before[name] for name in report.fresh})
        assert set(report.as_json()) == {"backbone_weights", "fresh"}

    def test_under_a_checkpoint_that_leaves_some(
        self, theirs: keras.Model, file: str, state: TrainState, tmp_path: Path
    ) -> None:
        stem = "efficientnet-b0/stem/conv2d/kernel"
        for variable in state.model.variables:
            if variable.path == stem:
                variable.assign(tf.zeros_like(variable))
        blocks = {"efficientnet-b0/blocks_0/depthwise_conv2d/kernel": tf.Variable(tf.ones([3, 3, 32, 1]))}
        path = tf.train.Checkpoint(model=blocks).write(str(tmp_path / "ckpt-1"))
        config = tiny_config(
            *self.D0, f"model.backbone_weights={file}", f"train.init={{checkpoint: {path}, skip_mismatch: true}}"
        )
        report = _initialize(config, state)
        got = _weights(state)
        assert (got["efficientnet-b0/blocks_0/depthwise_conv2d/kernel"] == 1).all()
        np.testing.assert_array_equal(got[stem], theirs.get_layer("stem_conv").get_weights()[0])
        assert report is not None
        assert set(report.as_json()) == {"backbone_weights", "warm_start", "fresh"}
        assert not any(name.startswith("efficientnet-b0/") for name in report.fresh)


def test_backbone_weights_are_not_loaded_in_vain(tmp_path: Path) -> None:
    """A previous model sets the whole backbone; the file is not even looked at."""
    config = tiny_config("model.backbone_weights=/nowhere.h5", "train.init.from_previous_model=true")
    state = _state(config)
    values = {name: tf.Variable(value + 1) for name, value in _weights(state).items()}
    tf.train.Checkpoint(model=values).write(str(tmp_path / "ckpt-1"))
    report = _initialize(config, state, base_model=tmp_path)
    assert report is not None
    assert report.backbone is None
    stem = "efficientnet-nano/stem/conv2d/kernel"
    np.testing.assert_array_equal(_weights(state)[stem], values[stem].numpy())
