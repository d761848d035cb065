"""A run killed by SIGKILL at any moment, and started again, ends with the bits of one that was left alone."""

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.artifacts import CHECKPOINTS
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.killed_run import MOMENTS
from tests.detection.training.tiny_run import checkpoint_values
from tests.forked_calls import forked_calls

pytestmark = pytest.mark.slow

# With every length and rule left open: about a dozen steps.
ASSIGNMENTS = ("train.steps=auto", "train.epochs=4.0", "train.schedule.hold_steps=auto", "train.validation.every=auto")
# Draws the noise of denoising queries.
DFINE = (
    "model.name=dfine-pico",
    "model.overrides={}",
    "model.image_size=64",
    "model.max_instances=20",
    "train.class_weights=null",
)
# Arguments: folder of the run, then its `moment`, see `killed_run.train`.  Returns the exit code.
Train = Callable[..., int]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    shards = write_shards(tmp_path_factory.mktemp("records"), rectangles(10))
    module = "tests.detection.training.killed_run"
    with forked_calls(module) as calls:
        yield lambda output, *moment, assignments=ASSIGNMENTS: calls(
            f"{module}:train", str(output), shards, assignments, moment
        )


@pytest.fixture(scope="module")
def undisturbed(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    output = tmp_path_factory.mktemp("undisturbed")
    assert train(output) == 0
    return _last_values(output)


def _last_values(output: Path) -> dict[str, np.ndarray]:
    steps = [int(path.stem.partition("-")[2]) for path in (output / CHECKPOINTS).glob("*.index")]
    return checkpoint_values(output, max(steps))


def _require_equal(output: Path, expected: dict[str, np.ndarray], story: object) -> None:
    got = _last_values(output)
    assert got.keys() == expected.keys()
    assert {name.split("/")[0] for name in got} >= {"step", "model", "optimizer", "ema"}
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} after {story}")


def test_killed_while_the_first_index_is_written_and_at_a_random_moment(
    train: Train, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert train(tmp_path, "written", 1, 0.0) == -signal.SIGKILL
    [index] = (tmp_path / CHECKPOINTS).glob("*.index")
    index.write_bytes(b"")
    moment = (random.choice(list(MOMENTS)), random.randint(1, 8), 0.0)
    assert train(tmp_path, *moment) == -signal.SIGKILL
    assert train(tmp_path) == 0
    _require_equal(tmp_path, undisturbed, moment)


@pytest.mark.extended
@pytest.mark.parametrize("number", range(4))
def test_killed_again_and_again(number: int, train: Train, undisturbed: dict[str, np.ndarray], tmp_path: Path) -> None:
    story: list[tuple[object, int]] = []
    for part in range(5):
        moment = list(MOMENTS)[(part + number) % len(MOMENTS)]
        at = (moment, random.randint(1, 4), random.choice([0, random.uniform(0.0, 0.2)]))
        story.append((at, train(tmp_path, *at)))
        assert story[-1][1] in (0, -signal.SIGKILL), story
    assert train(tmp_path) == 0
    _require_equal(tmp_path, undisturbed, story)


@pytest.mark.extended
def test_a_detector_that_draws_numbers_of_its_own(train: Train, tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    assert train(alone, assignments=DFINE) == 0
    story = (("training", 3, 0.0), ("written", 1, 0.0))
    assert [train(killed, *moment, assignments=DFINE) for moment in story] == [-signal.SIGKILL] * 2
    assert train(killed, assignments=DFINE) == 0
    _require_equal(killed, _last_values(alone), story)
