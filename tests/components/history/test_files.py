"""Files of outputs that are missing, truncated or changed are noticed."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from components.history import files
from components.history.files import damage_of, entries_of
from components.history.records import Execution, Output
from components.history.store import write_execution
from detection.storage.atomic import write_text
from detection.storage.files import remove_file
from tests.storage_emulator.fixture import Bucket

# Type: files that belong to the output.
FILES = {
    "Examples": (
        "dataset.json",
        "Split-train/data_tfrecord-00000-of-00002",
        "Split-train/data_tfrecord-00001-of-00002",
    ),
    "ExampleStatistics": ("Split-train/FeatureStats.pb", "Split-eval/FeatureStats.pb"),
    "Model": ("Format-Serving/saved_model.pb", "Format-Serving/variables/variables.index", "config.yaml"),
    "ModelRun": ("categories.json", "checkpoints/ckpt-3.index", "validation/history.json"),
    "ModelBlessing": ("BLESSED",),
    "PushedModel": ("pushed.json", "../serving/7/saved_model.pb", "../serving/7/variables/variables.index"),
}
RECORDED = [(kind, name) for kind, names in FILES.items() for name in names]


def _record(kind: str, folder: Path) -> Execution:
    """A record of an output with all its files."""
    uri = folder / "5"
    for name in FILES[kind]:
        write_text(os.path.normpath(uri / name), f"content of {name}")
    properties = {"pushed_destination": str(folder / "serving/7")} if kind == "PushedModel" else {}
    output = Output(str(uri), kind, dict(properties))
    return Execution("Node", "done", key="0123456789abcdef", outputs={"output": [output]}, files=entries_of([output]))


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
def test_every_file_is_noticed_missing_truncated_or_changed(
    kind: str, name: str, spoil: Callable[[Path], str], tmp_path: Path
) -> None:
    record = _record(kind, tmp_path)
    assert len(record.files) == len(FILES[kind])
    assert damage_of(record) is None
    path = Path(os.path.normpath(tmp_path / "5" / name))
    # TFRecords carry checksums of their own.
    unseen = kind == "Examples" and spoil is _change
    change = spoil(path)
    assert damage_of(record) == (None if unseen else f"{path} {change}")


def test_a_record_of_many_files_is_small_and_notices_a_missing_one(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts" / "logs"
    for number in range(1500):
        (folder / f"{number:04}-{'x' * 150}").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04}-{'x' * 150}").touch()
    output = Output(str(folder), "Logs", {})
    small = Output(str(tmp_path / "model"), "Model", {})
    write_text(tmp_path / "model/x", "content")
    record = Execution(
        "Node", "done", key="0", outputs={"a": [output], "b": [small]}, files=entries_of([output, small])
    )
    write_execution(str(tmp_path), record, started=datetime.now(UTC))
    [written] = (tmp_path / "history/Node").iterdir()
    assert written.stat().st_size < 256 << 10
    assert set(record.files) == {str(folder), str(tmp_path / "model/x")}
    assert damage_of(record) is None
    next(folder.iterdir()).unlink()
    assert damage_of(record) == f"{folder}: its 1500 files are not those that were written"


def test_other_modification_times_are_no_change(tmp_path: Path) -> None:
    """As after `cp -r`, or from a backup."""
    record = _record("Model", tmp_path)
    for path in tmp_path.rglob("*"):
        os.utime(path, ns=(10**9, 10**9))
    assert damage_of(record) is None


def test_what_is_added_or_grows_later_does_not_count(tmp_path: Path) -> None:
    record = _record("ModelRun", tmp_path)
    for name in ("logs/events.1", "follow/history.json", "checkpoints/.nfs0001"):
        write_text(tmp_path / "5" / name, "short")
    assert entries_of(record.outputs["output"]) == record.files
    model = _record("Model", tmp_path / "model")
    assert entries_of(model.outputs["output"]) == model.files
    assert damage_of(model) is None


def test_many_files_are_recorded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MANY", 2)
    record = _record("Model", tmp_path)
    assert list(record.files) == [str(tmp_path / "5")]
    assert damage_of(record) is None
    (tmp_path / "5/config.yaml").unlink()
    assert damage_of(record) == f"{tmp_path / '5'}: its 3 files are not those that were written"


def test_on_cloud_storage_the_service_tells_the_checksums(gcs: Bucket) -> None:
    output = Output(f"{gcs.path}/model", "Model")
    for name in ("a", "b"):
        write_text(f"{output.uri}/{name}", name)
    record = Execution("Node", "done", key="0123456789abcdef", outputs={"output": [output]}, files=entries_of([output]))
    gcs.emulator.requests()
    assert damage_of(record) is None
    assert not [one for one in gcs.emulator.requests() if "alt=media" in one["target"]], "nothing is downloaded"
    write_text(f"{output.uri}/a", "a")
    assert damage_of(record) is None, "the same content again"
    write_text(f"{output.uri}/a", "x")
    assert damage_of(record) == f"{output.uri}/a was changed"
    remove_file(f"{output.uri}/a")
    assert damage_of(record) == f"{output.uri}/a is missing"
    assert damage_of(replace(record, files={})) is None
