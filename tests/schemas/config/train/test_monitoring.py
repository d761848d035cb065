"""Evaluation while training: which keys go together."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.config.train.monitoring import ValidationConfig
from schemas.config.train.training import WITHOUT_EFFECT, TrainConfig


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"every": 10, "every_epochs": 0.5}, "remove one of them"),
        ({"metric": "AP50"}, "metric = AP50 does nothing without evaluations during training"),
        ({"max_images": 10}, "max_images = 10 does nothing without evaluations"),
        ({"patience": 3}, "patience = 3 does nothing without evaluations"),
        ({"min_delta": 0.1}, "min_delta = 0.1 does nothing without evaluations"),
        ({"export": "best"}, "nothing selects the best; set every"),
        ({"every": 10, "min_delta": 0.1}, "set patience"),
    ],
)
def test_a_contradiction_is_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ValidationConfig(**keys)


@pytest.mark.parametrize(
    ("keys", "enabled", "best"),
    [
        ({}, False, False),
        ({"export": "final"}, False, False),
        ({"every": 10}, True, True),
        ({"every_epochs": 0.5, "export": "best"}, True, True),
        ({"every": 10, "export": "final", "patience": 2, "min_delta": 0.01, "metric": "ARs"}, True, False),
    ],
)
def test_what_is_exported(keys: dict[str, Any], enabled: bool, best: bool) -> None:
    config = ValidationConfig(**keys)
    assert (config.enabled, config.exports_best) == (enabled, best)


def test_what_has_no_effect_on_a_training_are_keys_of_it() -> None:
    assert TrainConfig.model_fields.keys() >= WITHOUT_EFFECT
