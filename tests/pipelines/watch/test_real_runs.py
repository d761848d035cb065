"""`watch` with the real pipeline, small, over spans: killed again and again, each span is trained once."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from detection.datasets.demo_data import make_demo_data
from detection.storage.json_files import read_json
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE
from pipelines.watch.journal import Entry, Journal
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

    def entries(self) -> list[Entry]:
        return Journal(f"{self.root}/watch/journal").entries()

    def outcomes(self) -> dict[int, str | None]:
        """Span -> outcome of its run."""
        return {one.data.span: one.outcome for one in self.entries() if one.data and one.decision == "run"}


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
                while time.monotonic() < deadline and watched.outcomes().get(span) != "done":
                    assert process.poll() is None
                    time.sleep(0.2)
            finally:
                process.send_signal(signal.SIGKILL)
    assert watched.outcomes() == dict.fromkeys(range(1, span + 1), "done")


def test_the_history_is_complete(watched: Watched) -> None:
    entries = watched.entries()
    runs = [one for one in entries if one.decision == "run"]
    assert [one.number for one in entries] == list(range(1, len(entries) + 1))
    assert [one.data.span for one in runs if one.data] == list(range(1, SPANS + 1))
    assert {one.outcome for one in runs} == {"done"}
    assert Counter(attempt.outcome for one in runs for attempt in one.attempts)["failed"] == 0
    assert max(len(one.attempts) for one in runs) > 1, "a run was killed"
    records = RunHistory(watched.root).read_all()
    assert [(record.id, record.state) for record in reversed(records)] == [(one.run_id, DONE) for one in runs]
    assert [record.data.span for record in reversed(records) if record.data] == list(range(1, SPANS + 1))
    assert records[0].trigger == f"watch: new span (span {SPANS})"
    last = runs[-1].result
    assert last is not None
    assert last["blessed"]
    assert len(last["changes"]) == 2, "compared with the model of the span before"
    metrics = read_json(f"{records[0].evaluation}/metrics.json")
    assert {*last["ap_changes"]} <= {one["name"] for one in metrics["per_category"]}
    assert last["ap_changes"]
