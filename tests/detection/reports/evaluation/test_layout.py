"""The layout of the pages in a browser: on a phone, a laptop and a wide screen, light and dark."""

import numpy as np
import pytest

from tests.browser import Page
from tests.detection.reports.evaluation.conftest import Opener
from tests.detection.reports.evaluation.pages import WRITERS

SCREENS = [(width, dark) for width in (390, 1280, 1920) for dark in (False, True)]
LEGIBLE = [name for name in WRITERS if name != "hostile"]

# Rectangles of all texts that a reader sees: lines of text nodes, cut to frames that scroll, and labels of charts.
# Tags of boxes may cover parts of each other.
_LINES = """(() => {
  const lines = [], range = document.createRange(), walker = document.createTreeWalker(document.body, 4);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement, text = node.data.trim().slice(0, 40);
    if (!text || !holder.checkVisibility() || holder.closest("script, option, title, .tags, .store")) continue;
    range.selectNodeContents(node);
    const frames = [];
    for (let one = holder; one; one = one.parentElement)
      if (getComputedStyle(one).overflowX !== "visible") frames.push(one.getBoundingClientRect());
    for (const box of range.getClientRects()) {
      const [left, top] = ["left", "top"].map((side) => Math.max(box[side], ...frames.map((frame) => frame[side])));
      const [right, bottom] = ["right", "bottom"].map((side) =>
        Math.min(box[side], ...frames.map((frame) => frame[side])));
      if (right > left && bottom > top) lines.push([left, top, right, bottom, text]);
    }
  }
  return lines;
})()"""

# Words, of any text, that stand on two lines.
_BROKEN = """(() => {
  const broken = [], range = document.createRange(), walker = document.createTreeWalker(document.body, 4);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility() || node.parentElement.closest("script, option, svg")) continue;
    for (const word of node.data.matchAll(/[a-z]{3,25}/gi)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.y))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()"""

# Space left and right of the text of each tag, in heights of its font.
_EDGES = """[...document.querySelectorAll('.tags text')].map(text => {
  const own = text.getBBox(), box = text.previousElementSibling.getBBox();
  const font = parseFloat(getComputedStyle(text).fontSize);
  return [(own.x - box.x) / font, (box.x + box.width - own.x - own.width) / font];
})"""


def overlaps(lines: list[tuple[float, float, float, float, str]]) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other by more than 1 x 2 pixels."""
    ordered = sorted(lines, key=lambda line: line[1])
    pairs = []
    for at, (left, top, right, bottom, text) in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other[1] >= bottom - 2:
                break
            if min(right, other[2]) - max(left, other[0]) > 1 and min(bottom, other[3]) - max(top, other[1]) > 2:
                pairs.append((text, other[4]))
    return pairs


def show_on(page: Page, width: int, *, dark: bool) -> None:
    page.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.send("Emulation.setEmulatedMedia", features=[scheme])
    assert page.evaluate("innerWidth") == width


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_covers_a_text_or_stands_beside_the_page(open_page: Opener, name: str) -> None:
    page = open_page(name)
    for width, dark in SCREENS:
        show_on(page, width, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        lines = page.evaluate(_LINES)
        assert len(lines) > 50
        assert max(line[2] for line in lines) <= width
        assert overlaps(lines) == [], (width, dark)


def test_texts_that_cover_each_other_would_be_seen() -> None:
    lines = [(0.0, 0.0, 50.0, 20.0, "name"), (40.0, 5.0, 60.0, 25.0, "id"), (60.0, 5.0, 80.0, 25.0, "AP")]
    assert overlaps(lines) == [("name", "id")]


@pytest.mark.parametrize("name", LEGIBLE)
@pytest.mark.parametrize("width", [360, 390])
def test_words_paths_and_names_do_not_break_in_a_word_on_a_phone(open_page: Opener, name: str, width: int) -> None:
    assert open_page(name, width=width).evaluate(_BROKEN) == []


@pytest.mark.parametrize("name", ["evaluation", "long names"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_tags_are_as_wide_as_their_text(open_page: Opener, name: str, width: int) -> None:
    page = open_page(name, width=width)
    edges = page.evaluate(_EDGES)
    assert len(edges) > 20
    np.testing.assert_allclose(edges, 0.3, atol=0.1)


@pytest.mark.parametrize("name", LEGIBLE)
@pytest.mark.parametrize("width", [1280, 1920])
def test_all_columns_of_all_tables_are_seen_on_a_laptop(open_page: Opener, name: str, width: int) -> None:
    page = open_page(name, width=width)
    cut = page.evaluate(
        "[...document.querySelectorAll('.wide, .scroll')].filter(frame => frame.checkVisibility())"
        ".filter(frame => frame.scrollWidth > frame.clientWidth).map(frame => frame.ariaLabel)"
    )
    assert cut == []


@pytest.mark.parametrize("name", ["evaluation", "long names", "data"])
def test_no_chart_stands_alone_on_a_laptop(open_page: Opener, name: str) -> None:
    alone = open_page(name, width=1280).evaluate(
        "[...document.querySelectorAll('svg.plot')].filter(plot => {"
        "  const own = plot.getBoundingClientRect();"
        "  return ![...document.querySelectorAll('svg.plot, table, section')].some(other => {"
        "    const box = other.getBoundingClientRect();"
        "    const apart = box.left >= own.right || box.right <= own.left;"
        "    return apart && box.bottom > own.top + 50 && box.top < own.bottom - 50; }); }).map(plot => plot.id)"
    )
    assert alone == []
