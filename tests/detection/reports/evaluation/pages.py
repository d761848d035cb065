"""Pages for the tests in a browser."""

from dataclasses import replace
from pathlib import Path

from detection.datasets.issues import Issue
from detection.datasets.statistics import SplitSummary
from detection.reports.dataset.page import write_report
from detection.reports.dataset.pictures import IssuePicture
from detection.reports.evaluation.comparison_page import write_comparison_page
from detection.reports.evaluation.page import write_evaluation_report
from tests.detection.reports.dataset.test_data_report import picture
from tests.detection.reports.evaluation.builders import (
    analysis,
    boundaries,
    category,
    image_result,
    label_errors,
    smooth_pictures,
)
from tests.detection.reports.evaluation.test_comparison_page import comparison
from tests.detection.reports.evaluation.test_page import Verdict, hostile_report

PLACE = "camera_07/november/traffic_cam_north_entrance_00000653_jpg.rf.8f14e45fceea167a.jpg"
NAMES = ("RBC", "WWWWWWW", "illicit", "traffic light (red, left turn only)", "fire_hydrant_with_cover_missing")


def evaluation_report(path: Path) -> None:
    undefined = category(8, "Hen", metrics={"AP": -1.0}, precision=[])
    categories = [*analysis().categories, undefined]
    given = analysis(categories=categories, boundaries=boundaries())
    write_evaluation_report(path, given, title="raccoons", pictures=smooth_pictures())


def report_of_long_names(path: Path) -> None:
    images = [replace(image_result(number), file_name=PLACE) for number in range(1, 4)]
    given = analysis(
        categories=[category(number, name, ground_truth=1234) for number, name in enumerate(NAMES * 4, 1)],
        baseline_metrics={},
        worst=images,
        examples={"Miss": images},
        label_errors=[replace(error, file_name=PLACE) for error in label_errors(4)],
    )
    facts = {"ground truth": f"my_data_sets/{PLACE}"}
    verdict = Verdict(False, [f"{PLACE} is below 0.5"])
    write_evaluation_report(
        path, given, title=f"{PLACE} on coco", facts=facts, verdict=verdict, pictures=smooth_pictures()
    )


def data_report(path: Path) -> None:
    splits = {"train": SplitSummary(), "eval": SplitSummary()}
    for summary in splits.values():
        boxes = [{"category_id": 1, "bbox": [1, 2, 30 * size, 40 * size]} for size in (0.5, 1, 2, 3)]
        summary.add(boxes, width=640, height=480, image_format="jpeg", color_mode="RGB")
    categories = [{"id": number, "name": f"class {number}"} for number in range(1, 31)]
    issues = [Issue("box_outside", "drop", f"train: {PLACE}", number, 7, "It is wrong.") for number in range(5)]
    examples = [IssuePicture(issue, picture().png) for issue in issues]
    title = f"my_data_sets/{PLACE}"
    write_report(
        path, title=title, splits=splits, categories=categories, issues=issues, examples=examples, concerned={1: 5}
    )


def comparison_page(path: Path) -> None:
    write_comparison_page(path, [comparison()], title="new against old", pictures=smooth_pictures())


WRITERS = {
    "evaluation": evaluation_report,
    "long names": report_of_long_names,
    "comparison": comparison_page,
    "data": data_report,
    "hostile": hostile_report,
}
