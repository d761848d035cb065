"""Which keys of a warm start go together."""

import pytest

from schemas.config.config import Config
from schemas.config.config_io import from_yaml, load_config, to_yaml
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["train.init.rename=[[a, b]]"], r"train\.init: rename = \(\('a', 'b'\),\) does nothing without checkpoint"),
        (["train.init={weights: raw, from_previous_model: true}"], r"train\.init: weights = raw does nothing without"),
        (["train.init.fine_tune_type=full"], r"train\.init: fine_tune_type = full does nothing without a warm start"),
        (["train.init.skip=[class_net]"], r"train\.init: skip = .*'class_net'.* does nothing without a warm start"),
        (["train.init.skip_mismatch=true"], r"train\.init: skip_mismatch .*set checkpoint or from_previous_model"),
        (["train.init={checkpoint: x, skip: ['(']}"], r"train\.init\.skip\.0: '\(' is not a regular expression"),
        (
            ["train.init={checkpoint: x, rename: [['[', b]]}"],
            r"train\.init\.rename\.0\.0: '\[' is not a regular expression",
        ),
        (["train.init={checkpoint: x, fine_tune_type: all}"], r"fine_tune_type = 'all'.*'classification'"),
        (
            ["train.init.checkpoint=x", "model.backbone_weights=imagenet"],
            r"^configuration: train\.init\.checkpoint sets the complete backbone, so model\.backbone_weights would",
        ),
    ],
)
def test_a_key_that_cannot_act_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, assignments)


@pytest.mark.parametrize(
    "assignments",
    [
        ["train.init.from_previous_model=true", "model.backbone_weights=imagenet"],
        ["train.init={from_previous_model: true, checkpoint: x, weights: raw, fine_tune_type: full}"],
        ["train.init={checkpoint: x, skip: [efficientnet-b0/stem]}", "model.backbone_weights=imagenet"],
        ["train.init={checkpoint: x, skip_mismatch: true}", "model.backbone_weights=imagenet"],
    ],
)
def test_what_goes_together_is_taken(assignments: list[str]) -> None:
    config = load_config(None, assignments)
    assert from_yaml(to_yaml(config)) == config


def test_renaming_keeps_its_order_on_the_way_to_the_trainer() -> None:
    config = load_config(None, ["train.init={checkpoint: x, rename: [[z, a], [a, b]]}"])
    assert config.train.init.rename == (("z", "a"), ("a", "b"))
    assert Config.model_validate(from_yaml(to_yaml(config, ("model", "train")))) == config
