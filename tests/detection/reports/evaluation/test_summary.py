"""The first screen of the evaluation page against the analysis it is made of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import ERROR_TYPES, Analysis, Box
from detection.coco.params import make_params
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.summary import LISTED, category_summary, tiles
from detection.reports.html.table import Link
from schemas.config.evaluate import AnalysisConfig
from tests.detection.coco.generated_cases import generate, pycocotools_eval
from tests.detection.reports.evaluation.builders import analysis, category, image_result, smooth_pictures
from tests.html_page import HtmlPage

ORDER = [
    *("actions", "metrics", "curves", "thresholds", "gains", "categories", "errors", "confusion", "sizes"),
    *("calibration", "worst", "examples", "label-errors", "losses", "method"),
]


def written(folder: Path, given: Analysis, **arguments: Any) -> HtmlPage:
    path = folder / "report.html"
    write_evaluation_report(path, given, title="t", **arguments)
    return HtmlPage(path.read_text(encoding="utf-8"))


def test_what_to_act_on_comes_before_all_details(tmp_path: Path) -> None:
    page = written(tmp_path, analysis(), pictures=smooth_pictures())
    assert [given["id"] for tag, given in page.tags if tag == "section"] == ORDER
    places = [given.get("id") or given.get("class") or tag for tag, given in page.tags]
    assert places.index("verdict plain") < places.index("tiles") < places.index("actions") < places.index("nav")
    text = page.texts["actions"]
    headings = ["Categories with the lowest AP", "Images with most errors", "Next steps"]
    assert sorted(headings, key=text.index) == headings


@pytest.mark.parametrize("seed", range(2))
def test_every_number_is_that_of_pycocotools_and_of_plain_counts(tmp_path: Path, seed: int) -> None:
    ground_truth, detections = generate(seed)
    given = analyse(ground_truth, detections, params=make_params(), options=AnalysisConfig(replicates=0))
    page = written(tmp_path, given)
    evaluation = pycocotools_eval(ground_truth, detections)
    stats, precision = evaluation.stats, evaluation.eval["precision"][:, :, :, 0, -1]
    shown = [line.split() for line in page.texts[""].splitlines() if line.startswith(("AP", "AR"))]
    values = {words[0]: words[1].rstrip(".") for words in shown if len(words) > 1}
    assert {name: values[name] for name in ("AP", "AP50", "AP75", "AR100")} == {
        "AP": f"{stats[0]:.3f}",
        "AP50": f"{stats[1]:.3f}",
        "AP75": f"{stats[2]:.3f}",
        "AR100": f"{stats[8]:.3f}",
    }
    ids = [one["id"] for one in sorted(ground_truth["categories"], key=lambda one: one["id"])]
    names = {one["id"]: one["name"] for one in ground_truth["categories"]}
    counts = {i: sum(e["category_id"] == i and not e["iscrowd"] for e in ground_truth["annotations"]) for i in ids}
    aps = {i: float(precision[:, :, at].mean()) for at, i in enumerate(ids) if counts[i]}
    first = sorted(aps, key=lambda i: (counts[i] < 10, aps[i], i))[:LISTED]
    rows = page.tables["actions"][0][1:]
    assert [row[:4] for row in rows] == [
        [names[i], f"{aps[i]:.3f}", f"{(1 - aps[i]) / len(aps):.3f}", str(counts[i])] for i in first
    ]
    images = page.tables["actions"][1][1:]
    assert [row[1:] for row in images] == [
        [str(one.image_id), str(one.fp), str(one.fn), str(one.tp)] for one in given.worst[:LISTED]
    ]
    errors = [int(row[2]) + int(row[3]) for row in images]
    assert errors == sorted(errors, reverse=True)


def test_categories_with_few_instances_come_last() -> None:
    categories = [
        category(1, "rare", metrics={"AP": 0.0}, baseline_metrics={}, ground_truth=9),
        category(2, "low", metrics={"AP": 0.2}, baseline_metrics={}, ground_truth=10),
        category(3, "lower", metrics={"AP": 0.1}, baseline_metrics={}, ground_truth=11),
        category(4, "undefined", metrics={"AP": -1.0}, baseline_metrics={}, ground_truth=0),
    ]
    table = category_summary(analysis(categories=categories, baseline_metrics={}), {})
    assert [row[0] for row in table.rows] == ["lower", "low", "rare"]
    assert [getattr(row[2], "text", "") for row in table.rows] == ["0.300", "0.267", "0.333"]


def test_the_main_error_leads_to_a_picture_that_shows_it(tmp_path: Path) -> None:
    boxes = {
        name: [Box(number, [9.0, 9.0, 30.0, 30.0], 0.9, name)]
        for number, name in enumerate(ERROR_TYPES, 1)
        if number < 6
    }
    examples = {
        name: [replace(image_result(40 + at), ground_truth=[], detections=detections)]
        for at, (name, detections) in enumerate(boxes.items())
    }
    categories = [
        category(number, f"c{number}", errors={name: 3, "Miss": 1}, metrics={"AP": number / 10})
        for number, name in enumerate(boxes, 1)
    ]
    given = analysis(categories=categories, examples=examples, worst=[])
    page = written(tmp_path, given, pictures=smooth_pictures())
    rows = page.tables["actions"][0][1:]
    assert [row[5] for row in rows] == [f"{ERROR_TYPES[name]} (3 of 4)" for name in boxes]
    links = [str(at["href"]) for tag, at in page.tags if tag == "a" and "image" in str(at["href"])]
    assert links == [f"#{name}-image-{40 + at}" for at, name in enumerate(boxes)]
    ids = [at.get("id") for tag, at in page.tags if tag == "figure"]
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_without_pictures_images_are_named_and_nothing_is_linked() -> None:
    table = category_summary(analysis(), {})
    assert not [cell for row in table.rows for cell in row if isinstance(cell, Link)]
    assert any(str(row[-1]).endswith(".jpg") for row in table.rows)


def test_keypoints_have_their_own_ar() -> None:
    metrics = {"AP": 0.2, "AP50": 0.3, "AR": 0.4, "AR50": 0.5, "AR75": -1.0}
    shown = tiles(analysis(metrics=metrics, baseline_metrics={}, differences={}, intervals={}, operating_point=None))
    assert [(tile.name, tile.value) for tile in shown] == [("AP", "0.200"), ("AP50", "0.300"), ("AR", "0.400")]
