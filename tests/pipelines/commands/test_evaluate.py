"""`evaluate` as a user calls it."""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pipeline_runner
from detection import coco
from detection.coco.summary import read_metrics
from pipelines.commands import evaluate
from schemas.errors import ConfigError, DataError
from tests.detection.coco.awkward_cases import Case, reference
from tests.detection.coco.generated_cases import generate, pycocotools_eval


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return evaluate.run(parser.parse_args([str(argument) for argument in arguments]))


def write(folder: Path, ground_truth: Any, detections: Any) -> list[str | Path]:
    (folder / "gt.json").write_text(json.dumps(ground_truth))
    (folder / "dt.json").write_text(json.dumps(detections))
    return ["--ground-truth", folder / "gt.json", "--detections", folder / "dt.json"]


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], iou_type: str) -> None:
    ground_truth, detections = generate(11)
    out = tmp_path / "metrics.json"
    assert call(*write(tmp_path, ground_truth, detections), "--iou-type", iou_type, "--output", out) == 0
    content = json.loads(out.read_text())
    expected = pycocotools_eval(ground_truth, detections, iou_type)
    np.testing.assert_allclose(content["stats"], expected.stats, rtol=0, atol=1e-9)
    assert content["iou_type"] == iou_type
    assert content["skipped"] == 0
    printed = capsys.readouterr().out
    assert f"COCO metrics, {iou_type}" in printed
    assert f"{expected.stats[0]:.4f}" in printed
    assert "kipped" not in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dt.json", "gt.json", "metrics.json"]


@pytest.mark.parametrize(
    ("flags", "params"),
    [
        (["--no-cats", "--max-dets", "1,3,100"], {"use_cats": False, "max_dets": [1, 3, 100]}),
        (["--iou-thresholds", "0.5,0.75"], {"iou_thresholds": [0.5, 0.75]}),
        (
            ["--area-range", "small=0,900", "--area-range", "medium=900,9216"],
            {"area_ranges": {"all": (0, 1e10), "small": (0, 900), "medium": (900, 9216), "large": (9216, 1e10)}},
        ),
        (
            ["--iou-type", "keypoints", "--oks-sigmas", ",".join(["0.1"] * 17), "--max-dets", "20"],
            {"oks_sigmas": [0.1] * 17},
        ),
    ],
)
def test_flags(tmp_path: Path, flags: list[str], params: dict[str, Any]) -> None:
    ground_truth, detections = generate(11)
    out = tmp_path / "metrics.json"
    call(*write(tmp_path, ground_truth, detections), *flags, "--output", out)
    expected = reference(Case(ground_truth, detections, params), "keypoints" if "keypoints" in flags else "bbox")
    np.testing.assert_allclose(json.loads(out.read_text())["stats"], expected.stats, rtol=0, atol=1e-9)


def test_sigmas_by_category(tmp_path: Path) -> None:
    ground_truth, detections = generate(11)
    first, second = ground_truth["categories"][:2]
    first["name"], second["name"] = "man = king", "dog"
    sigmas = {"man = king": [0.1] * 17, "dog": [0.02 * number + 0.01 for number in range(17)]}
    flags = [f"--oks-sigmas={name}={','.join(map(str, numbers))}" for name, numbers in sigmas.items()]
    out = tmp_path / "metrics.json"
    files = write(tmp_path, ground_truth, detections)
    call(*files, "--iou-type", "keypoints", *flags, "--output", out)
    expected = coco.evaluate(ground_truth, detections, "keypoints", oks_sigmas=sigmas)
    assert json.loads(out.read_text())["metrics"] == expected.by_name
    with pytest.raises(ConfigError, match="--oks-sigmas: specify one list"):
        call(*files, "--iou-type", "keypoints", *flags, "--oks-sigmas", "0.1")


def test_own_area_ranges_and_lvis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ground_truth, detections = generate(11)
    for entry in ground_truth["images"]:
        entry.update(neg_category_ids=[2, 7, 31, 90], not_exhaustive_category_ids=[])
    for entry in ground_truth["categories"]:
        entry["frequency"] = "r"
    call(*write(tmp_path, ground_truth, detections), "--lvis", "--area-range", "tiny=0,256")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line for line in lines if line}
    assert rows["APr"][1:5] == ["0.50:0.95", "all", "rare", "300"]
    assert rows["APr"][5] == rows["AP"][5] != "undefined"
    assert rows["APc"][5] == "undefined"
    assert rows["AP_tiny"][2] == "tiny"
    assert "AR@300" in rows


def test_further_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ground_truth, detections = generate(11)
    names = ["pascal_voc_AP50", "open_images_challenge_AP50"]
    out = tmp_path / "metrics.json"
    call(*write(tmp_path, ground_truth, detections), "--metrics", ",".join(names), "--output", out)
    content, expected = json.loads(out.read_text()), coco.evaluate(ground_truth, detections, metrics=names)
    assert content["metrics"] == expected.by_name
    assert content["per_category"] == expected.per_category
    [row] = [line for line in capsys.readouterr().out.splitlines() if names[0] in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == [names[0], "0.50", "all", "all", f"{expected.by_name[names[0]]:.4f}"]
    assert read_metrics(out).metrics == expected.by_name


def test_skipped_records_are_counted_shown_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ground_truth, detections = generate(11)
    rest = detections[12:]
    for number, detection in enumerate(detections[:12]):
        detection.update({"image_id": 900 + number} if number < 8 else {"score": math.nan})
    out = tmp_path / "metrics.json"
    arguments = [*write(tmp_path, ground_truth, detections), "--output", out, "--skip-invalid"]
    assert call(*arguments) == 0
    content = json.loads(out.read_text())
    np.testing.assert_allclose(content["stats"], pycocotools_eval(ground_truth, rest).stats, rtol=0, atol=1e-9)
    assert content["skipped"] == 12
    records = [json.loads(line) for line in (tmp_path / "metrics_skipped.jsonl").read_text().splitlines()]
    assert [record["position"] for record in records] == list(range(12))
    assert records[3]["record"] == "detection 3 (image 903)"
    assert records[3]["source"] == str(tmp_path / "dt.json")
    printed = capsys.readouterr().out
    assert "Skipped 12 entries and evaluated the rest: 8 unknown image_id, 4 invalid score." in printed
    assert f"  {tmp_path / 'dt.json'}: unknown image_id: detection 3 (image 903): 903\n" in printed
    assert printed.count("dt.json: ") == 10
    assert "  and 2 more\n" in printed
    assert f"{tmp_path / 'metrics_skipped.jsonl'}" in printed
    write(tmp_path, ground_truth, rest)
    call(*arguments)
    assert (tmp_path / "metrics_skipped.jsonl").read_text() == ""
    assert "kipped" not in capsys.readouterr().out


def test_nothing_is_written_for_an_error(tmp_path: Path) -> None:
    out = tmp_path / "metrics.json"
    with pytest.raises(DataError, match=r"gt.json: cannot read the file"):
        call("--ground-truth", tmp_path / "gt.json", "--detections", tmp_path / "dt.json", "--output", out)
    ground_truth, detections = generate(11)
    detections[5]["score"] = None
    with pytest.raises(DataError, match=r"dt.json: invalid score: detection 5 \(image"):
        call(*write(tmp_path, ground_truth, detections), "--output", out)
    assert not out.exists()


def test_values_without_meaning_are_told_before_anything_is_read(tmp_path: Path) -> None:
    files = ("--ground-truth", tmp_path / "gt.json", "--detections", tmp_path / "dt.json")
    with pytest.raises(ConfigError, match=r"max_dets \(5,\): bbox takes 3 ascending"):
        call(*files, "--max-dets", "5")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-dets", "1,x"], "argument --max-dets: '1,x': expected numbers separated by commas"),
        (["--area-range", "tiny"], "argument --area-range: 'tiny': expected NAME=LOW,HIGH, such as tiny=0,256"),
        (["--area-range", "=0,5"], "'=0,5': expected NAME=LOW,HIGH"),
        (["--oks-sigmas", ""], "argument --oks-sigmas: '': expected numbers"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        pipeline_runner.main(["evaluate", "--ground-truth", "a", "--detections", "b", *flags])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_a_page_explains_the_metrics(tmp_path: Path, iou_type: str) -> None:
    ground_truth, detections = generate(11)
    images = tmp_path / "images"
    images.mkdir()
    for entry in ground_truth["images"]:
        entry["file_name"] = f"{entry['id']}.png"
        Image.new("RGB", (entry["width"], entry["height"])).save(images / entry["file_name"])
    page = tmp_path / "report.html"
    call(*write(tmp_path, ground_truth, detections), "--iou-type", iou_type, "--report", page, "--images", images)
    text = page.read_text()
    expected = pycocotools_eval(ground_truth, detections, iou_type)
    assert "dt.json on gt.json" in text
    assert f"{expected.stats[0]:.3f}" in text
    assert "data:image/" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--images", "."], "--images is for the report's pictures"),
        (["--report", "a.html", "--no-cats"], "--report does not go with --no-cats"),
        (["--report", "a.html", "--lvis"], "--report does not go with --lvis"),
        (["--report", "a.html", "--skip-invalid"], "--report does not go with --skip-invalid"),
    ],
)
def test_flags_that_no_report_has(tmp_path: Path, flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(*write(tmp_path, *generate(11)), *flags)
    assert not Path("a.html").exists()


def test_a_report_of_a_pipe_is_refused(tmp_path: Path) -> None:
    ground_truth, _ = generate(1)
    path = write(tmp_path, ground_truth, [])[1]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"--report reads .*pipe a second time"):
        call("--ground-truth", path, "--detections", tmp_path / "pipe", "--report", tmp_path / "a.html")
