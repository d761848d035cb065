"""Files are read to the same values as Python's `json` reads them."""

import contextlib
import json
import os
import random
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import evaluate, evaluation
from detection.coco.evaluation import read_detections, read_ground_truth
from detection.storage import local
from detection.storage.json_files import read_json
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate


def _rows(detections: list[dict[str, Any]]) -> Any:
    return np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])


@pytest.mark.parametrize("at_once", [1, 7, 100, 1000, 1 << 18])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\r\n\t", " : ")])
def test_detections_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, separators: tuple[str, str]
) -> None:
    monkeypatch.setattr(evaluation, "_AT_ONCE", at_once)
    _, detections = generate(3)
    for number, detection in enumerate(detections):
        # What looks like the place between two detections, and is not.
        detection["note"] = ['"}, {', {"a": [{"b": 1}, {"c": "},{"}]}, None, "[{}, {}]"][number % 4]
    detections.append({**detections[0], "note": "the end"})
    path = tmp_path / "dt.json"
    path.write_text(json.dumps(detections, separators=separators))
    read = read_detections(path, "bbox")
    if not isinstance(read, np.ndarray):  # cut within a note: `json` reads it
        assert at_once <= 1000
        read = _rows(read)
    np.testing.assert_array_equal(read, _rows(detections))
    assert [d["segmentation"] for d in read_detections(path, "segm")] == [d["segmentation"] for d in detections]


def test_plain_files_need_no_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "read_json", None)
    monkeypatch.setattr(evaluation, "_AT_ONCE", 500)
    ground_truth, detections = generate(3)
    (tmp_path / "gt.json").write_text(json.dumps(ground_truth))
    for text in (json.dumps(detections), json.dumps(detections, indent=2), json.dumps(detections[:1]), " [ ]\n"):
        (tmp_path / "dt.json").write_text(text)
        for iou_type in ("bbox", "segm", "keypoints"):
            metrics = evaluate(tmp_path / "gt.json", tmp_path / "dt.json", iou_type)
            np.testing.assert_array_equal(metrics.stats, evaluate(ground_truth, json.loads(text), iou_type).stats)


def test_every_bit_of_a_number(tmp_path: Path) -> None:
    chance = random.Random(0)
    numbers = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 2**53 + 1, 1e22, 123456789012345680000, 0.1, 1 / 3]
    while len(numbers) < 8000:
        value = struct.unpack("d", chance.randbytes(8))[0]
        if np.isfinite(value):
            numbers += [value, round(value, 3) if abs(value) < 1e15 else value]
    path = tmp_path / "dt.json"
    texts = [form % number for number in numbers for form in ("%r", "%.17g", "%.30e")]
    path.write_text(
        "[" + ",".join(f'{{"image_id":1,"category_id":2,"bbox":[{t},{t},1,2],"score":{t}}}' for t in texts) + "]"
    )
    rows = read_detections(path, "bbox")
    expected = np.array([json.loads(text) for text in texts], np.float64)
    for column in (1, 2, 5):
        assert rows[:, column].tobytes() == expected.tobytes()


def test_annotations_keep_what_is_needed(tmp_path: Path) -> None:
    ground_truth, _ = generate(3)
    path = tmp_path / "gt.json"
    path.write_text(json.dumps({"info": {}, "licenses": [], **ground_truth}))
    masks = read_ground_truth(path, "segm")
    assert [a["segmentation"] for a in masks["annotations"]] == [a["segmentation"] for a in ground_truth["annotations"]]
    boxes = read_ground_truth(path, "bbox")
    assert boxes["categories"] == ground_truth["categories"]
    assert boxes["images"] == ground_truth["images"]
    assert [list(a["bbox"]) for a in boxes["annotations"]] == [a["bbox"] for a in ground_truth["annotations"]]
    assert "segmentation" not in boxes["annotations"][0]


def test_files_that_only_json_reads(tmp_path: Path) -> None:
    ground_truth, detections = generate(3)
    (tmp_path / "gt.json").write_text(json.dumps(ground_truth), encoding="utf-8-sig")
    (tmp_path / "dt.json").write_text(json.dumps(detections), encoding="utf-16")
    metrics = evaluate(tmp_path / "gt.json", tmp_path / "dt.json")
    assert metrics.by_name == evaluate(ground_truth, detections).by_name


def test_detections_from_a_pipe(tmp_path: Path) -> None:
    """It can be read only once."""
    ground_truth, detections = generate(3)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(json.dumps(detections),))
    writer.start()
    metrics = evaluate(ground_truth, path)
    writer.join()
    assert metrics.by_name == evaluate(ground_truth, detections).by_name


def test_json_is_the_measure_of_errors(tmp_path: Path) -> None:
    path = tmp_path / "dt.json"
    path.write_text('[{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": NaN}]')
    np.testing.assert_equal(read_detections(path, "bbox"), read_json(path))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_devices_are_refused(path: str) -> None:
    for read in (read_ground_truth, read_detections):
        with pytest.raises(DataError, match=f"{path}: this is a device or socket. Name a file"):
            read(path, "bbox")


def test_a_pipe_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(local, "MAX_PIPE_BYTES", 3 << 20)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb") as file:
            while True:
                file.write(b" " * 65536)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(DataError, match="more than 3 MiB came through this pipe"):
        read_ground_truth(pipe, "bbox")
    writer.join()


def test_a_slow_writer_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb") as file:
            for part in (b"[1, ", b"2", b"]"):
                file.write(part)
                file.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_json(pipe) == [1, 2]
    writer.join()


def test_looking_for_two_objects_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time would be quadratic in a text without any; `json` reads such a file."""
    monkeypatch.setattr(evaluation, "_AT_ONCE", 10)
    monkeypatch.setattr(evaluation, "_LONGEST", 50)
    path = tmp_path / "dt.json"
    path.write_text(f"[{' ' * 1000}]")
    reads: list[bytes] = []

    def none(text: bytes) -> int:
        reads.append(text)
        return -1

    monkeypatch.setattr(evaluation, "_last_comma", none)
    assert read_detections(path, "segm") == []
    assert len(reads) < 10
