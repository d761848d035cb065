"""A run killed by SIGKILL at any moment, and started again, ends with the bits of one that was left alone."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.killed_run import MOMENTS
from tests.detection.training.tiny_run import checkpoint_values

pytestmark = pytest.mark.slow

STEPS = 24
# With every length and rule left open.
ASSIGNMENTS = (
    "train.steps=auto",
    f"train.epochs={STEPS * 4 / 10}",
    "train.schedule.hold_steps=auto",
    "train.validation.every=auto",
)


class _Runs:
    """The process that starts runs, one after the other."""

    def __init__(self, process: "subprocess.Popen[str]", shards: Sequence[str]) -> None:
        self._process = process
        self._shards = shards

    def train(self, output: Path, *, moment: str = "", killed_after: int | None = None, delay: float = 0.0) -> int:
        """Trains until the end or a kill; returns the exit code.

        Args:
            output: of the run.
            moment: see `killed_run.train_in_child`.
            killed_after: step that is done, by its progress, when the kill comes.
            delay: seconds later.
        """
        assert self._process.stdin is not None
        call = {"moment": moment, "output": str(output), "shards": self._shards, "assignments": ASSIGNMENTS}
        print(json.dumps(call), file=self._process.stdin, flush=True)
        pid = 0
        said = []
        for line in self._process.stdout or []:
            said.append(line)
            if match := re.match(r"pid (\d+)", line):
                pid = int(match[1])
            elif killed_after is not None and f"step {killed_after}/" in line:
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)
            elif match := re.match(r"ended (-?\d+)", line):
                assert int(match[1]) in (0, -signal.SIGKILL), "".join(said)
                return int(match[1])
        raise AssertionError("".join(said))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Runs]:
    shards = write_shards(tmp_path_factory.mktemp("records"), rectangles(10))
    command = [sys.executable, "-m", "tests.detection.training.killed_run"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        yield _Runs(process, shards)
        process.kill()


@pytest.fixture(scope="module")
def undisturbed(runs: _Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    output = tmp_path_factory.mktemp("undisturbed")
    assert runs.train(output) == 0
    return checkpoint_values(output, STEPS)


def _require_equal(output: Path, expected: dict[str, np.ndarray], story: object) -> None:
    got = checkpoint_values(output, STEPS)
    assert got.keys() == expected.keys()
    assert {name.split("/")[0] for name in got} >= {"step", "model", "optimizer", "ema"}
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} after {story}")


def test_killed_in_a_save_and_at_a_random_moment(
    runs: _Runs, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    moment = f"{random.choice(list(MOMENTS))}:{random.randint(1, 8)}"
    step, delay = random.randint(10, STEPS - 4), random.uniform(0.0, 0.05)
    assert runs.train(tmp_path, moment=moment) == -signal.SIGKILL
    assert runs.train(tmp_path, killed_after=step, delay=delay) == -signal.SIGKILL
    assert runs.train(tmp_path) == 0
    _require_equal(tmp_path, undisturbed, (moment, step, delay))


def test_killed_while_the_index_of_the_first_checkpoint_is_written(
    runs: _Runs, undisturbed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    assert runs.train(tmp_path, moment="written:1") == -signal.SIGKILL
    [index] = (tmp_path / "checkpoints").glob("*.index")
    index.write_bytes(b"")
    assert runs.train(tmp_path) == 0
    _require_equal(tmp_path, undisturbed, "an empty index")


@pytest.mark.extended
@pytest.mark.parametrize("number", range(4))
def test_killed_again_and_again(number: int, runs: _Runs, undisturbed: dict[str, np.ndarray], tmp_path: Path) -> None:
    story: list[object] = []
    for part in range(5):
        if (part + number) % 2:
            moment = f"{list(MOMENTS)[(part + number) % len(MOMENTS)]}:{random.randint(1, 6)}"
            story.append((moment, runs.train(tmp_path, moment=moment)))
        else:
            step, delay = random.randint(1, STEPS), random.uniform(0.0, 0.2)
            story.append((step, delay, runs.train(tmp_path, killed_after=step, delay=delay)))
    assert runs.train(tmp_path) == 0
    _require_equal(tmp_path, undisturbed, story)
