"""A `run.root` whose decisions are in the journal of an earlier version."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.runs.comparison import find_data, newest_done, observe
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import RunRecord
from pipelines.watch.watch import Watch, newest_decision
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.components.coco_example_gen.data_set import write_data_set
from tests.pipelines.old_root import OldRoot, write_old_root
from tests.pipelines.watch.stub import command


class Continued:
    """A `watch` of this version, with a stub for its runs, on the old root and data like that of its last run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old: OldRoot = write_old_root(folder)
        self.journal = Path(self.old.root, "watch/journal")
        self.history = RunHistory(self.old.root)
        write_data_set(folder / "data/2", images=1)
        # The digests that an earlier version would have computed of this data.
        inputs = observe(self.config(), find_data(self.config()))
        text = (self.journal / "00000003.json").read_text()
        known = json.loads(text)["data"]
        text = text.replace(known["fingerprint"], str(inputs.data.input_fingerprint))
        (self.journal / "00000003.json").write_text(text.replace(known["config"], inputs.deciding))

    def config(self, *assignments: str) -> Config:
        watch = "watch={new_span: true, cron: '* * * * *', poll_seconds: 0.05}"
        root, data = f"run.root={self.folder}/run", f"data.root='{self.folder}/data/{{SPAN}}'"
        return load_config(None, [root, data, watch, "run.name=stub", *assignments])

    def change(self, **fields: Any) -> None:
        """Changes fields of the newest entry."""
        path = self.journal / "00000003.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    def once(self, *assignments: str, minutes: int = 0) -> bool:
        """Looks once, some minutes from now."""
        later = timedelta(minutes=minutes)
        return Watch(self.config(*assignments), command=command, clock=lambda: datetime.now(UTC) + later).run_once()

    def decisions(self) -> list[RunRecord]:
        """The records since the old ones, the oldest first."""
        return [one for one in reversed(self.history.read_all()) if one.id not in self.old.runs]


@pytest.fixture
def continued(tmp_path: Path) -> Continued:
    return Continued(tmp_path)


def test_what_was_trained_is_not_trained_again(continued: Continued) -> None:
    before = continued.history.read(continued.old.runs[1])
    assert continued.once()
    [skipped] = continued.decisions()
    assert skipped.id.endswith("-000004")
    assert skipped.plan is not None
    assert skipped.plan.reason == f"neither span 2 nor the configuration changed since run {continued.old.runs[1]}"
    after = continued.history.read(continued.old.runs[1])
    assert before is not None
    assert after is not None
    assert after.plan is not None
    assert after.plan.decided_until == "2026-11-25T10:05:46.045+00:00"
    assert after.model_copy(update={"plan": None, "data": before.data, "config": before.config}) == before


def test_a_newer_span_and_another_configuration_are_trained(continued: Continued) -> None:
    write_data_set(continued.folder / "data/3", images=1)
    assert continued.once()
    assert continued.once("train.steps=7", minutes=2)
    runs = continued.decisions()
    assert [one.state for one in runs] == ["done", "done"]
    assert [one.plan.reason.partition(": ")[2] for one in runs if one.plan] == [
        f"span 3 is there, and run {continued.old.runs[1]} trained on span 2",
        f"the configuration changed since run {runs[0].id}",
    ]


@pytest.mark.parametrize("state", ["planned", "interrupted", "done"])
def test_a_run_that_was_open_is_finished_under_its_id(continued: Continued, state: str) -> None:
    run_id, record = continued.old.runs[1], Path(continued.old.root, f"history/runs/{continued.old.runs[1]}.json")
    kept = Path(continued.old.root, f"watch/configs/{run_id}.yaml")
    assert kept.is_file()
    kept.write_text(kept.read_text().replace("name: cocoflow", "name: stub"))
    if state == "planned":
        record.unlink()
    else:
        record.write_text(json.dumps(json.loads(record.read_text()) | {"state": state, "attempt": 4}))
    known = json.loads((continued.journal / "00000003.json").read_text())["known"]
    first = json.loads((continued.journal / "00000002.json").read_text())["known"]
    continued.change(outcome=None, result=None, known=known | {key: first[key] for key in ("trained", "trained_by")})
    assert continued.once()
    done = continued.history.read(run_id)
    assert done is not None
    assert (done.state, done.attempt) == ("done", {"planned": 1, "interrupted": 5, "done": 4}[state])
    assert newest_done(continued.history) == done
    assert len(continued.history.read_all()) == (3 if state == "done" else 2)


def test_a_run_that_was_given_up_is_tried_with_another_configuration_only(continued: Continued) -> None:
    record = Path(continued.old.root, f"history/runs/{continued.old.runs[1]}.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"state": "failed", "evaluation": None}))
    known = json.loads((continued.journal / "00000003.json").read_text())["known"]
    continued.change(outcome="failed", known=known | {"trained": None, "trained_by": None, "given_up": True})
    new_span = "watch={new_span: true, poll_seconds: 0.05}"
    assert continued.once(new_span)
    assert continued.decisions() == []
    newest = newest_decision(continued.history)
    assert newest is not None
    assert (newest.id, newest.state) == (continued.old.runs[1], "given up")
    assert continued.once(new_span, "train.steps=7")
    assert [one.state for one in continued.decisions()] == ["done"]


def test_decisions_not_to_run_are_adopted(continued: Continued) -> None:
    continued.change(number=4, decision="skip", run_id=None, outcome=None, attempts=[], cause="cron")
    (continued.journal / "00000003.json").rename(continued.journal / "00000004.json")
    assert continued.once()
    [skipped] = continued.decisions()
    assert skipped.id.endswith("-000004"), "replaced by that of this version on the same data"
    assert skipped.trigger.startswith("watch: cron 20")


@pytest.mark.parametrize("writes", [0, 1])
def test_a_kill_while_it_is_adopted_changes_nothing(
    continued: Continued, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    write, left = RunHistory.write, [None] * writes

    def write_or_die(self: RunHistory, record: RunRecord) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunHistory, "write", write_or_die)
        with pytest.raises(KeyboardInterrupt):
            continued.once()
    assert newest_decision(continued.history) is None
    assert continued.once()
    assert [one.state for one in continued.decisions()] == ["skipped"]


def test_an_entry_that_is_none_is_refused(continued: Continued) -> None:
    continued.change(cause="moon")
    with pytest.raises(
        DataError, match=r"00000003\.json: not an entry of the journal of `watch` .*cause: .*move .*journal away"
    ):
        continued.once()
