"""The command `watch`: wrong usage, --once, its lock, its end by signals, and runs on real folders with a stub."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline_runner
from detection.storage.lock import exclusive_use
from pipelines.runs.history import RunHistory
from pipelines.watch import child
from pipelines.watch.data import config_for, find_data, observe
from pipelines.watch.journal import Data
from pipelines.watch.watch import Watch
from schemas.config.config_io import load_config
from schemas.errors import ConfigError
from tests.components.coco_example_gen.data_set import write_data_set
from tests.pipelines.watch.stub import command
from tests.pipelines.watch.test_kills import Story, wait_for


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([], r"`watch` has no trigger\. Set watch\.cron, such as '0 3 \* \* \*', or watch\.new_span=true"),
        (["watch.new_span=true"], r"no data set: give --data DIR"),
        (["watch.cron='0 3 * * *'"], r"no data set: give --data DIR"),
        (["watch.new_span=true", "data.root=here"], r"watch\.new_span = True, but the data's paths have no \{SPAN\}"),
        (
            ["watch.new_span=true", "data.splits={train: {records: 'a/{SPAN}/*'}}", "data.span=3"],
            r"data\.span = 3: no newer one is ever read, so watch\.new_span would never trigger\. Remove it",
        ),
        (["watch.new_span=true", "data.root='{SPAN}/{VERSION}'", "data.version=1"], r"data\.version = 1: no newer one"),
    ],
)
def test_triggers_that_cannot_come_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Watch(load_config(None, assignments))


def test_the_program_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["watch", "--data", str(tmp_path), "--set", f"run.root={tmp_path}"]
    assert pipeline_runner.main(flags) == 2
    assert "error: `watch` has no trigger" in capsys.readouterr().err
    cron = ["--set", "watch={cron: 0 3 * * *, catch_up: false}"]
    assert pipeline_runner.main([*flags, *cron, "--once"]) == 2
    assert "watch.catch_up = False with --once would never run" in capsys.readouterr().err


def test_only_one_watches_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive_use(tmp_path / "watch", instead="wait"):
        flags = ["watch", "--data", str(tmp_path), "--set", f"run.root={tmp_path}", "--set", "watch.cron='0 3 * * *'"]
        assert pipeline_runner.main(flags) == 1
    assert f"{tmp_path}/watch: in use by process" in capsys.readouterr().err


def test_once_looks_runs_and_tells_failures_by_its_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, data = tmp_path / "run", tmp_path / "data"
    text = f"{{run: {{root: {root}, name: stub}}, data: {{root: '{data}/{{SPAN}}'}}, "
    (tmp_path / "c.yaml").write_text(text + "watch: {new_span: true, poll_seconds: 0.05, retry_seconds: 3600}}")

    def once() -> bool:
        return Watch(load_config(tmp_path / "c.yaml"), command=command).run_once()

    write_data_set(data / "1", images=1)
    assert once()
    [first] = RunHistory(str(root)).read_all()
    assert first.state == "done"
    assert first.trigger == "watch: new span (span 1)"
    with caplog.at_level("INFO", "cocoflow.watch"):
        assert once(), "nothing is to do"
    assert "nothing to do: there is no data newer than span 1" in caplog.text
    write_data_set(data / "2", images=1)
    (root / "fail").touch()
    assert not once()
    (root / "fail").unlink()
    assert not once(), "the next attempt is in an hour"
    assert [record.state for record in RunHistory(str(root)).read_all()] == ["failed", "done"]


def test_sigterm_ends_the_run_and_the_next_start_takes_it_up(tmp_path: Path) -> None:
    story = Story(tmp_path, str(tmp_path / "run"), work_ms=60_000)
    story.add_span()
    with story.start() as process:
        wait_for(lambda: any(record.state == "running" for record in RunHistory(story.root).read_all()), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    [record] = RunHistory(story.root).read_all()
    assert record.state == "interrupted"
    [entry] = [one for one in story.entries() if one.run_id]
    assert [attempt.outcome for attempt in entry.attempts] == ["interrupted"]
    assert entry.is_open
    story.write_config(work_ms=0)
    # The run's own configuration was kept with its decision.
    kept = tmp_path / f"run/watch/configs/{record.id}.yaml"
    kept.write_text(kept.read_text().replace("stub-60000", "stub-0"))
    [again] = [one for one in story.finish() if one.run_id]
    assert (again.run_id, again.outcome) == (entry.run_id, "done")
    assert [attempt.outcome for attempt in again.attempts] == ["interrupted", "done"]


def test_a_run_ends_with_watch() -> None:
    code = """
import sys
from pipelines.watch import child
child.start([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(20); print('lived')"]).wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == b"", "nobody is left to write"


def test_a_run_is_pinned_to_the_span_that_triggered_it(tmp_path: Path) -> None:
    for span in (1, 2):
        write_data_set(tmp_path / f"{span}/v7", images=1)
    config = load_config(None, [f"data.root={tmp_path}/{{SPAN}}/v{{VERSION}}", "watch.new_span=true"])
    located = find_data(config)
    data = observe(config, located)
    assert (data.span, data.version) == (2, 7)
    write_data_set(tmp_path / "3/v1", images=1)
    pinned = config_for(config, data)
    assert find_data(pinned).newest == located.newest
    assert observe(pinned, find_data(pinned)) == data
    assert find_data(config).newest.span == 3
    plain = load_config(None, [f"data.root={tmp_path}/1/v7"])
    assert config_for(plain, observe(plain, find_data(plain))) == plain


def test_data_of_a_day_is_named_by_its_date(tmp_path: Path) -> None:
    write_data_set(tmp_path / "2026-11-21", images=1)
    config = load_config(None, [f"data.root='{tmp_path}/{{YYYY}}-{{MM}}-{{DD}}'", "watch.new_span=true"])
    data = observe(config, find_data(config))
    assert (str(data), data.span) == ("2026-11-21", 20778)
    assert data == replace(data, name=None), "a journal of an older version has no name"


def test_what_identifies_data(tmp_path: Path) -> None:
    write_data_set(tmp_path, images=1)

    def now(*assignments: str) -> Data:
        config = load_config(None, [f"data.root={tmp_path}", *assignments])
        return observe(config, find_data(config))

    first = now()
    assert now() == first == now("watch.cron='0 3 * * *'", "run.name=x", "train.log_every=3")
    assert now("train.steps=3") != first
    annotations = tmp_path / "annotations/instances_train.json"
    annotations.write_text(json.dumps(json.loads(annotations.read_text()) | {"info": {}}))
    changed = now()
    assert changed.fingerprint != first.fingerprint
    assert changed.config == first.config


def test_the_command_line_of_a_run_is_one_of_the_program(tmp_path: Path) -> None:
    line = child.run_command(run_id="x", trigger="watch: cron", config="c.yaml")
    assert Path(line[1]).is_file()
    args = pipeline_runner.build_parser(["run"]).parse_args(line[2:])
    assert (args.run_id, args.trigger, args.config) == ("x", "watch: cron", "c.yaml")
