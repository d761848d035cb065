"""Numbers that a configuration leaves open: steps of epochs, and the batch size of a run that resumes."""

import logging
import math
from pathlib import Path

import pytest

from detection.training.resolve import assumed, resolved, steps_of_epochs, with_steps
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from schemas.config.train.training import STEPS_OF_EPOCHS, TrainConfig
from schemas.errors import ConfigError, DataError

EPOCHS = ("train.epochs=3", "train.batch_size=4", "train.schedule.warmup_epochs=1")


def _never() -> int:
    raise AssertionError("nothing is to be measured")


def _resolved(output: Path, *assignments: str, records: int = 10) -> Config:
    return resolved(load_config(None, assignments), records=records, output=output, find_batch_size=_never)


def _checkpoint(output: Path, config: Config | None) -> None:
    (output / CHECKPOINTS).mkdir()
    (output / CHECKPOINTS / "ckpt-2.index").touch()
    if config is not None:
        (output / CONFIG_YAML).write_text(to_yaml(config))


@pytest.mark.parametrize("records", [1, 7, 64, 118287])
@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_epochs_end_with_the_step_that_shows_their_last_image(records: int, batch_size: int) -> None:
    for epochs in (1, 2, 300):
        steps = steps_of_epochs(epochs, records=records, batch_size=batch_size)
        assert (steps - 1) * batch_size < epochs * records <= steps * batch_size


def test_decimals_of_epochs_are_exact() -> None:
    """In floating point, 1.1 * 100 / 10 is above 11."""
    assert 1.1 * 100 / 10 > 11
    assert steps_of_epochs(1.1, records=100, batch_size=10) == 11
    assert steps_of_epochs(0.1, records=30, batch_size=1) == 3


def test_every_key_in_epochs_becomes_one_in_steps() -> None:
    config = load_config(
        None,
        [
            *EPOCHS,
            "train.checkpoint_every_epochs=0.5",
            "train.validation.every_epochs=1.5",
            "train.schedule.total_epochs=6",
            "train.schedule.hold_epochs=0.5",
            "train.accumulate_steps=2",
        ],
    )
    train = with_steps(config, records=80).train  # 10 steps per epoch
    assert (train.steps, train.checkpoint_every, train.validation.every) == (30, 5, 15)
    assert (train.schedule.total_steps, train.schedule.warmup_steps, train.schedule.hold_steps) == (60, 10, 5)
    assert not train.has_epochs
    assert train.checkpoint_every_epochs is None
    assert train.validation.every_epochs is None


def test_boundaries_and_decays_are_resolved_as_google_automl_has_them() -> None:
    """Drops at epochs 200 and 250 of 300 of COCO, as in steps of a batch of 64."""
    keys = ["train.epochs=300", "train.batch_size=64", "train.schedule.warmup_epochs=1"]
    step = ["train.schedule.name=step", "train.schedule.boundaries_epochs=[200, 250]"]
    train = with_steps(load_config(None, [*keys, *step, "train.schedule.factors=[0.1, 0.01]"]), records=118287).train
    assert train.schedule.boundaries == (math.ceil(200 * 118287 / 64), math.ceil(250 * 118287 / 64))
    assert train.schedule.warmup_steps == 1849
    decay = ["train.schedule.name=exponential", "train.schedule.decay_epochs=2.4"]
    assert with_steps(load_config(None, [*keys, *decay]), records=640).train.schedule.decay_steps == 24


def test_every_pair_of_keys_exists() -> None:
    for pair in STEPS_OF_EPOCHS.items():
        for key in pair:
            section = TrainConfig()
            *parents, name = key.split(".")
            for parent in parents:
                section = getattr(section, parent)
            assert hasattr(section, name)


@pytest.mark.parametrize(("steps", "expected"), [(150, (0.833, 1.2)), (10_000, (0.667, 1.5))])
def test_scale_jitter_grows_with_the_epochs(steps: int, expected: tuple[float, float], tmp_path: Path) -> None:
    """4 images per step of 10 are 60 epochs in 150 steps."""
    keys = (f"train.steps={steps}", "train.batch_size=4")
    assert _resolved(tmp_path, *keys).train.augment.scales == expected
    assert _resolved(tmp_path, *keys, "train.augment.scale_min=0.1").train.augment.scales == (0.1, expected[1])
    assert _resolved(tmp_path, f"train.epochs={steps * 0.4}", *keys[1:]).train.augment.scales == expected


def test_what_has_no_epochs_stays_as_it_is(tmp_path: Path) -> None:
    keys = ["train.steps=20", "train.schedule.learning_rate=0.01", "model.overrides={batch_norm: {momentum: 0.5}}"]
    keys += ["train.augment={scale_min: 0.5, scale_max: 2}"]
    config = load_config(None, keys)
    assert with_steps(config, records=10) is config
    schedule = ("train.schedule.warmup_steps=2", "train.schedule.hold_steps=12")
    assert _resolved(tmp_path, *keys) == load_config(None, [*keys, *schedule])


@pytest.mark.parametrize(
    ("size", "batch_size", "steps"),
    [("256", 8, 1140), ("256", 4, 1988), ("[192, 256]", 4, 2443), ("384", 4, 1030), ("768", 8, 300)],
)
def test_small_inputs_have_more_auto_steps(tmp_path: Path, size: str, batch_size: int, steps: int) -> None:
    keys = ("model.name=efficientdet-lite0", f"model.image_size={size}", f"train.batch_size={batch_size}")
    assert _resolved(tmp_path, *keys, records=100).train.steps == steps


@pytest.mark.parametrize(("records", "steps"), [(1, 321), (171, 321), (172, 323), (5000, 9375)])
def test_a_run_of_auto_steps_has_15_epochs_or_more(tmp_path: Path, records: int, steps: int) -> None:
    train = _resolved(tmp_path, "train.validation.every=auto", records=records).train
    assert train.steps == steps
    every = train.validation.fixed_every
    assert every is not None
    assert 3 * every < steps <= 4 * every
    assert train.schedule.learning_rate == 0.003


@pytest.mark.parametrize(("budget", "steps"), [(30, 3419), (10, 1140), (0.01, 2)])
def test_a_budget_replaces_the_rule(tmp_path: Path, budget: float, steps: int) -> None:
    keys = ("model.name=efficientdet-lite0", "model.image_size=256", "train.batch_size=8", f"train.budget={budget}")
    train = _resolved(tmp_path, *keys, records=5000).train
    assert (train.steps, train.budget) == (steps, None)


@pytest.mark.parametrize(
    ("name", "overrides", "learning_rate"),
    [
        ("efficientdet-lite0", "{}", 0.003),
        ("mask-rcnn-nano", "{}", 0.002),
        ("mask-rcnn-r50", "{}", 0.0001),
        ("mask-rcnn-r50", "{backbone: {train_batch_norm: true}}", 0.002),
    ],
)
def test_the_detector_chooses_the_learning_rate_that_is_not_given(
    tmp_path: Path, name: str, overrides: str, learning_rate: float
) -> None:
    keys = (f"model.name={name}", f"model.overrides={overrides}")
    assert _resolved(tmp_path, *keys).train.schedule.learning_rate == learning_rate
    assert _resolved(tmp_path, *keys, "train.schedule.learning_rate=0.5").train.schedule.learning_rate == 0.5


def test_the_length_of_the_run_chooses_the_momentum_of_batch_norm(tmp_path: Path) -> None:
    """Statistics of the first step keep at most a twentieth of their weight until the end."""
    for steps in (100, 300, 1000, 20_000):
        momentum = _resolved(tmp_path, f"train.steps={steps}").model.overrides["batch_norm"]["momentum"]
        assert 0.9 <= momentum <= 0.99
        assert momentum**steps < 0.05
    assert momentum == 0.99


def test_the_resolved_configuration_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cocoflow.trainer")
    config = _resolved(tmp_path, *EPOCHS)
    assert config.train.steps == 8
    assert "train.epochs = 3.0: train.steps = 8, with 10 images per epoch and 4 per step" in caplog.messages
    assert "train.schedule.warmup_epochs = 1.0: train.schedule.warmup_steps = 3, with" in caplog.text
    assert with_steps(config, records=1000) is config


def test_lengths_that_do_not_fit_the_records_are_refused() -> None:
    config = load_config(None, [*EPOCHS, "train.profile.start_step=5"])
    with pytest.raises(ConfigError, match=r"with 10 images per epoch and 4 per step: train: profile.start_step = 5"):
        with_steps(config, records=10)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["train.steps=20", "train.epochs=2"], "steps = 20 does nothing beside epochs; remove one of them"),
        (["train.steps=20", "train.budget=2"], "budget = 2.0 does nothing beside steps or epochs; remove it"),
        (["train.epochs=20", "train.budget=2"], "budget = 2.0 does nothing beside steps or epochs; remove it"),
        (["train.checkpoint_every=20", "train.checkpoint_every_epochs=2"], "beside checkpoint_every_epochs"),
        (["train.schedule.warmup_steps=2", "train.schedule.warmup_epochs=2"], "beside warmup_epochs"),
        (["train.epochs=2", "train.schedule.warmup_epochs=2"], "warmup_epochs does not end before epochs = 2"),
        (
            ["train.epochs=9", "train.schedule={total_epochs: 3, warmup_epochs: 1, hold_epochs: 2}"],
            r"schedule.hold_epochs does not end before schedule.total_epochs = 3",
        ),
        (
            ["train.epochs=2", "train.schedule={name: step, boundaries_epochs: [1, 3], factors: [0.1, 0.01]}"],
            "boundaries_epochs does not end before epochs = 2",
        ),
        (
            ["train.schedule={name: step, boundaries_epochs: [2, 1], factors: [0.1, 0.01]}"],
            r"boundaries_epochs = \[2.0, 1.0\] do not increase",
        ),
        (["train.schedule.decay_epochs=2"], "decay_epochs = 2.0 does nothing under name = cosine"),
        (["train.memory_limit=2"], "memory_limit = 2.0 does nothing beside batch_size = 8; set batch_size to auto"),
        (["train.batch_size=many"], "train.batch_size"),
    ],
)
def test_contradictions_are_refused_before_anything_is_read(keys: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, keys)


def test_a_batch_size_is_measured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed run takes the number from the configuration that it saved."""
    caplog.set_level(logging.INFO, logger="cocoflow.trainer")
    keys = ["train.batch_size=auto", "train.memory_limit=2", "train.epochs=3"]
    found = resolved(load_config(None, keys), records=10, output=tmp_path, find_batch_size=lambda: 6)
    assert (found.train.batch_size, found.train.memory_limit, found.train.steps) == (6, None, 5)
    _checkpoint(tmp_path, found)
    assert _resolved(tmp_path, *keys) == found
    assert "train.batch_size = auto: 6, as at the start of this run" in caplog.text
    assert "the run now has" not in caplog.text


def test_other_records_of_a_resumed_run_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _checkpoint(tmp_path, _resolved(tmp_path, *EPOCHS))
    assert _resolved(tmp_path, *EPOCHS, records=20).train.steps == 15
    assert "the run now has 15 steps instead of 8" in caplog.text


def test_a_resumed_run_without_its_batch_size_is_refused(tmp_path: Path) -> None:
    _checkpoint(tmp_path, None)
    with pytest.raises(DataError, match=r"config.yaml: missing, so the batch size"):
        _resolved(tmp_path, "train.batch_size=auto")


def test_a_state_can_be_checked_before_records_are_counted() -> None:
    config = assumed(load_config(None, ["train.batch_size=auto", "train.epochs=0.5"]), replicas=2)
    assert config.train.fixed_batch_size == 2
    assert not config.train.has_epochs
