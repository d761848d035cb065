"""How much a reader has to open to follow the program."""

from benchmarks.reading_path import measure


def test_evaluate_from_files_is_read_in_few_files() -> None:
    path = measure("evaluate")
    assert len(path.files) <= 9, path.files
    assert len(path.modules) <= 39, path.modules
    assert {"pipelines/commands/evaluate.py", "detection/coco/evaluation.py"} <= set(path.files)
