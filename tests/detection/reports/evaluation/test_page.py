"""The evaluation report, read back from its HTML."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from detection.analysis.analysis_file import ERROR_TYPES, Box, Confusion, ImageSample, Interval, SizeBucket
from detection.reports.evaluation.charts import MOST_CATEGORIES
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.pictures import MOST_BYTES
from detection.reports.html.table import DASH
from tests.detection.reports.evaluation.builders import (
    HEIGHT,
    NAMES,
    WIDTH,
    analysis,
    boundaries,
    category,
    empty_analysis,
    image_result,
    label_errors,
    smooth_pictures,
)
from tests.html_page import HtmlPage


class Verdict(NamedTuple):
    blessed: bool
    reasons: list[str]


def report(folder: Path, given: Any = None, **arguments: Any) -> tuple[str, HtmlPage]:
    path = folder / "report.html"
    write_evaluation_report(path, given or analysis(), **({"title": "raccoons"} | arguments))
    html = path.read_text(encoding="utf-8")
    return html, HtmlPage(html)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> HtmlPage:
    return report(tmp_path_factory.mktemp("report"), pictures=smooth_pictures())[1]


def test_the_first_lines_say_how_good_and_whether_better(tmp_path: Path) -> None:
    verdict = Verdict(False, ["AP 0.4 is below 0.5", "AP50 is <fine>"])
    _, page = report(tmp_path, verdict=verdict, facts={"Model": "/models/7", "Command": "evaluate --x"})
    assert ("p", {"class": "verdict bad"}) in page.tags
    lines = [line for line in page.texts[""].split("\n") if line.strip()]
    start = lines.index("Not blessed.")
    assert lines[start - 1] == "raccoons"
    assert lines[start + 1 : start + 3] == verdict.reasons
    assert lines[start + 3] == (
        "AP 0.400 (95 % interval 0.389 to 0.412), +0.020 against the baseline's 0.380 "
        "(95 % interval +0.011 to +0.029): a significant gain."
    )
    assert lines[start + 4 : start + 9] == [
        "AP 0.400 +0.020 to baseline",
        "AP50 0.410 \u22120.090 to baseline",
        "AP75 0.420 +0.020 to baseline",
        "AR100 0.480 +0.020 to baseline",
        "Best F1 0.624 at score 0.410",
    ]
    assert lines[start + 9 : start + 11] == ["Model/models/7", "Commandevaluate --x"]


@pytest.mark.parametrize(
    ("verdict", "tone", "text"),
    [(None, "plain", "without a blessing decision"), (Verdict(True, ["AP 0.4 is at least 0.3"]), "good", "Blessed")],
)
def test_the_verdict(tmp_path: Path, verdict: Verdict | None, tone: str, text: str) -> None:
    _, page = report(tmp_path, verdict=verdict)
    assert ("p", {"class": f"verdict {tone}"}) in page.tags
    assert text in page.texts[""]


def test_metrics_stand_beside_the_baselines(page: HtmlPage) -> None:
    assert page.header("metrics") == [
        *("metric", "value", "95 % interval"),
        *("baseline", "difference", "its 95 % interval", "judgement"),
    ]
    table = page.table("metrics")
    assert list(table) == ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
    assert table["AP"] == ["0.400", "0.389 to 0.412", "0.380", "+0.020", "+0.011 to +0.029", "better"]
    assert table["AP50"] == ["0.410", "0.400 to 0.420", "0.500", "\u22120.090", "\u22120.100 to \u22120.080", "worse"]
    assert table["AP75"][2:] == ["0.400", "+0.020", "\u22120.004 to +0.044", "not significant"]
    assert table["APs"] == [DASH, DASH, "0.410", DASH, DASH, ""]
    assert table["ARs"] == ["0.490", DASH, DASH, DASH, DASH, ""]


def test_colours_are_for_significant_differences_only(tmp_path: Path) -> None:
    html, _ = report(tmp_path)
    cells = re.findall(r'<td class="number (good|bad)">([^<]*)</td>', html)
    assert cells == [("good", "+0.020"), ("bad", "\u22120.090")]


def test_without_a_baseline_nothing_is_compared(tmp_path: Path) -> None:
    given = analysis(baseline_metrics={}, differences={}, categories=[category(1, "cat", baseline_metrics={})])
    _, page = report(tmp_path, given)
    assert page.header("metrics") == ["metric", "value", "95 % interval"]
    assert "AP difference" not in page.header("categories")
    assert "AP 0.400 (95 % interval 0.389 to 0.412)." in page.texts[""]
    assert "baseline" not in page.texts[""]


def test_the_confidence_is_the_analysis_own(tmp_path: Path) -> None:
    _, page = report(tmp_path, analysis(confidence=0.9))
    assert "90 % interval" in page.header("metrics")


def test_a_sample_is_told(tmp_path: Path) -> None:
    _, page = report(tmp_path, analysis(sample=ImageSample(2000, 10_000_000, 7)))
    assert "Metrics are of all 10,000,000 images" in page.texts[""]
    assert "random sample of 2,000 images (seed 7)" in page.texts[""]
    assert "on 10,000,000 images" in page.texts["method"]
    _, page = report(tmp_path)
    assert "sample of" not in page.texts[""]


def test_undefined_is_a_dash_everywhere(tmp_path: Path) -> None:
    nothing = category(
        *(1, "nothing"),
        metrics={"AP": -1.0},
        baseline_metrics={"AP": 0.3},
        ground_truth=0,
        best=None,
        precision=[],
        calibration_error=None,
    )
    given = analysis(
        categories=[nothing], metrics={"AP": -1.0}, baseline_metrics={"AP": -1.0}, intervals={}, differences={}
    )
    html, page = report(tmp_path, given)
    row = page.table("categories")["nothing"]
    assert [row[page.header("categories").index(name) - 1] for name in ("AP", "AP difference", "best F1")] == [DASH] * 3
    assert page.table("metrics")["AP"] == [DASH, DASH, DASH, DASH, DASH, ""]
    assert "AP is undefined" in page.texts[""]
    assert page.table("sizes")["32 to 96"] == ["0", DASH, DASH, DASH]
    assert not re.search(r">[-\u2212]1(\.0*)?<", html)


def test_categories_have_a_row_each_the_least_ap_first(page: HtmlPage) -> None:
    header = page.header("categories")
    assert header[:6] == ["category", "id", "AP", "AP difference", "ground truth", "main error"]
    assert header[-7:] == ["calibration error", "AP50", "AP75", "APs", "AR100", "images", "detections"]
    assert list(page.table("categories")) == list(NAMES)
    assert dict(zip(header, ["cat", *page.table("categories")["cat"]], strict=True)) == {
        "category": "cat",
        "id": "3",
        "AP": "0.300",
        "AP50": "0.400",
        "AP75": "0.300",
        "APs": DASH,
        "AR100": "0.300",
        "AP difference": "\u22120.050",
        "ground truth": "30",
        "images": "15",
        "detections": "1,003",
        "main error": "missed ground truth (8 of 33)",
        "best F1": "0.685",
        "at score": "0.400",
        "precision": "0.800",
        "recall": "0.600",
        "calibration error": "0.150",
    }


def test_errors_by_type(page: HtmlPage) -> None:
    table = page.table("errors")
    assert list(table) == list(ERROR_TYPES.values())
    assert page.header("errors")[2:4] == ["count at any score", "at 0.3 and above"]
    assert table["classification error"][1:] == ["0", "28", "0.000"]
    assert table["missed ground truth"][1:] == ["500", "63", "+0.050"]
    assert "at least 0.5" in table["classification error"][0]


def test_sizes_calibration_and_losses(page: HtmlPage) -> None:
    assert page.table("sizes")["96 and more"] == ["300", "0.600", "0.800", "0.700"]
    assert page.table("calibration")["0.10 to 0.20"] == ["91", "0.150", "0.110"]
    assert page.table("calibration")["0.50 to 0.60"] == ["0", DASH, DASH]
    assert "0.040 higher than the precision" in page.texts["calibration"]
    assert page.table("losses") == {"class": ["0.31"], "box": ["0.0042"]}


def test_sizes_that_no_object_has_are_left_out_at_both_ends(tmp_path: Path) -> None:
    nothing = {"AP": -1.0, "AP50": -1.0, "AR100": -1.0}
    sizes = [SizeBucket(0, 8, 0, nothing), *analysis().sizes, SizeBucket(512, 0, 0, nothing)]
    _, page = report(tmp_path, analysis(sizes=sizes))
    assert list(page.table("sizes")) == ["0 to 32", "32 to 96", "96 and more"]
    _, page = report(tmp_path, analysis(sizes=[SizeBucket(0, 0, 0, nothing)]))
    assert "sizes" not in page.texts


def test_boundaries_of_masks(tmp_path: Path) -> None:
    _, page = report(tmp_path, analysis(iou_type="segm", boundaries=boundaries()), pictures=smooth_pictures())
    header = ["matched masks", "mean mask IoU", "mean boundary IoU", "good mask, poor boundary"]
    areas, categories, matches = page.tables["boundaries"]
    assert areas == [
        ["size", *header],
        ["all", "200", "0.800", "0.600", "25.0 %"],
        ["small", "0", DASH, DASH, DASH],
        ["large", "200", "0.800", "0.600", "25.0 %"],
    ]
    assert categories == [
        ["category", *header],
        ["goat", "50", "0.770", "0.450", "40.0 %"],
        ["Bear", "150", "0.810", "0.650", "20.0 %"],
    ]
    assert "within 2 % of the image's diagonal" in page.texts["boundaries"]
    assert "a mask IoU of at least 0.75 and a boundary IoU below 0.5." in page.texts["boundaries"]
    assert matches[1] == ["mask0.jpg", "700", "Bear", "0.750", "0.800", "0.100"]
    assert [text for text in panels(page) if "boundary" in text] == [
        "Bear 0.75, mask IoU 0.80, boundary IoU 0.10.",
        "Bear 0.75, mask IoU 0.80, boundary IoU 0.20.",
    ]
    # Both boxes, x 120 to 230 and y 140 to 250, and a tenth of their side.
    assert "109 129 132 132" in {given["viewbox"] for tag, given in page.tags if tag == "svg" and given.get("viewbox")}
    assert "Boundary IoU is that of Cheng et al. (CVPR 2021)." in page.texts["method"]


def test_without_matched_masks_there_is_no_section_of_boundaries(tmp_path: Path) -> None:
    for nothing in (None, boundaries(categories={}, worst=[])):
        _, page = report(tmp_path, analysis(iou_type="segm", boundaries=nothing))
        assert "boundaries" not in page.texts


def test_curves_are_drawn_where_their_points_are(page: HtmlPage) -> None:
    lines = [given for tag, given in page.tags if tag == "polyline"]
    assert [line["class"] for line in lines[:4]] == ["line-0", "line-1", "line-2", "chosen"]
    points = np.array([pair.split(",") for pair in str(lines[1]["points"]).split()], float)
    chart = next(given for tag, given in page.tags if given.get("id") == "precision-recall")
    width, height = float(str(chart["data-width"])), float(str(chart["data-height"]))
    np.testing.assert_allclose(points[:, 0] / width, np.linspace(0, 1, 101), atol=1e-3)
    np.testing.assert_allclose(1 - points[:, 1] / height, np.linspace(1, 0.2, 101), atol=1e-3)
    assert "IoU 0.75: mean precision 0.600" in str(chart["aria-label"])


def test_each_category_has_its_curve_on_choice(tmp_path: Path) -> None:
    without = category(8, "none", precision=[])
    html, _ = report(tmp_path, analysis(categories=[category(2, "Zebra"), without, category(4, "a</script><b>")]))
    told = re.search(r'<script type="application/json" id="category-curves">(.*?)</script>', html)
    assert told
    content = json.loads(told[1])
    assert [name for name, _ in content["curves"]] == ["a</script><b> (40 instances)", "Zebra (20 instances)"]
    assert content["curves"][0][1] == (np.linspace(1.0, 0.4, 101).round(3) * 1000).round().astype(int).tolist()
    assert content["recall"] == [round(step / 100, 2) for step in range(101)]


def test_a_part_that_was_not_analysed_is_left_out(tmp_path: Path) -> None:
    html, page = report(tmp_path, empty_analysis())
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == ["metrics", "method"]
    links = [given["href"] for tag, given in page.tags if tag == "a"]
    assert links == ["#metrics", "#method"]
    assert "AP is undefined" in html


def test_every_link_leads_to_a_place_of_the_page(page: HtmlPage) -> None:
    sections = [str(given["id"]) for tag, given in page.tags if tag == "section"]
    links = [str(given["href"]) for tag, given in page.tags if tag == "a"]
    assert sections[0] == "actions"
    assert {f"#{section}" for section in sections[1:]} <= set(links)
    ids = [given["id"] for _, given in page.tags if given.get("id")]
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_few_categories_have_the_whole_matrix(page: HtmlPage) -> None:
    matrix = analysis().confusion
    assert matrix
    shown = page.tables["confusion"][0]
    assert shown[0] == ["", *NAMES, "missed (FN)"]
    assert [row[0] for row in shown[1:]] == [*NAMES, "background (FP)"]
    assert [[int(cell or "0") for cell in row[1:]] for row in shown[1:]] == matrix.matrix
    assert "are shown" not in page.texts["confusion"]


def test_of_many_categories_those_confused_most_are_shown(tmp_path: Path) -> None:
    categories = [category(number, f"c{number}", metrics={"AP": 0.5}) for number in range(1, 101)]
    matrix = np.eye(101, dtype=int) * 50
    matrix[41, 11] = 40  # c42 as c12
    matrix[90, 3] = 25
    matrix[7, 100] = 900  # missed: no confusion of categories
    confusion = Confusion([one.id for one in categories], matrix.tolist(), 0.5, 0.3)
    _, page = report(tmp_path, analysis(categories=categories, confusion=confusion))
    shown = page.tables["confusion"][0]
    assert len(shown) == MOST_CATEGORIES + 2
    assert {"c42", "c12", "c91", "c4"} < set(shown[0])
    assert f"The {MOST_CATEGORIES} most confused of 100 categories are shown" in page.texts["confusion"]
    assert page.tables["confusion"][1][1:] == [["c42", "c12", "40", "44.4 %"], ["c91", "c4", "25", "33.3 %"]]


def panels(page: HtmlPage) -> list[str]:
    """Alternative texts of the pictures, in the page's order."""
    return [
        str(given["aria-label"])
        for tag, given in page.tags
        if tag == "svg" and given.get("role") == "img" and given.get("class") != "plot"
    ]


def test_pictures_show_ground_truth_before_detections(page: HtmlPage) -> None:
    texts = panels(page)
    pairs = 3 + len(ERROR_TYPES)
    assert len(texts) == 2 * pairs + 4
    assert all(text.startswith("Ground truth: ") for text in texts[: 2 * pairs : 2])
    assert all(text.startswith("Detections: ") for text in texts[1 : 2 * pairs : 2])
    assert texts[0] == "Ground truth: 2 matched, 1 FN (Bear), 1 crowd, ignored."
    assert texts[-4:] == [
        "no annotation, detected apple 0.99.",
        "annotated as dog, detected Bear 0.98.",
        "no annotation, detected cat 0.97.",
        "annotated as dog, detected apple 0.96.",
    ]
    assert "000000000001.jpg (image 1): 5 FP, 2 FN, 4 TP" in page.texts["worst"]


def test_every_box_is_drawn_in_pixels_of_the_image_and_cut_to_it(tmp_path: Path) -> None:
    image = image_result(1)
    _, page = report(tmp_path, analysis(worst=[image], examples={}, label_errors=[]), pictures=smooth_pictures())
    boxes = [given for tag, given in page.tags if tag == "rect" and str(given.get("class")).startswith("s-")]
    drawn = [(str(box["class"]), [float(str(box[name])) for name in ("x", "y", "width", "height")]) for box in boxes]
    expected = [
        (
            f"s-{box.status}",
            [box.bbox[0], box.bbox[1], min(box.bbox[2], WIDTH - box.bbox[0]), min(box.bbox[3], HEIGHT - box.bbox[1])],
        )
        for box in [*image.ground_truth, *image.detections]
    ]
    assert len(drawn) == len(expected)
    for box in expected:
        assert any(status == box[0] and np.allclose(place, box[1], atol=0.5) for status, place in drawn), box
    views = {given["viewbox"] for tag, given in page.tags if tag == "svg" and given.get("role") == "img"}
    assert f"0 0 {WIDTH} {HEIGHT}" in views


def test_a_picture_is_in_the_page_once(page: HtmlPage) -> None:
    stored = [str(given["id"]) for tag, given in page.tags if tag == "image"]
    used = [str(given["href"]).removeprefix("#") for tag, given in page.tags if tag == "use"]
    assert len(stored) == len(set(stored)) == 8 + 4
    assert set(used) == set(stored)
    assert used.count("image-3") == 4


def test_without_image_files_it_says_so_and_lists_what_it_would_show(tmp_path: Path) -> None:
    _, page = report(tmp_path, pictures=None)
    assert "no pictures: there were no image files" in page.texts["worst"]
    assert panels(page) == []
    assert page.table("worst")["000000000002.jpg"] == ["2", "5", "2", "4"]
    assert page.table("label-errors")["label1.jpg"] == ["501", "dog", "Bear", "0.980", "21, 30, 60, 40"]
    assert "examples" not in page.texts


def test_images_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    source = smooth_pictures()
    _, page = report(tmp_path, pictures=lambda image_id: None if image_id in {1, 3} else source(image_id))
    assert "3 pictures are not shown: their images could not be read." in page.texts["worst"]
    assert "image 2" in page.texts["worst"]


def noise(image_id: int) -> Image.Image:
    """What no encoder can make small."""
    rng = np.random.default_rng(image_id)
    return Image.fromarray(rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))


def test_the_least_interesting_pictures_are_left_out_of_a_file_that_would_be_too_large(tmp_path: Path) -> None:
    examples = {name: [image_result(100 * at + n) for n in range(10)] for at, name in enumerate(ERROR_TYPES, 1)}
    worst = [image_result(number, objects=60, detections=100) for number in range(1, 13)]
    given = analysis(
        categories=[category(n, f"category number {n}", metrics={"AP": 0.5, "AP50": 0.6}) for n in range(1, 81)],
        worst=worst,
        examples=examples,
        label_errors=label_errors(50),
    )
    html, page = report(tmp_path, given, pictures=noise)
    size = len(html.encode())
    assert 0.9 * MOST_BYTES < size <= MOST_BYTES
    left = re.search(r"(\d+) pictures, the least interesting, were left out", page.texts["worst"])
    assert left
    shown = len(re.findall("<figure", html))
    assert int(left[1]) == 12 + 60 + 50 - shown > 0
    # The first of every gallery is there, and none after one that is not.
    assert "000000000001.jpg" in html
    for name in ERROR_TYPES.values():
        assert name.capitalize() in page.texts["examples"]
    kept = [f"image {number})" in page.texts["worst"] for number in range(1, 13)]
    assert kept == sorted(kept, reverse=True)


_HOSTILE = [
    "<script>document.title = 'hurt'</script>",
    "\"' onload=alert(1) x='",
    "x" * 10_240,
    "👩‍💻 emoji & Co.",
    "كلب \u202e dog",
    "tab\tand \x07 \x00 and half \ud800",
    "{{ 7 * 7 }} {% raw %}",
]


def hostile_report(path: Path) -> None:
    """A report in which every text comes from an enemy."""
    nasty = "\n".join(_HOSTILE)
    image = replace(image_result(1, objects=7, detections=14), file_name=nasty)
    errors = [replace(error, file_name=nasty) for error in label_errors(4)]
    write_evaluation_report(
        path,
        analysis(
            categories=[category(number, name) for number, name in enumerate(_HOSTILE, 1)],
            worst=[image],
            examples={"Cls": [image]},
            label_errors=errors,
            boundaries=boundaries(worst=[replace(match, file_name=nasty) for match in boundaries().worst]),
            losses={nasty: 1.0},
        ),
        title=nasty,
        facts={nasty: nasty},
        verdict=Verdict(False, [nasty]),
        pictures=smooth_pictures(),
    )


def test_what_comes_from_outside_is_text(tmp_path: Path) -> None:
    hostile_report(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = HtmlPage(html)
    scripts = [given for tag, given in page.tags if tag == "script"]
    data = [{"type": "application/json", "id": name} for name in ("category-curves", "score-counts")]
    assert scripts == [*data, {}]
    assert not [name for _, given in page.tags for name in given if name.startswith("on")]
    rows = list(page.table("categories"))
    assert _HOSTILE[0] in rows
    assert _HOSTILE[1] in rows
    assert _HOSTILE[3] in rows
    assert _HOSTILE[4] in rows
    assert _HOSTILE[6] in rows
    assert "x" * 99 + "…" in rows
    assert "\x07" not in page.texts["categories"]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    html, page = report(tmp_path, facts={"Home": "http://example.org/"}, pictures=smooth_pictures())
    loading = {"src", "srcset", "poster", "action", "data", "background", "xlink:href"}
    assert not [name for _, given in page.tags for name in given if name in loading]
    addresses = {str(given["href"])[:11] for _, given in page.tags if given.get("href")}
    assert {address for address in addresses if not address.startswith("#")} == {"data:image/"}
    assert "url(" not in html
    assert "@import" not in html
    assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "img"}
    assert html.count("<script") == 3


def test_equal_analyses_give_equal_files(tmp_path: Path) -> None:
    assert report(tmp_path, pictures=smooth_pictures())[0] == report(tmp_path, pictures=smooth_pictures())[0]


def test_a_thousand_categories_and_boxes_of_unknown_ones(tmp_path: Path) -> None:
    categories = [category(n, f"class {n}", metrics={"AP": n / 2000, "AP50": 0.5}) for n in range(1, 1204)]
    image = replace(image_result(1), ground_truth=[Box(5000, [1.0, 1.0, 5.0, 5.0], None, "matched")])
    html, page = report(tmp_path, analysis(categories=categories, worst=[image]), pictures=smooth_pictures())
    assert len(page.table("categories")) == 1203
    assert len(page.tables["confusion"][0]) == MOST_CATEGORIES + 2
    assert ">category 5000</text>" in html
    assert len(html.encode()) <= MOST_BYTES


def test_other_metrics_than_those_of_boxes(tmp_path: Path) -> None:
    metrics = {"AP": 0.2, "APr": 0.1, "APc": 0.2, "APf": -1.0}
    given = analysis(
        iou_type="keypoints", metrics=metrics, baseline_metrics={}, differences={}, confusion=None, calibration=None
    )
    _, page = report(tmp_path, given)
    assert [row[1] for row in page.tables["metrics"][0][1:]] == ["0.200", "0.100", "0.200", DASH]
    assert "confusion" not in page.texts
    assert "calibration" not in page.texts
    assert "for keypoints" in page.texts["method"]


def test_a_difference_that_cannot_be_told(tmp_path: Path) -> None:
    wide = Interval(0.02, -0.1, 0.14, 0.6)
    _, page = report(tmp_path, analysis(differences={"AP": wide}))
    assert "no significant difference." in page.texts[""]
