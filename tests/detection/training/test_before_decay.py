"""A training with more steps goes on from before the decay of the learning rate."""

import logging
from pathlib import Path

import pytest

from detection.training.before_decay import go_back_before_decay
from detection.training.checkpoints.files import checkpoint_steps, remove_checkpoint
from detection.training.resolve import resolved, saved_config
from schemas.artifacts import BEFORE_DECAY, BEST, CHECKPOINTS, CONFIG_YAML, METRICS_JSON, VALIDATION
from schemas.config.config_io import load_config, to_yaml
from schemas.config.train.training import TrainConfig
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_loop import assert_equal
from tests.detection.training.tiny_run import SMALL, checkpoint_values, run

HELD = (*SMALL, "train.schedule.hold_steps=auto", "train.checkpoint_every=100")


@pytest.mark.slow
def test_a_longer_training_has_the_bits_of_one_that_never_decayed_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_detector.register()
    shards = write_shards(tmp_path, rectangles(10))
    output, whole = tmp_path / "twice", tmp_path / "whole"
    run(output, shards, *HELD, "train.steps=10", exports=False)
    assert checkpoint_steps(output / BEFORE_DECAY) == [7]
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        run(output, shards, *HELD, "train.steps=20", exports=False)
    assert "going on from step 7, before the learning rate decayed: 20 steps instead of 10" in caplog.text
    assert "other settings" not in caplog.text
    assert "cannot be read" not in caplog.text
    assert checkpoint_steps(output / BEFORE_DECAY) == [14]
    run(whole, shards, *HELD, "train.steps=20", "train.schedule.warmup_steps=1", exports=False)
    assert_equal(checkpoint_values(output, 20), checkpoint_values(whole, 20))


def _resolved(output: Path, *assignments: str) -> TrainConfig:
    config = load_config(None, ["train.batch_size=4", *assignments])
    return resolved(config, records=10, output=output, find_batch_size=lambda: 4).train


def _trained(output: Path, *assignments: str) -> TrainConfig:
    """A folder as a training of 1,000 steps leaves it."""
    for folder, steps in ((BEFORE_DECAY, [700]), (CHECKPOINTS, [500, 700, 1000]), (f"{VALIDATION}/{BEST}", [1000])):
        (output / folder).mkdir(parents=True)
        for step in steps:
            (output / folder / f"ckpt-{step}.index").write_text("whole")
    (output / VALIDATION / BEST / METRICS_JSON).write_text('{"step": 1000}')
    config = resolved(
        load_config(None, ["train.batch_size=4", "train.steps=1000", *assignments]),
        records=10,
        output=output.with_name("new"),
        find_batch_size=lambda: 4,
    )
    (output / CONFIG_YAML).write_text(to_yaml(config))
    return config.train


def test_the_length_is_a_share_of_the_steps_after_the_same_warm_up(tmp_path: Path) -> None:
    before = _trained(tmp_path / "run")
    assert (before.warmup_steps, before.schedule.hold_steps, before.decay_start) == (100, 600, 700)
    now = _resolved(tmp_path / "run", "train.steps=3000")
    assert (now.warmup_steps, now.schedule.hold_steps, now.decay_start) == (100, 2000, 2100)
    afresh = _resolved(tmp_path / "new", "train.steps=3000")
    assert (afresh.warmup_steps, afresh.decay_start) == (300, 2100)
    for other in ("train.schedule.name=constant", "train.schedule.phase=from_start", "train.schedule.hold_steps=0"):
        assert _resolved(tmp_path / "new", "train.steps=3000", other).decay_start is None


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a text are whole checkpoints."""
    monkeypatch.setattr(
        "detection.training.before_decay.find_damage",
        lambda path: None if Path(f"{path}.index").read_text() == "whole" else "damaged",
    )


@pytest.mark.usefixtures("whole")
def test_what_followed_the_decay_is_removed(tmp_path: Path) -> None:
    before, output = _trained(tmp_path / "run"), tmp_path / "run"
    for now, steps in (("train.steps=1000", [500, 700, 1000]), ("train.steps=3000", [500, 700])):
        go_back_before_decay(output, before, _resolved(output, now))
        assert checkpoint_steps(output / CHECKPOINTS) == steps
    assert not (output / VALIDATION / BEST).exists()
    saved = saved_config(output)
    assert saved is not None
    assert saved.train == before, "until the training begins"


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("kill", [1, 2])
def test_a_kill_in_between_is_made_good(kill: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, output = _trained(tmp_path / "run"), tmp_path / "run"
    (output / CHECKPOINTS / "ckpt-900.index").write_text("whole")
    now, calls = _resolved(output, "train.steps=3000"), [0]

    def killed(folder: Path, step: int) -> None:
        calls[0] += 1
        if calls[0] == kill:
            raise KeyboardInterrupt
        remove_checkpoint(folder, step)

    with monkeypatch.context() as patched:
        patched.setattr("detection.training.before_decay.remove_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            go_back_before_decay(output, before, now)
    go_back_before_decay(output, before, now)
    assert checkpoint_steps(output / CHECKPOINTS) == [500, 700]


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("other", ["train.schedule.hold_steps=500", "train.schedule.name=constant", "train.steps=900"])
def test_other_schedules_go_on_from_the_newest(other: str, tmp_path: Path) -> None:
    before, output = _trained(tmp_path / "run"), tmp_path / "run"
    go_back_before_decay(output, before, _resolved(output, "train.steps=3000", other))
    assert checkpoint_steps(output / CHECKPOINTS) == [500, 700, 1000]


@pytest.mark.usefixtures("whole")
def test_a_damaged_one_is_not_gone_back_to(tmp_path: Path) -> None:
    before, output = _trained(tmp_path / "run"), tmp_path / "run"
    (output / BEFORE_DECAY / "ckpt-700.index").write_text("dam")
    go_back_before_decay(output, before, _resolved(output, "train.steps=3000"))
    assert checkpoint_steps(output / CHECKPOINTS) == [500, 700, 1000]
