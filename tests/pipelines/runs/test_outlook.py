"""The lines at the end of a run: whether it was rising, label-error candidates, the next command."""

import dataclasses
import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from components.history.records import Run
from detection.analysis.analysis_file import write_analysis
from detection.training.validation.history import HistoryEntry, write_history
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from pipelines.runs.results import RunResults, print_results
from schemas.artifacts import ANALYSIS_JSON, CONFIG_YAML, HISTORY_JSON, VALIDATION
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from tests.detection.reports.evaluation.builders import analysis

RISING, LEVEL = [0.1, 0.3, 0.4], [0.1, 0.41, 0.405]


def _training(folder: Path, values: list[float]) -> Path:
    folder.mkdir()
    (folder / CONFIG_YAML).write_text(to_yaml(load_config(None, ["train.validation={every: 100, metric: AP50}"])))
    entries = [HistoryEntry(100 * number, {"AP": 0.0, "AP50": value}) for number, value in enumerate(values, 1)]
    if entries:
        write_history(folder / VALIDATION / HISTORY_JSON, entries)
    return folder


def _printed(folder: Path, values: list[float]) -> list[str]:
    evaluation = folder / "evaluation"
    evaluation.mkdir()
    record = Run(
        id="run",
        state="done",
        started="2026-11-23T03:00:00+00:00",
        metrics={"AP": 0.4},
        blessed=True,
        pushed_path=str(folder / "serving/1"),
        evaluation=str(evaluation),
        model_run=str(_training(folder / "model_run", values)),
    )
    results = RunResults(record, "bbox", images="photos")
    stream = io.StringIO()
    print_results(results, Console(file=stream), typed=["run", "--data", "photos"], train_config=Config().train)
    return stream.getvalue().splitlines()


def test_while_the_metric_rises_the_next_command_trains_longer(tmp_path: Path) -> None:
    lines = _printed(tmp_path, RISING)
    rising = "AP50 was still rising: 0.3000 after 200 steps, 0.4000 after 300 steps, perhaps 0.67 or more after 3,000"
    assert f"Training:    {rising}" in lines
    assert lines[-2].startswith("Next: ")
    assert lines[-2].endswith(" run --data photos --set train.steps=600")
    assert lines[-1].startswith("Try it: ")


@pytest.mark.parametrize("values", [LEVEL, RISING[:2], []])
def test_otherwise_the_next_command_tries_the_model(values: list[float], tmp_path: Path) -> None:
    lines = _printed(tmp_path, values)
    stopped = "Training:    AP50 has stopped rising: 0.4100 after 200 steps, 0.4050 after 300 steps"
    assert (stopped in lines) == (values == LEVEL)
    assert lines[-1].startswith("Try it: ")
    assert not any(line.startswith("Next: ") for line in lines)


def test_a_metric_near_zero_has_not_stopped_rising(tmp_path: Path) -> None:
    lines = _printed(tmp_path, [0.001, 0.004, 0.003])
    assert "Training:    AP50 has hardly risen: 0.0040 after 200 steps, 0.0030 after 300 steps" in lines


@pytest.mark.parametrize(
    "lengths",
    [
        [],  # train.steps = auto
        ["--set", "train.steps=300"],
        ["--set=train.steps=300"],
        ["--set", "train.steps=150", "--set", "train.steps=300"],
    ],
)
def test_a_longer_training_is_the_same_command_with_twice_its_length(lengths: list[str]) -> None:
    before, after = ["train", "--set", "model.name=efficientdet-d0"], ["--data", "my photos", "--set", "train.seed=1"]
    typed = [*before, *lengths, *after]
    steps = load_config(None, [f"train.steps={300 if lengths else 'auto'}"]).train
    command = shlex.split(longer_command(typed, steps, steps=300))
    assert command[1:] == [*before, *after, "--set", "train.steps=600"]
    epochs = load_config(None, ["train.epochs=1.5"]).train
    command = shlex.split(longer_command([*typed, "--set", "train.epochs=1.5"], epochs, steps=300))
    assert command[1:] == [*before, *after, "--set", "train.epochs=3.0"]
    budget = load_config(None, ["train.budget=20"]).train
    command = shlex.split(longer_command([*typed, "--set=train.budget=20"], budget, steps=300))
    assert command[1:] == [*before, *after, "--set", "train.budget=40.0"]


def test_long_trainings_are_counted_with_commas(tmp_path: Path) -> None:
    outlook = training_outlook(_training(tmp_path / "run", [0.01 * number for number in range(1, 13)]))
    assert outlook is not None
    text = "AP50 was still rising: 0.0800 after 800 steps, 0.1200 after 1,200 steps, perhaps 0.23 or more after 12,000"
    assert outlook.text == text
    assert outlook.steps == 1200


def test_names_with_spaces_are_quoted() -> None:
    assert "--model '/my runs/1' --images '/my photos'" in predict_command("/my runs/1", "/my photos")


def test_paths_below_the_current_folder_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = predict_command(f"{tmp_path}/runs/my run/1", "photos")
    assert "--model 'runs/my run/1' --images photos " in command
    assert "--images gs://bucket/photos " in predict_command("/elsewhere", "gs://bucket/photos/")
    (tmp_path / "folder").mkdir()
    lines = _printed(tmp_path / "folder", RISING)
    assert "Report:      folder/evaluation/report.html" in lines
    assert "Pushed:      folder/serving/1" in lines
    assert not any(str(tmp_path) in line for line in lines)


def test_label_error_candidates_are_counted_and_the_section_is_named(tmp_path: Path) -> None:
    assert label_errors(str(tmp_path)) is None
    with_candidates = analysis()
    write_analysis(tmp_path / ANALYSIS_JSON, with_candidates)
    text = label_errors(str(tmp_path))
    assert text is not None
    assert text.startswith(f"{len(with_candidates.label_errors)} label-error candidates are listed: ")
    assert text.endswith(f"{tmp_path}/report.html#label-errors")
    write_analysis(tmp_path / ANALYSIS_JSON, dataclasses.replace(with_candidates, label_errors=[]))
    assert label_errors(str(tmp_path)) is None


def test_a_training_without_validation_says_nothing(tmp_path: Path) -> None:
    assert training_outlook(_training(tmp_path / "run", [])) is None
