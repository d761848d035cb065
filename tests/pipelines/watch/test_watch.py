"""The command `watch`: wrong usage, --once, its lock, its end by signals, and runs on real folders with a stub."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline_runner
from detection.storage.lock import lock_folder
from pipelines.runs.comparison import RunInputs, data_name, find_data, observe
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import SKIPPED, RunRecord
from pipelines.watch.supervisor import run_command
from pipelines.watch.watch import Watch, config_for
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
    with lock_folder(tmp_path / "watch", instead="wait"):
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
    [first] = _runs(root)
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
    assert [record.state for record in _runs(root)] == ["failed", "done"]


def _runs(root: Path | str) -> list[RunRecord]:
    """The records of runs, the newest first, without those of decisions not to run."""
    return [record for record in RunHistory(str(root)).read_all() if record.state != SKIPPED]


def test_sigterm_ends_the_run_and_the_next_start_takes_it_up(tmp_path: Path) -> None:
    story = Story(tmp_path, str(tmp_path / "run"), work_ms=60_000)
    story.add_span()
    with story.start() as process:
        wait_for(lambda: any(record.state == "running" for record in _runs(story.root)), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143
    [record] = _runs(story.root)
    assert (record.state, record.attempt) == ("interrupted", 1)
    assert record.plan is not None
    assert record.plan.failures == 0
    story.write_config(work_ms=0)
    # The run's own configuration was kept with its decision.
    assert record.config is not None
    kept = tmp_path / "run" / record.config.path
    kept.write_text(kept.read_text().replace("stub-60000", "stub-0"))
    [again] = [one for one in story.finish() if one.state != SKIPPED]
    assert (again.id, again.state, again.attempt) == (record.id, "done", 2)


def test_a_run_ends_with_watch() -> None:
    code = """
import sys
from pipelines.watch.supervisor import start_process
start_process([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(20); print('lived')"]).wait()
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
    inputs = observe(config, located)
    assert (inputs.data.span, inputs.data.version) == (2, 7)
    write_data_set(tmp_path / "3/v1", images=1)
    pinned = config_for(config, inputs.data)
    assert find_data(pinned).newest == located.newest
    assert observe(pinned, find_data(pinned)) == inputs
    assert find_data(config).newest.span == 3
    plain = load_config(None, [f"data.root={tmp_path}/1/v7"])
    assert config_for(plain, observe(plain, find_data(plain)).data) == plain


def test_data_of_a_day_is_named_by_its_date(tmp_path: Path) -> None:
    write_data_set(tmp_path / "2026-11-21", images=1)
    config = load_config(None, [f"data.root='{tmp_path}/{{YYYY}}-{{MM}}-{{DD}}'", "watch.new_span=true"])
    data = observe(config, find_data(config)).data
    assert (data_name(data), data.span) == ("2026-11-21", 20778)


def test_what_identifies_data(tmp_path: Path) -> None:
    write_data_set(tmp_path, images=1)

    def now(*assignments: str) -> RunInputs:
        config = load_config(None, [f"data.root={tmp_path}", *assignments])
        return observe(config, find_data(config))

    first = now()
    assert now() == first == now("watch.cron='0 3 * * *'", "run.name=x", "train.log_every=3")
    assert now("train.steps=3") != first
    annotations = tmp_path / "annotations/instances_train.json"
    annotations.write_text(json.dumps(json.loads(annotations.read_text()) | {"info": {}}))
    changed = now()
    assert changed.data.input_fingerprint != first.data.input_fingerprint
    assert changed.deciding == first.deciding
    assert data_name(first.data) == "the data"


def test_the_command_line_of_a_run_is_one_of_the_program(tmp_path: Path) -> None:
    line = run_command(run_id="x", trigger="watch: cron", config="c.yaml")
    assert Path(line[1]).is_file()
    args = pipeline_runner.build_parser(["run"]).parse_args(line[2:])
    assert (args.run_id, args.trigger, args.config) == ("x", "watch: cron", "c.yaml")
