"""The pages of evaluations by several IoU types."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from detection.reports.evaluation.comparison_page import write_comparison_page
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.html.table import DASH
from tests.detection.reports.evaluation.builders import analysis, boundaries, smooth_pictures
from tests.detection.reports.evaluation.test_comparison_page import comparison
from tests.html_page import HtmlPage


def ids(page: HtmlPage) -> Counter[str]:
    return Counter(str(given["id"]) for _, given in page.tags if given.get("id"))


def read(path: Path) -> HtmlPage:
    return HtmlPage(path.read_text(encoding="utf-8"))


def test_each_type_has_its_sections_and_each_id_is_unique(tmp_path: Path) -> None:
    masks = replace(
        analysis(), iou_type="segm", metrics={"AP": 0.31, "AP50": 0.61}, intervals={}, boundaries=boundaries()
    )
    slices = [
        {"slice": name, "images": 3, "metrics": {"AP": ap, "AP50": -1.0, "segm": {"AP": ap / 2, "AP50": 0.8}}}
        for name, ap in (("size = <small>", 0.25), ("size = large", 0.75))
    ]
    path = tmp_path / "report.html"
    pictures = smooth_pictures()
    write_evaluation_report(path, replace(analysis(), others=[masks]), title="t", slices=slices, pictures=pictures)
    page = read(path)
    assert max(ids(page).values()) == 1
    assert page.table("metrics")["AP"][0] == "0.400"
    assert {name: cells[0] for name, cells in page.table("segm-metrics").items()} == {"AP": "0.310", "AP50": "0.610"}
    assert "Masks: Metrics" in page.texts["segm-metrics"]
    assert "boundaries" not in page.texts
    assert "segm-boundaries" in page.texts
    assert "AP of masks 0.310" in page.texts[""]
    assert page.header("slices") == ["slice", "images", "AP", "AP50", "segm/AP"]
    assert page.table("slices")["size = <small>"] == ["3", "0.250", DASH, "0.125"]
    drawn = {section for section in ("worst", "segm-worst") if f'id="{section}-' in path.read_text()}
    assert drawn == {"worst", "segm-worst"}
    write_evaluation_report(path, analysis(), title="t")
    assert "slices" not in read(path).texts


def test_a_comparison_of_boxes_and_masks(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    masks = replace(comparison(), iou_type="segm")
    write_comparison_page(path, [comparison(), masks], title="t", pictures=smooth_pictures())
    page = read(path)
    assert max(ids(page).values()) == 1
    assert page.table("segm-metrics") == page.table("metrics")
    assert "Masks: Categories" in page.texts["segm-categories"]
    assert "B has AP of masks" in page.texts[""]
