"""The reports as a reader has them: in a browser."""

import json
from pathlib import Path
from typing import Any

import pytest

from detection.reports.html.table import DASH
from tests.browser import Browser, Page
from tests.detection.reports.evaluation.builders import analysis
from tests.detection.reports.evaluation.conftest import Opener
from tests.detection.reports.evaluation.pages import WRITERS

PHONE = 390


def texts(page: Page, selector: str) -> list[str]:
    shown: list[str] = page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")
    return shown


def column(page: Page, name: str, table: str = "#categories table") -> list[str]:
    """Texts of a table's column, from the rows that are shown."""
    cells: list[str] = page.evaluate(
        f"(() => {{ const table = document.querySelector({json.dumps(table)});"
        "const at = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === " + json.dumps(name) + ");"
        "return [...table.tBodies[0].rows].filter(row => row.checkVisibility()).map(row => row.cells[at].textContent);"
        "})()"
    )
    return cells


def header(name: str, table: str = "#categories table") -> str:
    """Selector of a column's button, by its place in the header of the category table."""
    names = ["category", "id", "AP", "AP difference", "ground truth"]
    return f"{table} th:nth-child({names.index(name) + 1}) button"


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("arguments", [{}, {"dark": True}, {"width": PHONE}])
def test_a_page_opens_without_complaint_and_asks_for_nothing(
    open_page: Opener, files: dict[str, Path], name: str, arguments: dict[str, Any]
) -> None:
    page = open_page(name, **arguments)
    assert page.complaints() == []
    assert page.requests().count(files[name].as_uri()) == 1
    assert set(page.requests()) <= {files[name].as_uri(), "data:"}
    assert len(texts(page, "h1")) == 1


def test_a_complaint_and_a_request_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<!DOCTYPE html><title>x</title><img src='http://127.0.0.1:9/x.png'><script>nothing()</script>")
    page = Page(browser, path)
    assert "nothing is not defined" in json.dumps(page.complaints())
    assert "http://127.0.0.1:9/x.png" in page.requests()
    page.close()


def test_title_and_headings(open_page: Opener) -> None:
    page = open_page()
    assert page.evaluate("document.title") == "raccoons"
    assert texts(page, "h2")[:4] == ["What to act on", "Metrics", "Precision and recall", "Score threshold"]
    assert texts(page, "nav a") == texts(page, "h2")[1:]
    page.click("nav a[href='#categories']")
    assert page.evaluate("location.hash") == "#categories"


def test_pictures_are_decoded_and_seen(open_page: Opener) -> None:
    page = open_page()
    sizes = page.evaluate(
        "Promise.all([...document.querySelectorAll('.store image')].map(async stored => {"
        "const image = new Image(); image.src = stored.getAttribute('href'); await image.decode();"
        "return [image.naturalWidth, image.naturalHeight]; }))"
    )
    assert len(sizes) == 14
    assert sizes[0] == [512, 384]
    panels = page.evaluate(
        "[...document.querySelectorAll('.panel svg')].map(panel => {"
        "const box = panel.getBoundingClientRect(), used = panel.querySelector('use').getBoundingClientRect();"
        "return [box.width, box.height, used.width, used.height]; })"
    )
    for width, height, used_width, used_height in panels:
        assert min(width, height) > 100
        # The picture fills one side of its panel.
        assert abs(width - used_width) < 2.5 or abs(height - used_height) < 2.5
    left, right = (
        page.evaluate(f"document.querySelectorAll('.panel')[{at}].getBoundingClientRect().x") for at in (0, 1)
    )
    assert left < right, "ground truth is left, detections are right"


@pytest.mark.parametrize("width", [1200, PHONE])
def test_an_image_to_act_on_leads_to_its_picture(open_page: Opener, width: int) -> None:
    page = open_page(width=width)
    first = "document.querySelector('#actions').getBoundingClientRect().y"
    assert page.evaluate(first) < 900, "it begins in the first screen"
    page.click("#actions tbody th a")
    assert page.evaluate("location.hash") == "#worst-image-1"
    assert page.evaluate("document.querySelector(':target').getBoundingClientRect().y") < 900
    assert page.evaluate("document.querySelector(':target figcaption').textContent").startswith("000000000001.jpg")


def test_a_click_on_a_header_sorts(open_page: Opener) -> None:
    page = open_page()
    values = ["0.100", "0.200", "0.300", "0.400", "0.500", "0.600", "0.700"]
    assert column(page, "AP") == [*values, DASH]
    page.click(header("AP"))
    assert column(page, "AP") == [*values[::-1], DASH]
    assert page.evaluate("document.querySelector('[aria-sort=descending]').textContent") == "AP"
    page.click(header("AP"))
    assert column(page, "AP") == [*values, DASH]
    page.click(header("category"))
    assert column(page, "category") == ["apple", "Bear", "cat", "dog", "emu", "frog", "goat", "Hen"]
    page.click(header("category"))
    assert column(page, "category")[:2] == ["Hen", "goat"]
    page.click(header("ground truth"))
    assert column(page, "ground truth") == ["80", "70", "60", "50", "40", "30", "20", "10"]
    assert page.evaluate("document.querySelectorAll('#categories [aria-sort=none]').length") > 5
    assert page.complaints() == []


def test_sorting_by_keyboard(open_page: Opener) -> None:
    page = open_page()
    page.evaluate(f"document.querySelector({json.dumps(header('id'))}).focus()")
    page.press("Tab", code=9)
    page.press("Enter", text="\r", code=13)
    assert column(page, "AP")[:2] == ["0.700", "0.600"]


def test_typing_filters_rows(open_page: Opener) -> None:
    page = open_page()
    page.click("#categories .filter input")
    page.type("MISS")
    assert len(column(page, "category")) == 8, "all have missed ground truth as main error"
    for _ in range(4):
        page.press("Backspace", code=8)
    page.type("EA")
    assert column(page, "category") == ["Bear"]
    assert texts(page, "#categories .filter output") == ["1 of 8 shown"]
    for _ in range(2):
        page.press("Backspace", code=8)
    page.type("emu")
    assert column(page, "category") == ["emu"]
    page.click(header("AP"))
    assert column(page, "category") == ["emu"], "what is filtered away stays away"
    page.click("#categories .filter input")
    page.type("x")
    assert column(page, "category") == []
    for _ in range(4):
        page.press("Backspace", code=8)
    assert len(column(page, "category")) == 8


def test_a_category_chosen_has_its_curve(open_page: Opener) -> None:
    page = open_page()
    points = "document.querySelector('#curves .chosen[points]').getAttribute('points')"
    assert page.evaluate(points) == ""
    options = texts(page, "#category-choice option")
    assert options == ["none", *(f"{one.name} ({one.ground_truth} instances)" for one in analysis().categories)]
    page.evaluate("document.querySelector('#category-choice').focus()")
    page.type("cat")
    assert texts(page, "#chosen-category") == ["cat (30 instances)"]
    drawn = [[float(value) for value in pair.split(",")] for pair in page.evaluate(points).split()]
    width, height = (
        float(page.evaluate(f"document.querySelector('#curves svg.plot').dataset.{side}"))
        for side in ("width", "height")
    )
    expected = analysis().categories[2].precision
    assert [x / width for x, _ in drawn] == pytest.approx([step / 100 for step in range(101)])
    assert [1 - y / height for _, y in drawn] == pytest.approx(expected, abs=1e-3)
    page.evaluate("document.querySelector('#category-choice').focus()")
    page.press("Home", code=36)
    assert page.evaluate(points) == ""
    assert page.evaluate("document.querySelector('#chosen-category').checkVisibility()") is False


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("width", [360, PHONE])
def test_texts_of_charts_and_pictures_can_be_read_on_a_phone(open_page: Opener, name: str, width: int) -> None:
    page = open_page(name, width=width)
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(text => text.textContent && text.checkVisibility())"
        ".map(text => parseFloat(getComputedStyle(text).fontSize) * Math.hypot(...'ab'.split('')"
        ".map(part => text.getScreenCTM()[part])))"
    )
    assert len(sizes) > 5
    assert min(sizes) > 9


def test_a_phone_shows_panels_below_each_other(open_page: Opener) -> None:
    page = open_page(width=PHONE)
    places = page.evaluate(
        "[...document.querySelectorAll('.pairs .panel')].slice(0, 2).map(panel => {"
        "const box = panel.getBoundingClientRect(); return [box.x, box.y, box.width]; })"
    )
    assert places[0][0] == places[1][0]
    assert places[0][1] < places[1][1]
    assert places[0][2] > 300


@pytest.mark.parametrize("name", WRITERS)
def test_the_dark_page_is_dark(open_page: Opener, name: str) -> None:
    colors = {}
    for dark in (False, True):
        page = open_page(name, dark=dark)
        style = "getComputedStyle(document.body)"
        colors[dark] = (page.evaluate(f"{style}.backgroundColor"), page.evaluate(f"{style}.color"))
    assert colors[False] == ("rgb(255, 255, 255)", "rgb(31, 35, 40)")
    assert colors[True] == ("rgb(13, 17, 23)", "rgb(230, 237, 243)")


def test_everything_is_there_without_scripts(open_page: Opener) -> None:
    with_scripts, without = open_page(), open_page(scripts=False)
    for selector in ("h2", "tbody tr", "figcaption", "polyline title", "#thresholds .value"):
        assert texts(without, selector) == texts(with_scripts, selector)
    assert texts(without, "th button") == []
    assert column(without, "category")[0] == "apple"
    for control in ("#category-choice", "#thresholds input[type=range]"):
        hidden = without.evaluate(f"document.querySelector('{control}').checkVisibility()")
        assert hidden is False, "a control that does nothing is not offered"


def test_no_script_but_the_pages_own_runs(browser: Browser, files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "changed.html"
    script = "<script>document.title = 'hurt'</script><img src='data:,' onerror='document.title = 1'></body>"
    path.write_text(files["evaluation"].read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    page = Page(browser, path)
    assert page.evaluate("document.title") == "raccoons"
    assert json.dumps(page.complaints()).count("Content Security Policy") >= 2
    page.close()


def test_names_from_outside_do_nothing(open_page: Opener) -> None:
    page = open_page("hostile")
    assert page.evaluate("document.title").startswith("<script>")
    assert page.evaluate("document.scripts.length") == 3
    assert "👩‍💻 emoji & Co." in column(page, "category")
    page.click("#categories .filter input")
    page.type("<scr")
    assert column(page, "category") == ["<script>document.title = 'hurt'</script>"]


def test_on_paper_tables_are_whole_and_controls_are_gone(open_page: Opener) -> None:
    page = open_page(dark=True)
    page.send("Emulation.setEmulatedMedia", media="print")
    for control in (".filter", "input[type=range]"):
        assert page.evaluate(f"document.querySelector('{control}').checkVisibility()") is False
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).maxHeight") == "none"


def test_every_control_and_region_has_a_name(open_page: Opener) -> None:
    page = open_page()
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "searchbox", "combobox", "slider", "link", "img", "region", "navigation"}
    shown = [node for node in nodes if node.get("role", {}).get("value") in named and not node["ignored"]]
    assert {node["role"]["value"] for node in shown} >= named - {"img"}
    assert [node for node in shown if not node.get("name", {}).get("value")] == []
