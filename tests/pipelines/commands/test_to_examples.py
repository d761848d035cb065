"""`to-examples` as a user calls it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import pipeline_runner
from components.coco_example_gen import to_examples
from components.coco_example_gen.conversion import convert
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.layouts import find_splits
from schemas import features
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from tests.components.coco_example_gen.data_set import write_data_set

REPOSITORY = Path(__file__).resolve().parents[3]
DROP = IssuePolicies.model_validate("drop")


def call(*arguments: str | Path) -> int:
    return pipeline_runner.main(["to-examples", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In train a box of image 1 (annotation 2) lies outside, the file of image 2 is absent, images 3 to 5 are valid."""
    root = tmp_path / "data"
    write_data_set(root, broken=True)
    monkeypatch.chdir(tmp_path)
    return root


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written_annotations(out: Path, split: str = "train") -> dict[int, list[dict[str, Any]]]:
    """Image id -> its annotations."""
    by_image = {}
    for shard in (out / f"Split-{split}").iterdir():
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            values = tf.train.Example.FromString(record).features.feature
            image, annotations = unpack_entries(values[features.COCO].bytes_list.value[0])
            by_image[image["id"]] = annotations
    return by_image


def quarantined(out: Path) -> list[tuple[str, str, int, int | None]]:
    issues = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    return sorted((each["kind"], each["policy"], each["image_id"], each["annotation_id"]) for each in issues)


def test_what_has_issues_is_left_out_and_listed(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = contents(data)
    assert call("--data", data, "--output", "new/out") == 0
    captured = capfd.readouterr()
    assert captured.out == "new/out\n"
    assert [line.strip() for line in captured.err.splitlines()] == [
        "COCO (annotations/instances_train.json, annotations/instances_val.json)",
        "train: 4 images, 7 annotations",
        "eval: 1 images, 2 annotations",
        "left out, see quarantine.jsonl: 1 box_outside, 1 image_missing",
        "kept as they are: 1 category_empty",
    ]
    out = tmp_path / "new/out"
    assert quarantined(out) == [("box_outside", "drop", 1, 2), ("image_missing", "drop", 2, None)]
    ids = {image: [each["id"] for each in annotations] for image, annotations in written_annotations(out).items()}
    assert ids == {1: [3], 3: [6, 7], 4: [8, 9], 5: [10, 11]}
    assert written_annotations(out, "eval").keys() == {100}
    assert names(out) == ["Split-eval", "Split-train", "data_report.html", "dataset.json", "quarantine.jsonl"]
    assert json.loads((out / "dataset.json").read_text())["info"] == {"year": 2020}
    assert contents(data) == before
    assert names(tmp_path / "new") == ["out"]


def test_the_result_is_that_of_a_conversion(data: Path, tmp_path: Path) -> None:
    assert call("--data", data, "--output", tmp_path / "out") == 0
    expected = tmp_path / "expected"
    expected.mkdir()
    convert(find_splits(data), expected, DataConfig(on_fault=DROP))
    assert contents(tmp_path / "out") == contents(expected)
    # The same again, through a configuration file and an empty folder.
    (tmp_path / "config.yaml").write_text(f"data:\n  root: {data}\n")
    (tmp_path / "again").mkdir()
    assert call("--config", tmp_path / "config.yaml", "--output", tmp_path / "again") == 0
    assert contents(tmp_path / "again") == contents(expected)


def test_a_policy_that_is_said_counts_for_its_kind_alone(data: Path, tmp_path: Path) -> None:
    assert call("--data", data, "--output", "out", "--set", "data.on_fault.box_outside=fix") == 0
    assert quarantined(tmp_path / "out") == [("image_missing", "drop", 2, None)]
    assert written_annotations(tmp_path / "out")[1][0]["bbox"] == [70, 0, 10, 5]


def test_a_policy_for_all_kinds_stops_and_leaves_nothing(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("--data", data, "--output", "out", "--set", "data.on_fault=fail") == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "error: 2 issues in the data set:"
    told = sorted(lines[1:3])
    assert told[0].startswith("  train: train/0/2.png (image 2): cannot read the image file")
    assert told[1].startswith("  train: train/1/1.png (image 1, annotation 2): bbox [70, 0, 50, 5]")
    assert "data.on_fault=drop" in lines[3]
    assert names(tmp_path) == ["data"]


def never(*arguments: object, **options: object) -> None:
    raise AssertionError("the data was read")


@pytest.mark.parametrize("output", ["full", "full/file", "full/deep/"])
def test_a_folder_with_content_is_refused_at_once_and_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full/deep").mkdir(parents=True)
    (tmp_path / "full/file").write_text("mine")
    (tmp_path / "full/deep/.hidden").write_text("mine")
    before = contents(tmp_path)
    monkeypatch.setattr(to_examples, "convert", never)
    assert call("--data", data, "--output", output) == 1
    destination = (tmp_path / output).resolve()
    assert capfd.readouterr().err == (
        f"error: {destination}: cannot write: not a new or empty folder. "
        "Remove what is there, or name another folder.\n"
    )
    assert contents(tmp_path) == before
    assert names(tmp_path) == ["data", "full"]


def test_the_folder_one_stands_in_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for output in (".", "", tmp_path / "empty"):
        assert call("--data", data, "--output", output) == 1
        assert capfd.readouterr().err.startswith(f"error: {tmp_path}/empty: --output is the current folder. Choose")
    assert names(tmp_path) == ["data", "empty"]


def test_a_link_to_an_empty_folder_stays_one(data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/empty")
    assert call("--data", data, "--output", "link") == 0
    assert (tmp_path / "link").readlink() == Path("disk/empty")
    assert "dataset.json" in names(tmp_path / "disk/empty")
    assert names(tmp_path / "disk") == ["empty"]


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["--data", "nowhere", "--output", "out"], 1, ["nowhere: no such data set folder", "Check --data"]),
        (["--data", "data", "--output", "out", "--set", "data.max_pixel=9"], 2, ["data.max_pixel", "data.max_pixels"]),
        (["--output", "out"], 2, ["no data set: give --data DIR"]),
        (["--data", "data", "--output", "file/out"], 1, ["file/out: cannot write: ", "or name another."]),
        (["--data", "data", "--output", "/proc/out"], 1, ["/proc/out: cannot write: ", "or name another."]),
    ],
)
def test_a_user_error_is_one_line_and_nothing_is_written(
    data: Path, arguments: list[str], code: int, parts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (data.parent / "file").write_text("")
    before = sorted(data.parent.rglob("*"))
    assert call(*arguments) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err
    assert sorted(data.parent.rglob("*")) == before


# Stops in the middle of train's shard, and says so.
STOPPED = """
import os, sys, time
import pipeline_runner
from components.coco_example_gen import shards
terminal, make_record = os.dup(1), shards.make_record

def stop_at_image_4(image, *arguments, **options):
    if image["id"] == 4:
        os.write(terminal, b"middle\\n")
        time.sleep(600)
    return make_record(image, *arguments, **options)

shards.make_record = stop_at_image_4
pipeline_runner.main(["to-examples", "--data", "data", "--output", "out"])
"""


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_looks_whole_and_the_next_one_clears_up(
    data: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--data", data, "--output", "whole") == 0
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
    request.addfinalizer(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"middle\n"
    [living] = tmp_path.glob(".out.*.tmp")
    assert len(list(living.rglob(".data_tfrecord-*.tmp"))) == 1
    # A second run meanwhile is told who writes, and leaves the first one's files alone.
    capsys.readouterr()
    assert call("--data", data, "--output", "out") == 1
    assert f"/out: in use by process {process.pid} on " in capsys.readouterr().err
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert names(tmp_path) == [living.name, "data", "whole"]
    mine = [".out.0123abcd.tmp", ".out.mybackup.tmp", ".out2.0123abcd.tmp"]
    for name in mine:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    assert call("--data", data, "--output", "out") == 0
    assert names(tmp_path) == [*mine, "data", "out", "whole"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
