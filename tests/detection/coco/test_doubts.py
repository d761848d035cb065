"""What is said beside metrics that the files explain, and that nothing is said of files that are as they should be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import evaluate
from detection.coco.io.results import write_results
from detection.reports.evaluation.compare import write_file_report
from tests.html_page import HtmlPage


def _ground_truth(images: int, objects: int = 1, **fields: Any) -> dict[str, Any]:
    listed = [{"id": number, "width": 640, "height": 480} for number in range(1, images + 1)]
    boxes = [(image["id"], [10 * place % 600, 10, 8, 8]) for image in listed for place in range(objects)]
    annotations = [
        {"id": number, "image_id": image_id, "category_id": 1, "bbox": box, "area": 64, "iscrowd": 0} | fields
        for number, (image_id, box) in enumerate(boxes, start=1)
    ]
    return {"images": listed, "annotations": annotations, "categories": [{"id": 1, "name": "egg", "keypoints": ["a"]}]}


def _rows(images: int, each: int = 2) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.array(
        [[image, *random.uniform(1, 90, 4), random.uniform(), 1] for image in range(1, images + 1) for _ in range(each)]
    )


@pytest.mark.parametrize(
    ("ground_truth", "rows", "said"),
    [
        (_ground_truth(6), _rows(6), []),
        (_ground_truth(6), _rows(3), ["3 of 6 images with ground truth have no detection"]),
        (_ground_truth(20), _rows(19), []),
        (_ground_truth(1, 300), _rows(1, 300), ["1 images have more than 100 instances", "--max-dets 1,10,300"]),
        (_ground_truth(1, 300), _rows(1, 100), []),
        (_ground_truth(3), np.concatenate([_rows(3)] * 2), ["6 of 12 detections are duplicates of others"]),
        (_ground_truth(3), _rows(3) * [1, 1, 1, 1, 1, 0, 1] + [0, 0, 0, 0, 0, 0.5, 0], ["all scores are 0.5"]),
        (_ground_truth(3), np.zeros((0, 7)), ["there are no detections"]),
    ],
)
def test_files_that_explain_a_metric(ground_truth: dict[str, Any], rows: np.ndarray, said: list[str]) -> None:
    doubts = " ".join(evaluate(ground_truth, rows).doubts)
    assert all(part in doubts for part in said)
    assert bool(doubts) == bool(said)


def test_keypoints_that_are_not_counted() -> None:
    result = {"image_id": 1, "category_id": 1, "keypoints": [5, 5, 2], "score": 0.5}
    for number, ignored in ((0, 3), (1, 0)):
        tree = _ground_truth(3, keypoints=[5, 5, 2], num_keypoints=number)
        results = [result | {"image_id": image} for image in (1, 2, 3)]
        doubts = evaluate(tree, results, iou_type="keypoints", oks_sigmas=[0.05]).doubts
        assert list(doubts) == [
            f"{ignored} annotations are ignored, because num_keypoints is 0 although keypoints are labelled"
        ] * bool(ignored)


def test_a_report_of_files_says_it_first(tmp_path: Path) -> None:
    (tmp_path / "gt.json").write_text(json.dumps(_ground_truth(1, 300)))
    write_results(tmp_path / "dt.json", _rows(1, 300))
    write_file_report(
        str(tmp_path / "report.html"),
        ground_truth=str(tmp_path / "gt.json"),
        detections=str(tmp_path / "dt.json"),
        params={"iou_type": "bbox"},
        images=None,
    )
    page = HtmlPage((tmp_path / "report.html").read_text())
    steps = page.texts["actions"].partition("Next steps")[2]
    assert steps.strip().startswith("1 images have more than 100 instances")
    assert "larger input" not in steps
