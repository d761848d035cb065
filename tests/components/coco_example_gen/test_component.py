"""Whole component under TFX's runners; TFX takes 20 s to import, so it is imported inside."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import schemas
from detection.storage.files import copy_file, list_folder
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.errors import ConfigError, DataError, find_user_error
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import contents, upload
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow

SCHEMA = Path(schemas.__file__).with_name("records.pbtxt")


def _run(
    root: Path,
    data: str | Path,
    *,
    runner: str = "local",
    checked: bool = False,
    artifacts: str | None = None,
    **arguments: Any,
) -> None:
    """Runs the example gen, and the stock components that check its output, below `root`; `artifacts` may be remote."""
    from tfx import v1 as tfx
    from tfx.orchestration.beam.beam_dag_runner import BeamDagRunner

    from components.coco_example_gen.component import CocoExampleGen

    example_gen = CocoExampleGen(DataConfig.model_validate({"root": str(data), **arguments}))
    nodes: list[Any] = [example_gen]
    if checked:
        schema = tfx.components.ImportSchemaGen(schema_file=str(SCHEMA))
        statistics = tfx.components.StatisticsGen(
            examples=example_gen.outputs["examples"], schema=schema.outputs["schema"]
        )
        validator = tfx.components.ExampleValidator(
            statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
        )
        nodes += [schema, statistics, validator]
    root.mkdir(exist_ok=True)
    pipeline = tfx.dsl.Pipeline(
        pipeline_name="test",
        pipeline_root=artifacts or str(root / "pipeline"),
        components=nodes,
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(str(root / "ml.db")),
    )
    (BeamDagRunner() if runner == "beam" else tfx.orchestration.LocalDagRunner()).run(pipeline)


def _examples(root: Path) -> list[Path]:
    """The artifacts' folders, oldest first."""
    return sorted((root / "pipeline/CocoExampleGen/examples").glob("*"), key=lambda path: int(path.name))


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _artifact(root: Path) -> Any:
    from ml_metadata import MetadataStore
    from tfx.orchestration import metadata
    from tfx.types import artifact_utils

    store = MetadataStore(metadata.sqlite_metadata_connection_config(str(root / "ml.db")))
    return artifact_utils.deserialize_artifact(
        store.get_artifact_type("Examples"), store.get_artifacts_by_type("Examples")[-1]
    )


def _anomalies(root: Path) -> dict[str, Any]:
    from tensorflow_metadata.proto.v0.anomalies_pb2 import Anomalies

    return {
        path.parent.name: dict(Anomalies.FromString(path.read_bytes()).anomaly_info)
        for path in root.glob("pipeline/ExampleValidator/anomalies/*/Split-*/SchemaDiff.pb")
    }


def test_the_artifact_is_as_the_contract_says(tmp_path: Path) -> None:
    write_data_set(tmp_path / "data")
    _run(tmp_path / "run", tmp_path / "data")
    [folder] = _examples(tmp_path / "run")
    contents = _contents(folder)
    assert sorted(contents) == [
        "Split-eval/data_tfrecord-00000-of-00001",
        "Split-train/data_tfrecord-00000-of-00001",
        "data_report.html",
        "dataset.json",
        "quarantine.jsonl",
    ]
    assert contents["quarantine.jsonl"] == b""
    assert [entry["id"] for entry in json.loads(contents["dataset.json"])["categories"]] == [4, 2, 9]
    artifact = _artifact(tmp_path / "run")
    assert json.loads(artifact.split_names) == ["train", "eval"]
    assert artifact.get_string_custom_property("payload_format") == "FORMAT_TF_EXAMPLE"
    assert artifact.get_int_custom_property("span") == 0

    _run(tmp_path / "beam", tmp_path / "data", runner="beam")
    assert _contents(_examples(tmp_path / "beam")[0]) == contents


def test_unchanged_data_is_not_read_again(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    write_data_set(data)
    _run(run, data)
    (data / "images/notes.txt").write_text("not used")
    _run(run, data)
    assert len(_examples(run)) == 1
    picture = data / "images/train/1/3.png"
    picture.write_bytes((data / "images/train/1/5.png").read_bytes())
    _run(run, data)
    _run(run, data)
    assert len(_examples(run)) == 2
    before, after = map(_contents, _examples(run))
    assert before["Split-train/data_tfrecord-00000-of-00001"] != after["Split-train/data_tfrecord-00000-of-00001"]
    assert before["Split-eval/data_tfrecord-00000-of-00001"] == after["Split-eval/data_tfrecord-00000-of-00001"]


def test_data_and_artifacts_on_cloud_storage(tmp_path: Path, gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    write_data_set(tmp_path / "data")
    _run(tmp_path / "local", tmp_path / "data")
    data, artifacts = upload(tmp_path / "data", f"{gcs.path}/my data"), f"{gcs.path}/runs"
    examples = f"{artifacts}/CocoExampleGen/examples"
    _run(tmp_path / "run", data, artifacts=artifacts, checked=True)
    [folder] = list_folder(examples)
    [here] = _examples(tmp_path / "local")
    assert contents(f"{examples}/{folder}") == contents(here)
    artifact = _artifact(tmp_path / "run")
    assert artifact.uri == f"{examples}/{folder}"
    assert json.loads(artifact.split_names) == ["train", "eval"]
    assert artifact.get_string_custom_property("data_source") == data
    _run(tmp_path / "run", data, artifacts=artifacts)
    assert list_folder(examples) == [folder]
    copy_file(tmp_path / "data/images/train/1/5.png", f"{data}/images/train/1/3.png")
    _run(tmp_path / "run", data, artifacts=artifacts)
    assert len(list_folder(examples)) == 2


def test_issues_are_listed_and_nothing_is_left(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    write_data_set(data, broken=True)
    with pytest.raises(Exception, match="2 issues in the data set") as caught:
        _run(run, data)
    error = find_user_error(caught.value)
    assert isinstance(error, DataError)
    lines = str(error).splitlines()
    assert lines[0] == (
        "2 issues in the data set (train: 1 of 5 images, more than 2%; train: 1 of 8 annotations, more than 2%):"
    )
    assert sorted(lines[1:3]) == [
        "  train: train/0/2.png (image 2): cannot read the image file: No such file or directory. "
        "Copy it there or correct file_name.",
        "  train: train/1/1.png (image 1, annotation 2): bbox [70, 0, 50, 5] (x, y, width, height) is outside "
        "the 80x40 image. Correct the box, or remove the annotation.",
    ]
    assert "--set data.on_fault=drop" in lines[3]
    assert _examples(run) == []
    _run(run, data, on_fault=IssuePolicies.model_validate("drop"))
    [folder] = _examples(run)
    assert (folder / "Split-train").is_dir()


def _do(folder: Path, **parameters: Any) -> Any:
    from tfx.types import standard_artifacts

    from components.coco_example_gen.component import CocoExampleGen
    from components.coco_example_gen.executor import Executor

    examples = standard_artifacts.Examples()
    examples.uri = str(folder)
    component = CocoExampleGen(DataConfig.model_validate(parameters))
    given = {key: value for key, value in component.exec_properties.items() if value is not None}
    Executor().Do({}, {"examples": [examples]}, given)
    return examples


def test_dropped_issues_are_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_data_set(tmp_path / "data", broken=True)
    with caplog.at_level("INFO", "cocoflow.example_gen"):
        _do(tmp_path / "out", root=str(tmp_path / "data"), on_fault=IssuePolicies.model_validate("drop"))
    listed = [json.loads(line) for line in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    assert sorted((issue["kind"], issue["image_id"], issue["annotation_id"]) for issue in listed) == [
        ("box_outside", 1, 2),
        ("image_missing", 2, None),
    ]
    assert caplog.messages == [
        "COCO (annotations/instances_train.json, annotations/instances_val.json)",
        "train: 4 images, 7 annotations",
        "eval: 1 images, 2 annotations",
        "left out, see quarantine.jsonl: 1 box_outside, 1 image_missing",
        "kept as they are: 1 category_empty",
    ]


def test_a_split_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_data_set(data, images=12)
    for picture in data.glob("images/train/*/*.png"):
        picture.unlink()
    with pytest.raises(DataError, match="split train: no valid image, 12 issues") as caught:
        _do(out, root=str(data), on_fault=IssuePolicies.model_validate("drop"))
    assert "... and 2 more" in str(caught.value)
    assert _contents(out) == {}


def test_invalid_arguments_are_refused_before_anything_runs(tmp_path: Path) -> None:
    from components.coco_example_gen.component import CocoExampleGen

    with pytest.raises(ConfigError, match=r"give --data DIR, or data\.root or data\.splits"):
        CocoExampleGen(DataConfig())
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: no data set recognised")):
        _do(tmp_path / "out", root=str(tmp_path))
    absent = {"annotations": str(tmp_path / "absent.json"), "images": str(tmp_path)}
    with pytest.raises(DataError, match=r"absent\.json: no such annotation file"):
        _do(tmp_path / "out", splits={"train": absent})


def test_specified_splits(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_data_set(data)
    files = {"night": "val", "train": "train", "valid": "val"}
    sources = {
        name: {"annotations": str(data / f"annotations/instances_{file}.json"), "images": str(data / "images")}
        for name, file in files.items()
    }
    examples = _do(tmp_path / "out", splits=sources)
    assert json.loads(examples.split_names) == ["train", "night", "eval"]
    assert json.loads((tmp_path / "out/dataset.json").read_text())["info"] == {"year": 2020}


@pytest.mark.parametrize("name", ["coco2017_ccby", pytest.param("dali_masks", marks=pytest.mark.extended)])
def test_the_schema_fits_real_data(tmp_path: Path, shared_data: Path, name: str) -> None:
    _run(tmp_path / "run", shared_data / name, checked=True)
    assert _anomalies(tmp_path / "run") == {"Split-train": {}, "Split-eval": {}}


def test_the_schema_sees_what_is_invalid(tmp_path: Path) -> None:
    import tensorflow as tf
    import tensorflow_data_validation as tfdv

    write_data_set(tmp_path / "data")
    _do(tmp_path / "out", root=str(tmp_path / "data"))
    [shard] = (tmp_path / "out/Split-train").iterdir()
    example = tf.train.Example.FromString(next(iter(tf.data.TFRecordDataset(str(shard)))).numpy())
    example.features.feature["image/object/bbox/xmax"].float_list.value[0] = 1.5
    example.features.feature["image/format"].bytes_list.value[0] = b"webp"
    del example.features.feature["image/height"]
    with tf.io.TFRecordWriter(str(tmp_path / "bad")) as writer:
        writer.write(example.SerializeToString())
    statistics = tfdv.generate_statistics_from_tfrecord(str(tmp_path / "bad"))
    anomalies = tfdv.validate_statistics(statistics, tfdv.load_schema_text(str(SCHEMA)))
    assert set(anomalies.anomaly_info) == {"image/object/bbox/xmax", "image/format", "image/height"}
