"""One training step stays readable in few files."""

from benchmarks.training_path import ASSIGNMENTS, MAX_FILES, entered_files, step_files
from schemas.config.config_io import load_config


def test_a_training_step_is_read_in_few_files() -> None:
    counted, others = step_files(load_config(None, ASSIGNMENTS))
    assert len(counted) <= MAX_FILES, counted
    assert {"detection/training/build_step.py", "detection/training/engine/step.py"} <= set(counted)
    assert "detection/models/efficientdet/model.py" in others


def test_a_file_that_is_entered_is_seen() -> None:
    assert entered_files(lambda: load_config(None, ["train.steps=3"])) >= {"schemas/config/config_io.py"}
