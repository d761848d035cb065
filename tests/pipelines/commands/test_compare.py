"""`compare` as a user calls it."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from detection.coco import evaluate
from detection.coco.summary import metrics_to_json
from detection.storage.atomic import write_json
from pipelines.commands import compare
from pipelines.commands import evaluate as evaluate_command
from schemas.artifacts import DETECTIONS_JSON, METRICS_JSON
from schemas.errors import ConfigError, DataError
from tests.detection.coco.generated_cases import generate
from tests.html_page import HtmlPage


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def case(tmp_path: Path) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Ground truth, and detections of A and B, in gt.json, a.json and b.json: B has found half as much."""
    ground_truth, detections = generate(3)
    for image in ground_truth["images"]:
        image["file_name"] = f"{image['id']}.png"
    fewer = [entry for entry in detections if entry["image_id"] % 2]
    for name, content in {"gt": ground_truth, "a": detections, "b": fewer}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return ground_truth, detections, fewer


def evaluation(folder: Path, ground_truth: dict[str, Any], detections: list[Any], iou_type: str = "bbox") -> Path:
    folder.mkdir()
    write_json(folder / METRICS_JSON, metrics_to_json(evaluate(ground_truth, detections, iou_type)))
    (folder / DETECTIONS_JSON).write_text(json.dumps(detections))
    return folder


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_two_results_files(
    tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]], capsys: pytest.CaptureFixture[str], iou_type: str
) -> None:
    ground_truth, before, after = case
    files = (tmp_path / "a.json", tmp_path / "b.json", "--ground-truth", tmp_path / "gt.json")
    assert call(*files, "--iou-type", iou_type, "--output", tmp_path / "page.html") == 0
    printed = capsys.readouterr().out
    metrics = [evaluate(ground_truth, entries, iou_type).by_name["AP"] for entries in (before, after)]
    assert f"COCO metrics, {iou_type}" in printed
    compared = {"bbox": "AP", "segm": "AP of masks", "keypoints": "AP of keypoints"}[iou_type]
    assert f"B has {compared} {metrics[1]:.3f}" in printed
    assert f"against A's {metrics[0]:.3f} (95 % interval" in printed
    page = HtmlPage((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.table("metrics")["AP"][:2] == [f"{value:.3f}" for value in metrics]
    assert "b.json against a.json" in page.texts[""]
    assert "no pictures" in page.texts["better"]


def test_pictures_come_from_the_folder_of_images(
    tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]]
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for image in case[0]["images"]:
        Image.new("RGB", (image["width"], image["height"])).save(folder / image["file_name"])
    files = (tmp_path / "a.json", tmp_path / "b.json", "--ground-truth", tmp_path / "gt.json")
    assert call(*files, "--images", folder, "--output", tmp_path / "page.html") == 0
    page = HtmlPage((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "no pictures" not in page.texts["better"]
    assert [given for tag, given in page.tags if tag == "image"]


@pytest.mark.parametrize("iou_type", ["segm", "keypoints"])
def test_results_without_boxes_have_a_report_and_a_comparison(tmp_path: Path, iou_type: str) -> None:
    ground_truth, detections = generate(3)
    for entry in detections:
        x, y, width, height = entry.pop("bbox")
        entry["segmentation"] = [[x, y, x + width, y, x, y + height]]
        del entry["keypoints" if iou_type == "segm" else "segmentation"]
    paths = [tmp_path / f"{name}.json" for name in ("gt", "a", "b")]
    for path, content in zip(paths, (ground_truth, detections, detections[::2]), strict=True):
        path.write_text(json.dumps(content))
    page = tmp_path / "page.html"
    assert call(*paths[1:], "--ground-truth", paths[0], "--iou-type", iou_type, "--output", page) == 0
    before, after = (
        evaluate(ground_truth, entries, iou_type).by_name["AP"] for entries in (detections, detections[::2])
    )
    table = HtmlPage(page.read_text(encoding="utf-8")).table("metrics")
    assert table["AP"][:2] == [f"{before:.3f}", f"{after:.3f}"]
    parser = argparse.ArgumentParser()
    evaluate_command.add_arguments(parser)
    flags = ["--ground-truth", paths[0], "--detections", paths[1], "--iou-type", iou_type, "--report", page]
    assert evaluate_command.run(parser.parse_args([str(flag) for flag in flags])) == 0
    assert f"{before:.3f}" in page.read_text(encoding="utf-8")


def test_two_evaluations(
    tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ground_truth, before, after = case
    folders = [
        evaluation(tmp_path / name, ground_truth, detections) for name, detections in (("old", before), ("new", after))
    ]
    assert call(*folders) == 0
    printed = capsys.readouterr().out
    assert "against A's" in printed
    assert "interval" not in printed.split("Intervals and images are missing")[0]
    assert "Pass it, too." in printed
    assert call(*folders, "--ground-truth", tmp_path / "gt.json") == 0
    assert "95 % interval" in capsys.readouterr().out


def test_evaluations_are_compared_by_the_types_of_both(
    tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ground_truth, before, after = case
    both = []
    for name, detections in (("old", before), ("new", after)):
        folder = evaluation(tmp_path / name, ground_truth, detections)
        metrics = [evaluate(ground_truth, detections, iou_type) for iou_type in ("segm", "bbox")]
        write_json(folder / METRICS_JSON, metrics_to_json(*metrics))
        both.append([one.by_name["AP"] for one in metrics])
    boxes = evaluation(tmp_path / "boxes", ground_truth, after)
    for other, values in (tmp_path / "new", [*zip(*both, strict=True)]), (boxes, [(both[0][1], both[1][1])]):
        for flags in ((), ("--ground-truth", tmp_path / "gt.json")):
            assert call(tmp_path / "old", other, *flags) == 0
            printed = capsys.readouterr().out
            for a, b in values:
                assert f"{b:.3f}, " in printed
                assert f"against A's {a:.3f}" in printed
            assert ("COCO metrics, segm" in printed) == (other != boxes)


def test_flags_that_do_not_fit(tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]]) -> None:
    ground_truth, before, _ = case
    folder = evaluation(tmp_path / "old", ground_truth, before)
    a, b, gt = (tmp_path / f"{name}.json" for name in ("a", "b", "gt"))
    for arguments, message in [
        ((folder, b), "old is a folder, .*b.json is not"),
        ((a, folder), "old is a folder, .*a.json is not"),
        ((a, b), "pass it with --ground-truth"),
        ((folder, folder, "--iou-type", "bbox"), "folders of evaluations contain it"),
        ((a, b, "--ground-truth", gt, "--images", tmp_path), "pass --output and --ground-truth"),
        ((folder, folder, "--output", tmp_path / "x.html", "--images", tmp_path), "pass --output and --ground-truth"),
    ]:
        with pytest.raises(ConfigError, match=message):
            call(*arguments)


def test_nothing_is_written_for_an_error(tmp_path: Path, case: tuple[dict[str, Any], list[Any], list[Any]]) -> None:
    a, b, gt, page = (tmp_path / name for name in ("a.json", "b.json", "gt.json", "page.html"))
    for arguments, message in [
        ((a, tmp_path / "none.json", "--ground-truth", gt), r"none.json: cannot read the file"),
        ((a, gt, "--ground-truth", gt), r"gt.json: not COCO results"),
        ((a, b, "--ground-truth", b), r"b.json: not a COCO annotation file"),
        ((a, b, "--ground-truth", gt, "--images", tmp_path / "none"), "no such folder of images"),
    ]:
        with pytest.raises(DataError, match=message):
            call(*arguments, "--output", page)
        assert not page.exists()
    unknown = [{"image_id": 987, "category_id": 7, "bbox": [1, 1, 2, 2], "score": 0.5}]
    b.write_text(json.dumps(unknown))
    with pytest.raises(DataError, match=r"b.json: .*987"):
        call(a, b, "--ground-truth", gt, "--output", page)
    assert not page.exists()
