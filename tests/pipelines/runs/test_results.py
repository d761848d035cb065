"""What `run` prints at its end."""

import io
import shlex
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import pipeline_runner
from components.history.queries import History
from components.history.records import Run
from pipelines.runs.execute import _require_not_rolled_back
from pipelines.runs.results import RunResults, print_results
from schemas.config.config import Config
from schemas.errors import DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.fake_detector import save_fake_detector, write_images
from tests.pipelines.recorded_root import local_root, publish_rollback

METRICS = {metric.name: 0.25 for metric in METRIC_DEFINITIONS["bbox"]}


def printed(*, blessed: bool, reasons: list[str], pushed: str | None = None, images: str | None = None) -> list[str]:
    stream = io.StringIO()
    results = RunResults(
        Run(
            id="run",
            state="done",
            started="2026-11-23T03:00:00+00:00",
            metrics=METRICS,
            blessed=blessed,
            reasons=tuple(reasons),
            pushed_path=pushed,
            evaluation="evaluation",
            model_run="model_run",
        ),
        "bbox",
        images,
    )
    print_results(results, Console(file=stream, width=60), typed=["run"], train_config=Config().train)
    return stream.getvalue().splitlines()


def test_a_refused_model_has_its_reason_in_one_line() -> None:
    reason = "AP 0.0009 is below 0.05 (to accept it: --set evaluate.thresholds.absolute.AP=0)"
    lines = printed(blessed=False, reasons=[reason, "AP50 0.3 is at least 0.1"])
    place = lines.index(f"Blessed:     no: {reason}")
    assert lines[place + 1 : place + 3] == [
        f"{'':13}AP50 0.3 is at least 0.1",
        "Pushed:      no, only blessed models are pushed",
    ]
    assert not any(line.startswith("Try it") for line in lines)


def test_the_command_to_try_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_fake_detector(tmp_path / "runs" / "my run" / "1")
    write_images(tmp_path / "photos", 2)
    lines = printed(blessed=True, reasons=["AP 0.25 is at least 0.05"], pushed="runs/my run/1", images="photos")
    [command] = [line.removeprefix("Try it:").strip() for line in lines if line.startswith("Try it:")]
    assert str(tmp_path) not in command
    before = set(tmp_path.iterdir())
    program, *arguments = shlex.split(command)  # as a shell reads what a user pastes
    assert shutil.which(program)
    assert pipeline_runner.main(arguments) == 0
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {
        "detections.json",
        "detections_images.json",
        "detections.png",
    }


def test_a_version_that_was_rolled_back_is_no_result_of_a_run(tmp_path: Path) -> None:
    """The pusher, which refuses such a model, does not run again for a model that an earlier run has pushed."""
    root = local_root(tmp_path)
    pushed = f"{root}/serving/1002"
    _require_not_rolled_back(History(root), pushed)
    _require_not_rolled_back(History(root), None)
    publish_rollback(root, to=1001, refused=1002)
    with pytest.raises(
        DataError, match=r"1002: not pushed again: .* cocoflow rollback --directory \S+/serving --to 1002"
    ):
        _require_not_rolled_back(History(root), pushed)
