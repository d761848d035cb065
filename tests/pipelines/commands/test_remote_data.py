"""check-data, to-examples and to-coco on Cloud Storage, as a user calls them."""

import re
from pathlib import Path

import pytest

import pipeline_runner
from detection.storage import files
from detection.storage.files import read_bytes, read_text
from detection.storage.gcs import lease
from detection.storage.lock import lock_folder
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import contents, upload
from tests.storage_emulator.fixture import Bucket


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set with issues, in an otherwise empty working directory."""
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_data_set(tmp_path / "data", broken=True)
    return tmp_path / "data"


def call(*arguments: str | Path) -> int:
    return pipeline_runner.main([str(argument) for argument in arguments])


def test_data_is_checked_where_it_lies(data: Path, gcs: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check-data", "--data", data, "--report", "page.html") == 1
    here = capsys.readouterr().out
    remote = upload(data, f"{gcs.path}/my data")
    assert call("check-data", "--data", remote, "--report", f"{gcs.path}/reports/page.html") == 1
    there = capsys.readouterr().out
    assert there.replace(remote, str(data)).replace(f"{gcs.path}/reports/", "") == here
    # Without the places where a path may break, which depend on its length.
    page = read_text(f"{gcs.path}/reports/page.html").replace("<wbr>", "")
    assert page.replace(remote, str(data)) == Path("page.html").read_text().replace("<wbr>", "")
    assert files.list_folder(gcs.path) == ["my data", "reports"]


def test_examples_go_there_and_come_back(data: Path, tmp_path: Path, gcs: Bucket) -> None:
    remote, examples = upload(data, f"{gcs.path}/data"), f"{gcs.path}/examples"
    assert call("to-examples", "--data", data, "--output", "examples") == 0
    assert call("to-examples", "--data", remote, "--output", examples) == 0
    assert contents(examples) == contents("examples")
    assert call("to-coco", "--examples", "examples", "--output", "coco.json", "--images", "pictures") == 0
    there = f"{gcs.path}/back/coco.json"
    assert call("to-coco", "--examples", examples, "--output", there, "--images", f"{gcs.path}/pictures") == 0
    for split in ("train", "eval"):
        assert read_bytes(there.replace(".json", f"_{split}.json")) == Path(f"coco_{split}.json").read_bytes()
    assert contents(f"{gcs.path}/pictures") == contents("pictures")
    only = f"{gcs.path}/only.json"
    pattern = f"{examples}/Split-train/data_tfrecord-*"
    assert call("to-coco", "--examples", pattern, "--output", only) == 0
    assert read_bytes(only) == Path("coco_train.json").read_bytes()


def test_one_command_at_a_time_writes_a_folder(
    data: Path, gcs: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    examples = f"{gcs.path}/examples"
    with lock_folder(examples, instead="wait"):
        assert call("to-examples", "--data", data, "--output", examples) == 1
    assert "examples: in use by" in capsys.readouterr().err
    assert files.walk_files(gcs.path) == []
    assert call("to-examples", "--data", data, "--output", examples) == 0
    assert files.is_file(f"{examples}/dataset.json")
    assert not files.is_file(f"{examples}/.lock")


def test_what_is_there_stays(data: Path, gcs: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    remote = upload(data, f"{gcs.path}/data")
    before = contents(gcs.path)
    assert call("to-examples", "--data", remote, "--output", remote) == 1
    assert "not a new or empty folder" in capsys.readouterr().err
    assert call("check-data", "--data", remote, "--report", f"{remote}/images") == 1
    assert "this is a folder. Name a file in it" in capsys.readouterr().err
    assert call("to-examples", "--data", f"{gcs.path}/absent", "--output", f"{gcs.path}/out") == 1
    assert "no such data set folder" in capsys.readouterr().err
    assert contents(gcs.path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["to-examples", "--data", "s3://b/d", "--output", "o"], r"--data s3://b/d: s3:// is not supported"),
        (["to-examples", "--data", "d", "--output", "file:///o"], r"--output file:///o: write a local path without"),
        (
            ["check-data", "--data", "d", "--report", "gs://bucket//x"],
            r"--report gs://bucket//x: Cloud Storage takes '//'",
        ),
        (["check-data", "--set", "data.root=gs:/b/d"], r"data\.root gs:/b/d: one slash is missing"),
        (["check-data", "--set", "data.label_map=hdfs://m", "--data", "data"], r"data\.label_map hdfs://m: hdfs:// is"),
        (["to-coco", "--examples", "gs:///e", "--output", "o"], r"--examples gs:///e: '' is not the name of a bucket"),
        (["to-coco", "--examples", "e", "--output", "o", "--images", "http://i"], r"--images http://i: http:// is not"),
    ],
)
def test_other_schemes_are_refused_by_name(
    arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    assert re.search(message, capsys.readouterr().err)
