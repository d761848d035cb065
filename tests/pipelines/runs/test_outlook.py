"""The lines at the end of a run: whether it was rising, label-error candidates, the next command."""

import dataclasses
import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from detection.analysis.analysis_file import write_analysis
from detection.training.validation.history import HistoryEntry, write_history
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from pipelines.runs.results import RunResults, print_results
from pipelines.runs.run_record import RunRecord
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
    record = RunRecord(
        id="run",
        state="done",
        started="2026-11-23T03:00:00+00:00",
        metrics={"AP": 0.4},
        blessed=True,
        pushed_path=str(folder / "serving/1"),
        evaluation=str(evaluation),
    )
    model_run = str(_training(folder / "model_run", values))
    results = RunResults(record, model_run, "bbox", images="photos")
    stream = io.StringIO()
    print_results(results, Console(file=stream), typed=["run", "--data", "photos"], train_config=Config().train)
    return stream.getvalue().splitlines()


def test_while_the_metric_rises_the_next_command_trains_longer(tmp_path: Path) -> None:
    lines = _printed(tmp_path, RISING)
    assert "Training:    AP50 was still rising: 0.300 after 200 steps, 0.400 after 300" in lines
    assert lines[-2].startswith("Next: ")
    assert lines[-2].endswith(" run --data photos --set train.steps=600")
    assert lines[-1].startswith("Try it: ")


@pytest.mark.parametrize("values", [LEVEL, RISING[:2], []])
def test_otherwise_the_next_command_tries_the_model(values: list[float], tmp_path: Path) -> None:
    lines = _printed(tmp_path, values)
    stopped = "Training:    AP50 has stopped rising: best 0.410 after 200 steps, 0.405 after 300"
    assert (stopped in lines) == (values == LEVEL)
    assert lines[-1].startswith("Try it: ")
    assert not any(line.startswith("Next: ") for line in lines)


def test_a_longer_training_is_the_same_command_with_twice_its_length() -> None:
    typed = ["train", "--data", "my photos", "--set", "train.steps=300"]
    for assignments in (["train.steps=300"], []):  # the second has train.steps = auto
        command = longer_command(typed, load_config(None, assignments).train, steps=300)
        assert shlex.split(command)[1:] == [*typed, "--set", "train.steps=600"]
        assert load_config(None, [*assignments, shlex.split(command)[-1]]).train.steps == 600
    epochs = load_config(None, ["train.epochs=1.5"]).train
    assert longer_command(typed, epochs, steps=300).endswith(" --set train.epochs=3.0")


def test_names_with_spaces_are_quoted() -> None:
    assert "--model '/my runs/1' --images '/my photos'" in predict_command("/my runs/1", "/my photos")


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
