"""Which files make an output whole, and what is told of one that is not."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SAVED_MODEL = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")
EVALUATION = ("metrics.json", "blessing.json", "detections.json", "analysis.json", "report.html")

# Type: the files that it must have, and others that count once they were seen.
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Examples": (
        ("dataset.json", "quarantine.jsonl", "Split-train/data_tfrecord-00000-of-00001", "Split-eval/data_tfrecord-0"),
        ("data_report.html", "Split-train/data_tfrecord-00001-of-00002"),
    ),
    "ExampleStatistics": (("Split-train/FeatureStats.pb", "Split-eval/FeatureStats.pb"), ()),
    "ExampleAnomalies": (("Split-train/SchemaDiff.pb", "Split-eval/SchemaDiff.pb"), ()),
    "Schema": (("schema.pbtxt",), ()),
    "Model": (
        ("Format-Serving/saved_model.pb", "Format-Serving/variables/variables.index", "config.yaml"),
        ("Format-Serving/variables/variables.data-00000-of-00001", "Format-Serving/assets.extra/categories.json"),
    ),
    "ModelRun": (("categories.json", "checkpoints/ckpt-3.index"), ("validation/history.json",)),
    "ModelEvaluation": (EVALUATION, ("eval_config.json", "logs/events.out.tfevents.1")),
    "ModelBlessing": (("BLESSED",), ()),
    "PushedModel": (
        ("pushed.json", "../serving/7/saved_model.pb", "../serving/7/variables/variables.index"),
        ("../serving/7/variables/variables.data-00000-of-00001",),
    ),
}
REQUIRED = [(kind, name) for kind, (required, _) in FILES.items() for name in required]
RECORDED = [(kind, name) for kind, both in FILES.items() for name in (both[0] + both[1])]


def artifact_of(kind: str, uri: Path) -> Any:
    """An artifact as ML Metadata returns it."""
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    artifact = mlmd.Artifact(id=3, type=kind, uri=str(uri), create_time_since_epoch=1000)
    if kind.startswith("Example"):
        artifact.properties["split_names"].string_value = '["train", "eval"]'
    if kind == "ModelBlessing":
        artifact.custom_properties["blessed"].int_value = 1
    if kind == "PushedModel":
        artifact.custom_properties["pushed"].int_value = 1
        artifact.custom_properties["pushed_destination"].string_value = str(uri.parent / "serving" / "7")
    return artifact


def whole(kind: str, folder: Path) -> Any:
    """An artifact with all its files."""
    uri = folder / "5"
    uri.mkdir()
    for name in (*FILES[kind][0], *FILES[kind][1]):
        path = Path(os.path.normpath(uri / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return artifact_of(kind, uri)


def file_records(folder: Path) -> Any:
    from pipelines.runs.artifact_files import FileRecords

    return FileRecords(folder / "records")


@pytest.mark.parametrize(("kind", "name"), REQUIRED)
def test_each_file_that_an_output_needs_is_required_without_a_record(kind: str, name: str, tmp_path: Path) -> None:
    from pipelines.runs.artifact_files import first_missing

    artifact = whole(kind, tmp_path)
    assert first_missing(artifact) is None
    path = Path(os.path.normpath(tmp_path / "5" / name))
    for split_file in path.parent.glob("*") if "Split-" in name else [path]:
        split_file.unlink()
    if name.startswith("checkpoints"):
        path = path.with_name("*")
    if "tfrecord" in name:
        path = path.with_name("*")
    assert first_missing(artifact) == str(path)
    assert file_records(tmp_path).check(artifact) == f"{path} is missing"


def _remove(path: Path) -> str:
    path.unlink()
    return "is missing"


def _cut(path: Path) -> str:
    size = path.stat().st_size
    os.truncate(path, size - 1)
    return f"has {size - 1} bytes instead of {size}"


def _change(path: Path) -> str:
    os.utime(path, ns=(0, 0))
    path.write_bytes(path.read_bytes()[::-1])
    return "was changed"


@pytest.mark.parametrize("spoil", [_remove, _cut, _change])
@pytest.mark.parametrize(("kind", "name"), RECORDED)
def test_every_recorded_file_is_noticed_missing_truncated_or_changed(
    kind: str, name: str, spoil: Callable[[Path], str], tmp_path: Path
) -> None:
    artifact, records = whole(kind, tmp_path), file_records(tmp_path)
    assert records.check(artifact) is None
    assert records.check(artifact) is None
    path = Path(os.path.normpath(tmp_path / "5" / name))
    # TFRecords carry checksums of their own.
    unseen = kind == "Examples" and spoil is _change
    change = spoil(path)
    expected = None if unseen else f"{path} {change}"
    issue = records.check(artifact)
    assert issue == expected or (spoil is _remove and issue and issue.endswith("* is missing"))


def test_nothing_is_asked_of_a_model_that_was_not_pushed(tmp_path: Path) -> None:
    from pipelines.runs.artifact_files import first_missing

    artifact = whole("PushedModel", tmp_path)
    artifact.custom_properties["pushed"].int_value = 0
    shutil.rmtree(tmp_path / "serving")
    (tmp_path / "5" / "pushed.json").unlink()
    assert first_missing(artifact) is None
    shutil.rmtree(tmp_path / "5")
    assert first_missing(artifact) == str(tmp_path / "5")


def test_the_blessing_that_was_given_is_looked_for(tmp_path: Path) -> None:
    from pipelines.runs.artifact_files import first_missing

    artifact = whole("ModelBlessing", tmp_path)
    artifact.custom_properties["blessed"].int_value = 0
    assert first_missing(artifact) == str(tmp_path / "5" / "NOT_BLESSED")


def test_other_modification_times_are_no_change(tmp_path: Path) -> None:
    """As after `cp -r`, or from a backup."""
    artifact, records = whole("Model", tmp_path), file_records(tmp_path)
    assert records.check(artifact) is None
    for path in tmp_path.rglob("*"):
        os.utime(path, ns=(10**9, 10**9))
    assert records.check(artifact) is None
    [record] = (tmp_path / "records").iterdir()
    assert {modified for _, modified, _ in json.loads(record.read_text())["files"].values()} == {10**9}


def test_what_is_added_or_grows_later_does_not_count(tmp_path: Path) -> None:
    artifact, records = whole("ModelRun", tmp_path), file_records(tmp_path)
    for name in ("logs/events.1", "follow/history.json", "checkpoints/.nfs0001"):
        path = tmp_path / "5" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("short")
    assert records.check(artifact) is None
    for path in (tmp_path / "5" / "logs/events.1", tmp_path / "5" / "follow/history.json"):
        path.write_text("longer than before")
    (tmp_path / "5" / "checkpoints/.nfs0001").unlink()
    (tmp_path / "5" / "checkpoints/mine").touch()
    assert records.check(artifact) is None


def test_the_record_of_a_refusal_comes_and_goes(tmp_path: Path) -> None:
    from components.history.read import forget_refusal, record_refusal

    artifact, records = whole("Model", tmp_path), file_records(tmp_path)
    record_refusal(artifact.uri, "NaN")
    assert records.check(artifact) is None
    forget_refusal(artifact.uri)
    assert records.check(artifact) is None
    record_refusal(artifact.uri, "NaN")
    assert records.check(artifact) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"artifact": 1}', '{"files": []}', "[" * 100_000, "\x00"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    artifact, records = whole("Schema", tmp_path), file_records(tmp_path)
    assert records.check(artifact) is None
    [record] = (tmp_path / "records").iterdir()
    before = record.read_text()
    record.write_text(text)
    assert records.check(artifact) is None
    assert record.read_text() == before


def test_a_record_of_another_artifact_with_the_same_id_does_not_count(tmp_path: Path) -> None:
    artifact, records = whole("Schema", tmp_path), file_records(tmp_path)
    assert records.check(artifact) is None
    (tmp_path / "5" / "schema.pbtxt").write_text("of another metadata database")
    artifact.create_time_since_epoch += 1
    assert records.check(artifact) is None
    records.forget(artifact)
    records.forget(artifact)
    assert list((tmp_path / "records").iterdir()) == []
