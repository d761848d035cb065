"""The program as a user meets it: help, wrong usage, messages."""

import subprocess
import sys
from pathlib import Path

import pytest

import pipeline_runner
from detection.storage.atomic import write_json
from detection.storage.lock import LOCK_FILE
from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON
from tests.folder_holder import folder_holder

SLOW_IMPORTS = ("tensorflow", "keras", "tfx", "apache_beam", "kfp", "matplotlib", "sklearn")


@pytest.mark.parametrize("command", pipeline_runner.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        pipeline_runner.main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert f"pipeline_runner.py {command}" in text


def test_help_imports_nothing_slow() -> None:
    code = f"import pipeline_runner, sys; pipeline_runner.build_parser(); print(set(sys.modules) & set({SLOW_IMPORTS}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--runner", "moon"], ["train"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        pipeline_runner.main(arguments)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["run", "--set", "train.stepz=3"], 2, ["unknown key train.stepz", "train.steps"]),
        (["run", "--config", "nowhere.yaml"], 2, ["nowhere.yaml", "--config"]),
        (["run"], 2, ["no data set", "--data"]),
        (["run", "--run-id", "a/b"], 2, ["--run-id 'a/b'", "letters, digits"]),
        (["run", "--runner", "vertex", "--trigger", "cron"], 2, ["--trigger", "not for --runner vertex"]),
        (["train", "--output", "{tmp}/out"], 2, ["no data set", "--data"]),
        (["train", "--data", "{tmp}/nowhere", "--output", "{tmp}/out"], 1, ["nowhere"]),
    ],
)
def test_a_user_error_is_one_message_on_stderr(
    arguments: list[str], code: int, parts: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    assert pipeline_runner.main(filled) == code
    captured = capfd.readouterr()
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""
    for part in parts:
        assert part in captured.err


def test_a_run_in_a_folder_that_another_process_uses_is_refused_before_it_touches_anything(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "val"):
        write_json(tmp_path / "data" / "annotations" / f"instances_{name}.json", {"images": [], "annotations": []})
    root = tmp_path / "run"
    root.mkdir()
    for name in (CONFIG_YAML, SUMMARY_JSON):
        (root / name).write_text("of the run that is going on")
    with folder_holder(root) as process:
        assert pipeline_runner.main(["run", "--data", str(tmp_path / "data"), "--set", f"run.root={root}"]) == 1
        assert sorted(path.name for path in root.iterdir()) == [LOCK_FILE, CONFIG_YAML, SUMMARY_JSON]
    captured = capfd.readouterr()
    assert captured.err.startswith(f"error: {root}: in use by process {process.pid} on ")
    assert "run.root" in captured.err
    assert captured.err.count("\n") == 1
    assert {(root / name).read_text() for name in (CONFIG_YAML, SUMMARY_JSON)} == {"of the run that is going on"}
