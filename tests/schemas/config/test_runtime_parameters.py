"""Parameters of a compiled pipeline: names, defaults, and the validation of what a submission sets."""

from typing import Any

import pytest

from schemas.config.config_io import load_config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS, default_value, with_parameters
from schemas.errors import ConfigError

CONFIG = load_config(
    None,
    [
        "data.root=gs://a/{SPAN}",
        "data.span=2026-11-20",
        "evaluate.thresholds={absolute: {AP: 0.5}, significant: [AP50]}",
    ],
)


def test_defaults_change_nothing() -> None:
    for config in (CONFIG, load_config(None)):
        defaults = {name: default_value(config, name) for name in RUNTIME_PARAMETERS}
        assert {type(value) for value in defaults.values()} == {str, int}
        assert with_parameters(config, defaults) == config
        assert with_parameters(config, {}) is config


def test_a_number_replaces_what_is_not_a_number() -> None:
    """0 stands for epochs and for a batch size that is measured."""
    config = load_config(None, ["train.epochs=3", "train.batch_size=auto", "train.memory_limit=4"])
    defaults = {name: default_value(config, name) for name in RUNTIME_PARAMETERS}
    assert (defaults["train_steps"], defaults["train_batch_size"]) == (0, 0)
    assert with_parameters(config, defaults) == config
    changed = with_parameters(config, {**defaults, "train_steps": 9, "train_batch_size": 4})
    assert changed == load_config(None, ["train.steps=9", "train.batch_size=4"])


def test_each_parameter_sets_its_key() -> None:
    values: dict[str, Any] = {
        "data_root": "gs://b",
        "data_span": "7",
        "model_name": "efficientdet-d1",
        "train_steps": 12,
        "train_batch_size": 3,
        "evaluate_thresholds": "{improvement: {AP: 0.01}}",
        "push_directory": "gs://served",
    }
    assert set(values) == set(RUNTIME_PARAMETERS)
    assignments = [
        "data.root=gs://b",
        "data.span=7",
        "model.name=efficientdet-d1",
        "train.steps=12",
        "train.batch_size=3",
        "evaluate.thresholds={improvement: {AP: 0.01}}",
        "push.directory=gs://served",
    ]
    assert with_parameters(CONFIG, {**values, "settings": "another execution parameter"}) == load_config(
        None, assignments
    )


def test_an_empty_text_is_none() -> None:
    config = with_parameters(CONFIG, {"data_root": "", "data_span": "", "evaluate_thresholds": ""})
    assert (config.data.root, config.data.span) == (None, None)
    assert config.evaluate.thresholds == load_config(None).evaluate.thresholds


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_steps": -1}, r"parameters of this run: train\.steps = -1: Input should be greater than 0"),
        ({"data_span": "yesterday"}, r"parameters of this run: data\.span = 'yesterday'"),
        ({"evaluate_thresholds": "{absolute: {AQ: 1}}"}, "'AQ' is not a COCO metric"),
        ({"evaluate_thresholds": "{absolute"}, "parameters of this run: evaluate_thresholds = .*: not YAML"),
        ({"evaluate_thresholds": "0.5"}, r"evaluate\.thresholds = 0\.5"),
        ({"train_steps": 10_000, "train_batch_size": -1}, r"train\.batch_size = -1"),
    ],
)
def test_an_invalid_value_is_refused_by_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_parameters(CONFIG, values)
