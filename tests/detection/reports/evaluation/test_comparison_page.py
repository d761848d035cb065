"""The page of a comparison, read back from its HTML."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detection.analysis.analysis_file import ERROR_TYPES, Box, ErrorType, ImageSample, Interval
from detection.analysis.comparison import CategoryChange, Change, Comparison, ErrorChange, ImageChange
from detection.reports.evaluation.comparison_page import write_comparison_page
from detection.reports.html.table import DASH
from tests.detection.reports.evaluation.builders import image_result, smooth_pictures
from tests.html_page import HtmlPage

LOSS = Change(0.5, 0.4, -0.1, Interval(-0.1, -0.15, -0.05, 0.0))
GAIN = Change(0.25, 0.5, 0.25, Interval(0.25, 0.2, 0.3, 1.0))
UNCLEAR = Change(0.5, 0.51, 0.01, Interval(0.01, -0.02, 0.04, 0.7))
UNDEFINED = Change(-1.0, 0.5, None, None)


def comparison(**fields: Any) -> Comparison:
    """A comparison with everything in it."""
    given: dict[str, Any] = {
        "iou_type": "bbox",
        "a": "runs/old/detections.json",
        "b": "runs/new/detections.json",
        "sample": ImageSample(5000, 5000, 0),
        "remarks": ["A remark."],
        "confidence": 0.95,
        "replicates": 200,
        "iou": 0.5,
        "score": 0.3,
        "metrics": {"AP": GAIN, "AP50": LOSS, "AP75": UNCLEAR, "APs": UNDEFINED},
        "categories": [
            CategoryChange(3, "cat", 10, {"AP": GAIN, "AP50": GAIN}),
            CategoryChange(5, "dog", 20, {"AP": LOSS, "AP50": GAIN}),
            CategoryChange(9, "emu", None, {"AP": UNDEFINED, "AP50": UNCLEAR}),
        ],
        "errors": [
            ErrorChange(ErrorType(name, 2000, 0.02), ErrorType(name, 100 * at, 0.01))
            for at, name in enumerate(ERROR_TYPES)
        ],
        "better": [ImageChange(-3, image_result(1), image_result(1, detections=3))],
        "worse": [ImageChange(1, image_result(number), image_result(number)) for number in (2, 3)],
    }
    return Comparison(**(given | fields))


def written(folder: Path, given: Comparison | None = None, **arguments: Any) -> tuple[str, HtmlPage]:
    path = folder / "comparison.html"
    write_comparison_page(path, [given or comparison()], **({"title": "new against old"} | arguments))
    html = path.read_text(encoding="utf-8")
    return html, HtmlPage(html)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> HtmlPage:
    return written(tmp_path_factory.mktemp("comparison"), pictures=smooth_pictures())[1]


def test_the_first_lines_say_whether_b_is_better(page: HtmlPage) -> None:
    lines = [line for line in page.texts[""].split("\n") if line.strip()]
    assert lines[1:6] == [
        "new against old",
        "B has AP 0.500, +0.250 against A's 0.250 (95 % interval +0.200 to +0.300): a significant gain.",
        "A remark.",
        "Aruns/old/detections.json",
        "Bruns/new/detections.json",
    ]


@pytest.mark.parametrize(
    ("change", "tone", "text"),
    [
        (GAIN, "good", "a significant gain"),
        (LOSS, "bad", "a significant loss"),
        (UNCLEAR, "plain", "no significant difference"),
        (UNDEFINED, "plain", "AP is undefined"),
        (replace(GAIN, interval=None), "plain", "+0.250 against A's 0.250."),
    ],
)
def test_the_verdict(tmp_path: Path, change: Change, tone: str, text: str) -> None:
    _, page = written(tmp_path, comparison(metrics={"AP": change}))
    assert ("p", {"class": f"verdict {tone}"}) in page.tags
    assert text in page.texts[""]


def test_metrics(page: HtmlPage) -> None:
    assert page.header("metrics") == ["metric", "A", "B", "difference", "its 95 % interval", "judgement of B"]
    assert page.table("metrics") == {
        "AP": ["0.250", "0.500", "+0.250", "+0.200 to +0.300", "better"],
        "AP50": ["0.500", "0.400", "\u22120.100", "\u22120.150 to \u22120.050", "worse"],
        "AP75": ["0.500", "0.510", "+0.010", "\u22120.020 to +0.040", "not significant"],
        "APs": [DASH, "0.500", DASH, DASH, ""],
    }


def test_finished_metrics_have_no_intervals(tmp_path: Path) -> None:
    bare = replace(GAIN, interval=None)
    given = comparison(
        metrics={"AP": bare}, categories=[CategoryChange(3, "cat", 10, {"AP": bare})], sample=None, better=[], worse=[]
    )
    _, page = written(tmp_path, given)
    assert page.header("metrics") == ["metric", "A", "B", "difference"]
    assert page.header("categories") == ["category", "id", "ground truth", "AP, A", "AP, B", "AP difference"]
    assert "interval" not in page.texts["metrics"]
    assert "worse" not in page.texts


def test_categories_that_lost_most_come_first(page: HtmlPage) -> None:
    assert page.tables["categories"][0] == [
        [
            *("category", "id", "ground truth", "AP, A", "AP, B", "AP difference", "its 95 % interval"),
            "AP50 difference",
        ],
        ["dog", "5", "20", "0.500", "0.400", "\u22120.100", "\u22120.150 to \u22120.050", "+0.250"],
        ["cat", "3", "10", "0.250", "0.500", "+0.250", "+0.200 to +0.300", "+0.250"],
        ["emu", "9", DASH, DASH, "0.500", DASH, DASH, "+0.010"],
    ]


def test_errors(page: HtmlPage) -> None:
    assert page.table("errors")["localisation error"] == ["2,000", "100", "\u22121,900", "0.020", "0.010"]
    assert list(page.table("errors")) == list(ERROR_TYPES.values())


def test_images_show_detections_and_fn_of_each_model(tmp_path: Path) -> None:
    box = [10.0, 20.0, 30.0, 40.0]
    before = replace(
        image_result(1), ground_truth=[Box(3, box, None, "Miss"), Box(3, box, None, "matched")], detections=[]
    )
    after = replace(
        image_result(1),
        ground_truth=[Box(3, box, None, "matched")] * 2,
        detections=[Box(3, box, 0.75, "TP")],
        fp=0,
        fn=0,
    )
    given = comparison(better=[ImageChange(-7, before, after)], worse=[])
    _, page = written(tmp_path, given, pictures=smooth_pictures())
    labels = [given["aria-label"] for tag, given in page.tags if tag == "svg" and given.get("role") == "img"]
    assert labels == ["A: 1 FN (cat).", "B: 1 TP."]
    assert "7 fewer errors (A: 5 FP, 2 FN; B: 0 FP, 0 FN)" in page.texts["better"]
    assert page.table("better") == {"000000000001.jpg": ["1", "\u22127", "5", "2", "4", "0", "0", "4"]}


def test_images_where_b_is_worse_come_first(page: HtmlPage) -> None:
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == ["metrics", "errors", "categories", "worse", "better"]
    assert page.texts["worse"].count("1 more error (") == 2
    assert "3 fewer errors (" in page.texts["better"]


def test_a_sample_and_the_want_of_pictures_are_told(tmp_path: Path) -> None:
    _, page = written(tmp_path, comparison(sample=ImageSample(2000, 9000, 1)))
    assert "sample of 2,000 images (seed 1)" in page.texts[""]
    assert "no pictures" in page.texts["worse"]
    assert list(page.table("worse")) == ["000000000002.jpg", "000000000003.jpg"]


def test_what_comes_from_outside_is_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    image = replace(image_result(3), file_name=nasty)
    given = comparison(
        a=nasty,
        remarks=[nasty],
        categories=[CategoryChange(1, nasty, 1, {"AP": GAIN})],
        worse=[ImageChange(1, image, image)],
    )
    _, page = written(tmp_path, given, title=nasty, pictures=smooth_pictures())
    assert [given for tag, given in page.tags if tag == "script"] == [{}]
    assert nasty in page.table("categories")


def test_an_image_of_unknown_size_has_that_of_its_file(tmp_path: Path) -> None:
    unknown = replace(image_result(3), width=0, height=0)
    _, page = written(
        tmp_path, comparison(worse=[ImageChange(1, unknown, unknown)], better=[]), pictures=smooth_pictures()
    )
    views = {given["viewbox"] for tag, given in page.tags if tag == "svg" and given.get("role") == "img"}
    assert views == {"0 0 640 480"}
