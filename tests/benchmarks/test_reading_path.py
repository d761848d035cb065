"""How much a reader has to open to follow the program."""

from benchmarks.reading_path import measure


def test_evaluate_from_files_is_read_in_few_files() -> None:
    found = measure("evaluate")
    assert len(found.files) <= 9, found.files
    assert len(found.modules) <= 45, found.modules
    assert {"pipelines/commands/evaluate.py", "detection/coco/evaluation.py"} <= set(found.files)
