from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import Config
from schemas.config_io import from_yaml, load_config, to_yaml
from schemas.errors import ConfigError


def test_defaults_survive_a_round_trip() -> None:
    assert from_yaml(to_yaml(Config())) == Config()


@given(
    steps=st.integers(1, 10**9),
    rate=st.floats(1e-8, 10.0),
    freeze=st.lists(st.from_regex(r"[abc/.]+\*?", fullmatch=True)),
)
def test_values_survive_a_round_trip(steps: int, rate: float, freeze: list[str]) -> None:
    config = Config.model_validate({"train": {"steps": steps, "schedule": {"learning_rate": rate}, "freeze": freeze}})
    assert from_yaml(to_yaml(config)) == config


def test_assignments_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train: {steps: 5, batch_size: 2}\n")
    config = load_config(
        path, ["train.batch_size=4", "data.splits.train.annotations=a.json", "data.splits.train.images=i"]
    )
    assert (config.train.steps, config.train.batch_size) == (5, 4)
    assert config.data.splits["train"].annotations == "a.json"


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("train.batchsize=4", ["unknown key train.batchsize", "train.batch_size"]),
        ("train.shedule.learning_rate=1", ["unknown key train.shedule", "train.schedule"]),
        ("trian.steps=1", ["unknown key trian", "train"]),
        ("train.steps=many", ["train.steps", "'many'", "integer"]),
        ("train.steps=0", ["train.steps", "greater than 0"]),
        ("train.schedule.warmup_steps=1000", ["train: schedule.warmup_steps = 1000", "steps = 1000"]),
        ("train.augment.scale_min=3", ["train.augment: scale_min = 3.0 is above scale_max = 2.0"]),
        ("train={jit_compile: true, deterministic: true}", ["train: jit_compile and deterministic exclude each other"]),
        ("train.precision=float8", ["train.precision", "'float8'", "mixed_bfloat16"]),
        ("evaluate.thresholds.absolute.mAP=0.5", ["evaluate.thresholds.absolute.mAP", "AP50"]),
        (
            "evaluate.analysis={visualizations: 0, max_boxes: 5}",
            ["evaluate.analysis: max_boxes = 5 does nothing while visualizations = 0"],
        ),
        (
            "evaluate={thresholds: {significant: [AP]}, analysis: {replicates: 0}}",
            ["evaluate: thresholds.significant needs intervals; set analysis.replicates"],
        ),
        (
            "data.splits.train.annotations=a.json",
            ["data.splits.train", "annotations and images are needed, or records"],
        ),
        ("data.splits.train={records: a, images: b}", ["data.splits.train", "take annotations and images away"]),
        ("data.split_ratios={train: 0.8, eval: 0.1}", ["data.split_ratios", "the shares make 0.9, not 1"]),
        ("data.on_fault=skip", ["data.on_fault"]),
        ("data.on_fault.image_broken=keep", ["data.on_fault.image_broken", "'keep'", "'fail' or 'drop'"]),
        ("train.steps", ["expected key=value"]),
        ("=3", ["expected key=value"]),
    ],
)
def test_a_wrong_assignment_is_explained(assignment: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [assignment])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"), [("- 1\n", "mapping of sections"), ("train: [", "not a YAML file"), ("train: 3", "train = 3")]
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"wrong\.yaml") as caught:
        load_config(path)
    assert part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.yaml.*--config"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().train.steps = 3


def test_warmup_is_a_tenth_unless_said() -> None:
    assert load_config(None, ["train.steps=70"]).train.warmup_steps == 7
    assert load_config(None, ["train.schedule.warmup_steps=0"]).train.warmup_steps == 0
    assert load_config(None, ["train.steps=3"]).train.warmup_steps == 0
