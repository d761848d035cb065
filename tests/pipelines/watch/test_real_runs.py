"""`watch` with the real pipeline, small, over spans: killed again and again, each span is trained once."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from detection.datasets.demo_data import make_demo_data
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE, SKIPPED, RunRecord
from pipelines.watch.supervisor import result_lines
from tests.pipelines.small_run import FEW_STEPS

# Each span takes one to three minutes on two cores.
pytestmark = [pytest.mark.extended, pytest.mark.slow, pytest.mark.e2e]

SPANS = 3
KILLS = 3  # of each span's run, at least
PROGRAM = Path(__file__).parents[3] / "pipeline_runner.py"


class Watched:
    """The program's command `watch` on a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "run")
        self._data = folder / "data"
        self._config = folder / "watch.yaml"
        tiny = {"infinity_norm": 1e-6, "jensen_shannon_divergence": 1e-6}  # every span drifts
        self._config.write_text(
            yaml.safe_dump(
                {
                    "run": {"root": self.root},
                    "data": {"root": str(self._data / "{SPAN}"), "window": 2},
                    "train": {"init": {"from_previous_model": True}},
                    "watch": {"new_span": True, "poll_seconds": 1, "drift": {"enabled": True, **tiny}},
                }
            )
        )

    def add_span(self, span: int) -> None:
        """Adds a span; its images differ from those before in number and so in their objects."""
        make_demo_data(self._data / str(span), train_images=4 + 4 * span, eval_images=4)

    def start(self, *flags: str) -> "subprocess.Popen[bytes]":
        sets = [part for key in FEW_STEPS for part in ("--set", key)]
        command = [sys.executable, str(PROGRAM), "watch", "--config", str(self._config), *sets, *flags]
        return subprocess.Popen(command)

    def runs(self) -> list[RunRecord]:
        """The records of the decisions to run, the first one first."""
        return [one for one in reversed(RunHistory(self.root).read_all()) if one.state != SKIPPED]

    def states(self) -> dict[int, str]:
        """Span -> state of its run."""
        return {one.data.span: one.state for one in self.runs() if one.data}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("watched"))


@pytest.mark.parametrize("span", range(1, SPANS + 1))
def test_a_new_span_is_trained_once_however_often_it_is_killed(watched: Watched, span: int) -> None:
    """Goes on where the test of the span before ended."""
    chance = random.Random(span)
    watched.add_span(span)
    for kill in range(KILLS + 1):
        with watched.start() as process:
            try:
                deadline = time.monotonic() + (chance.uniform(1.0, 60.0) if kill < KILLS else 500.0)
                while time.monotonic() < deadline and watched.states().get(span) != DONE:
                    assert process.poll() is None
                    time.sleep(0.2)
            finally:
                process.send_signal(signal.SIGKILL)
    assert watched.states() == dict.fromkeys(range(1, span + 1), DONE)


def test_the_history_is_complete(watched: Watched) -> None:
    runs = watched.runs()
    assert [(one.data.span, one.state) for one in runs if one.data] == [(span, DONE) for span in range(1, SPANS + 1)]
    assert {one.plan.failures for one in runs if one.plan} == {0}
    assert max(one.attempt for one in runs) > 1, "a run was killed"
    last = runs[-1]
    assert last.trigger == f"watch: new span (span {SPANS})"
    assert last.blessed
    assert len(list(result_lines(last))) == 3, "compared with the model of the span before"
    # Read from the Examples, which name the data that they were made of.
    assert all(one.data and one.plan and one.plan.considered for one in runs)
    assert [one.data.input_fingerprint for one in runs if one.data] == [
        one.plan.considered.input_fingerprint for one in runs if one.plan and one.plan.considered
    ]
