"""The program as a user meets it: help, wrong usage, messages."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline_runner
from detection.storage.atomic import write_json
from detection.storage.file_system import LOCK_FILE
from pipelines import SHIPPED_CONFIGS
from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON
from schemas.program import PROGRAM, SCRIPT, VERSION, installed_command, program_command
from tests.folder_holder import folder_holder

ROOT = Path(pipeline_runner.__file__).parent
SLOW_IMPORTS = ("tensorflow", "keras", "tfx", "apache_beam", "kfp", "sklearn")


@pytest.mark.parametrize("command", pipeline_runner.COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        pipeline_runner.main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert f"\n  {program_command()} {command} " in text


@pytest.mark.parametrize(
    ("activated", "typed", "expected"),
    [
        (True, [PROGRAM], PROGRAM),
        (True, [f"./{SCRIPT}"], f"python3 ./{SCRIPT}"),
        (False, ["{bin}/cocoflow"], "{bin}/cocoflow"),
        (False, ["{bin}/python", SCRIPT], f"{{bin}}/python {SCRIPT}"),
    ],
)
def test_help_and_hints_name_the_program_as_it_was_called(activated: bool, typed: list[str], expected: str) -> None:
    programs = Path(sys.executable).parent
    path = f"{programs}:{os.defpath}" if activated else os.defpath
    filled = [part.format(bin=programs) for part in typed]

    def printed(*command: str) -> str:
        environment = {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "1000"}  # a long path does not wrap the usage
        found = [shutil.which(command[0], path=path) or command[0], *command[1:]]
        return subprocess.run(found, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    shown = expected.format(bin=programs)
    assert printed(*filled, "--help").startswith(f"usage: {shown} [-h]")
    assert f"\n  {shown} status --root runs/mine" in printed(*filled, "status", "--help")
    assert printed(*shlex.split(shown), "--version") == f"{PROGRAM} {VERSION}\n"


def test_without_the_environment_one_line_says_how_to_get_it() -> None:
    isolated = [sys.executable, "-E", "-S", str(ROOT / SCRIPT), "--help"]  # without site-packages
    done = subprocess.run(isolated, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: No module named '\w+'\. .*`make env`.*`source \.venv/bin/activate`\.\n", done.stderr)


def test_programs_beside_python_are_named_by_their_path_if_it_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(programs))
    assert installed_command("tensorboard") == "tensorboard"
    monkeypatch.setenv("PATH", os.defpath)
    assert installed_command("tensorboard") == shlex.quote(str(programs / "tensorboard"))


def test_shipped_configurations_are_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline_runner.main(["run", "--config", "retrain", "--set", "train.stepz=3"]) == 2
    assert "--set: unknown key train.stepz" in capsys.readouterr().err
    Path("retrain").mkdir()
    (tmp_path / "retrain" / "retrain.yaml").write_text("train: {stepz: 3}")
    assert pipeline_runner.main(["run", "--config", "retrain/retrain.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: retrain/retrain.yaml: unknown key")
    with pytest.raises(SystemExit):
        pipeline_runner.main(["run", "--help"])
    assert ", ".join(SHIPPED_CONFIGS) in " ".join(capsys.readouterr().out.split())


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
        (["run", "--runner", "kubeflow", "--if-changed"], 2, ["--if-changed", "not for --runner kubeflow"]),
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


def test_wrong_usage_is_told_before_tensorflow_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    absent, file = str(tmp_path / "absent"), str(tmp_path / "file.txt")
    named = ["--data", str(tmp_path), "--set", "model.name=yolov8"]
    output = ["--output", str(tmp_path / "new")]
    calls = {
        "no data set: give --data DIR": (["check-data"], ["to-examples", *output]),
        ": a file, not a data set folder": (["check-data", "--data", file], ["train", "--data", file, *output]),
        "'yolov8': no such detector. There are: ": (
            ["run", *named],
            ["train", *named, *output],
            ["compile", "--runner", "kubeflow", "--output", "p.yaml", *named],
            ["import-checkpoint", "--from", "automl", "--checkpoint", file, "--model", "yolov8", *output],
        ),
        "absent: no such file or folder. Check --model.": (
            ["predict", "--model", absent, "--images", file, *output],
            ["evaluate", "--model", absent, "--examples", file, *output],
            ["export", "--model", absent, *output],
        ),
        "absent: no such file or folder. Check --images.": (["predict", "--model", file, "--images", absent, *output],),
    }
    code = f"""
import contextlib, io, sys
import pipeline_runner
for message, commands in {calls!r}.items():
    for command in commands:
        with contextlib.redirect_stderr(io.StringIO()) as told:
            assert pipeline_runner.main(command) in (1, 2)
        assert message in told.getvalue(), (command, told.getvalue())
print(set(sys.modules) & set({SLOW_IMPORTS}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr
    assert not (tmp_path / "new").exists()


def test_the_flags_of_a_command_are_blamed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    create = ["schedule", "create", "--runner", "vertex", "--cron", "99 * * * *", "--data", "gs://b/d"]
    assert pipeline_runner.main(create) == 2
    assert capsys.readouterr().err.startswith("error: --cron: run.schedule.cron: '99 * * * *'")
    assert pipeline_runner.main([*create, "--set", "train.steps=0"]) == 2
    assert capsys.readouterr().err.startswith("error: --set: train.steps = 0")


def test_googles_warnings_of_its_own_future_are_not_shown(tmp_path: Path) -> None:
    command = [sys.executable, "pipeline_runner.py", "schedule", "list", "--runner", "vertex"]
    environment = os.environ | {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "no_key.json")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path(pipeline_runner.__file__).parent
    )
    assert done.returncode == 1
    assert "FutureWarning" not in done.stderr
    assert done.stderr.startswith("error: Vertex AI: cannot connect")
