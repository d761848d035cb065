"""The step that TensorBoard's points of an evaluation are written at."""

import json
import logging
from pathlib import Path

import pytest

from components.coco_evaluator.evaluation import trained_steps
from schemas.artifacts import CONFIG_YAML, EXPORTED_FROM_JSON, EXTRA_FILES
from schemas.config.config_io import load_config, to_yaml
from schemas.errors import DataError


def _model(folder: Path, **files: str) -> str:
    (folder / EXTRA_FILES).mkdir(parents=True)
    for name, text in files.items():
        (folder / EXTRA_FILES / name).write_text(text)
    return str(folder)


@pytest.fixture
def config() -> dict[str, str]:
    return {CONFIG_YAML: to_yaml(load_config(None, ["train.steps=900"]))}


def test_the_step_is_that_of_the_exported_checkpoint(
    tmp_path: Path, config: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    told = {EXPORTED_FROM_JSON: json.dumps({"step": 250, "weights": "raw"})}
    with caplog.at_level(logging.WARNING, "cocoflow.evaluator"):
        assert trained_steps(_model(tmp_path / "model", **config, **told)) == 250
        assert trained_steps(_model(tmp_path / "of another tool")) == 0
    assert not caplog.records


def test_a_model_without_its_step_is_taken_for_a_finished_run(
    tmp_path: Path, config: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cocoflow.evaluator"):
        assert trained_steps(_model(tmp_path / "old", **config)) == 900
    (message,) = [record.getMessage() for record in caplog.records]
    assert "does not hold the step of its checkpoint" in message
    assert "train.steps = 900" in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"step": 7}',
        '{"step": "7", "weights": "ema"}',
        '{"step": true, "weights": "ema"}',
        '{"step": -1, "weights": "ema"}',
        '{"step": 1e400, "weights": "ema"}',
        '{"step": 7, "weights": ["ema"]}',
    ],
)
def test_a_spoilt_step_is_refused_by_name(text: str, tmp_path: Path, config: dict[str, str]) -> None:
    model = _model(tmp_path / "model", **config, **{EXPORTED_FROM_JSON: text})
    with pytest.raises(DataError, match=r"assets\.extra/training\.json: not "):
        trained_steps(model)


@pytest.mark.parametrize("content", [b"\x80", b"train: [", b"train: {nope: 1}"])
def test_a_damaged_configuration_of_a_model_is_named(content: bytes, tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    path = Path(model, EXTRA_FILES, CONFIG_YAML)
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: .*export or copy the model again"):
        trained_steps(model)
