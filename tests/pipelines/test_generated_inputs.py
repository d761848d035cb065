"""Commands on configurations, environments and annotation files that nobody meant: an answer, never a traceback."""

import json
from pathlib import Path

import pytest

import components.coco_example_gen.conversion
import pipeline_runner
import pipelines.runs.execute
from components.coco_example_gen import examination
from tests.components.coco_example_gen.mutations import base_tree, write_images
from tests.components.coco_example_gen.without_beam import read_without_beam
from tests.detection.training import tiny_detector
from tests.pipelines.generated_inputs import annotations, configuration, environment

LONGEST = 20_000  # characters of an answer


class DataWasReadError(Exception):
    """The checks of the start are over and let everything pass."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def stop(*_arguments: object, **_keywords: object) -> None:
        raise DataWasReadError

    tiny_detector.register()
    monkeypatch.setattr(examination, "_read", read_without_beam)
    monkeypatch.setattr(components.coco_example_gen.conversion, "convert", stop)
    monkeypatch.setattr(pipelines.runs.execute, "_run_pipeline", stop)
    root = tmp_path / "data"
    for split in ("train", "val"):
        write_images(root / split, base_tree())
    (root / "annotations").mkdir()
    _annotate(root, json.dumps(base_tree()).encode())
    return root


def _annotate(root: Path, content: bytes) -> None:
    for split in ("train", "val"):
        (root / f"annotations/instances_{split}.json").write_bytes(content)


def _require_an_answer(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> None:
    try:
        code = pipeline_runner.main([str(argument) for argument in arguments])
    except DataWasReadError:
        code = 0
    except SystemExit as end:  # of argparse
        code = int(end.code or 0)
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said
    assert "\x1b[31m" not in said
    assert len(said) < LONGEST


def _run_of(root: Path, folder: Path) -> list[str | Path]:
    return ["run", "--data", root, "--set", "model.name=tiny", "--set", f"run.root={folder / 'run'}"]


def _require_for_configurations(data: Path, folder: Path, seeds: range, capfd: pytest.CaptureFixture[str]) -> None:
    for seed in seeds:
        file = folder / f"{seed}.yaml"
        file.write_bytes(configuration(seed).encode(errors="surrogatepass"))
        _require_an_answer(capfd, *_run_of(data, folder / str(seed)), "--config", file)


def _require_for_environments(data: Path, folder: Path, seeds: range, capfd: pytest.CaptureFixture[str]) -> None:
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(seed, folder).items():
                patch.setenv(name, value)
            _require_an_answer(capfd, "doctor")
            _require_an_answer(capfd, *_run_of(data, folder / str(seed)))


def _require_for_annotations(data: Path, seeds: range, capfd: pytest.CaptureFixture[str]) -> None:
    for seed in seeds:
        _annotate(data, annotations(seed))
        _require_an_answer(capfd, "check-data", "--data", data)


def test_an_answer_to_each(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _require_for_configurations(data, tmp_path, range(40), capfd)
    _require_for_environments(data, tmp_path, range(15), capfd)
    _require_for_annotations(data, range(40), capfd)


@pytest.mark.extended
def test_an_answer_to_each_of_three_hundred(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _require_for_configurations(data, tmp_path, range(1000, 1100), capfd)
    _require_for_environments(data, tmp_path, range(1000, 1100), capfd)
    _require_for_annotations(data, range(1000, 1100), capfd)
