"""Pages' common parts: names, cells, and tables on a terminal."""

import io

import pytest
from rich.console import Console

from detection.reports.html.render import data_uri
from detection.reports.html.table import (
    DASH,
    LONGEST_NAME,
    Cell,
    Number,
    Table,
    breakable,
    cell_attributes,
    cell_text,
    rich_table,
    shown_name,
)


@pytest.mark.parametrize("name", ["cat", "a b", "👩‍💻", "كلب", "犬", "x" * LONGEST_NAME, "", "\u200fmark of direction"])
def test_ordinary_names_stay(name: str) -> None:
    assert shown_name(name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x07b\n\x00", "a\ufffdb\ufffd\ufffd"),
        ("half \ud800", "half \ufffd"),
        ("y" * 10_240, "y" * (LONGEST_NAME - 1) + "…"),
    ],
)
def test_names_lose_what_pages_cannot_show(name: str, shown: str) -> None:
    assert shown_name(name) == shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("my_data/val/instances_val.json", ["my_", "data/", "val/", "instances_", "val", ".json"]),
        ("train: C:\\photos\\IMG_00123.JPG", ["train: C:\\", "photos\\", "IMG_", "00123", ".JPG"]),
        ("000653.jpg at 0.5_", ["000653.jpg at 0.5_"]),
        ("version 0.123456789012345678", ["version 0.123456789012345678"]),
        ("<b>/a_long_name/of_it</b>", ["&lt;b&gt;/", "a_", "long_", "name/", "of_", "it&lt;/", "b&gt;"]),
    ],
)
def test_long_names_may_break_between_their_parts(text: str, lines: list[str]) -> None:
    assert breakable(text).split("<wbr>") == lines


def test_cells() -> None:
    cells: list[Cell] = ["text", 12345, None, Number("+0.1", 0.1)]
    assert [cell_text(cell) for cell in cells] == ["text", "12,345", DASH, "+0.1"]
    table = Table("", ("a", "b", "c", "d"), [cells, ["x", None, 3, "y"]])
    assert table.numeric == [False, True, True, False]


@pytest.mark.parametrize(
    ("cell", "numeric", "sortable", "expected"),
    [
        ("x", False, True, ""),
        (7, True, False, ' class="number"'),
        (7, True, True, ' class="number" data-value="7"'),
        (None, True, True, ' class="number"'),
        (Number(DASH, None), True, True, ' class="number"'),
        (
            Number("0.25", 0.25, bar=0.25, tone="good"),
            True,
            True,
            ' class="number bar good" style="--share:25%" data-value="0.25"',
        ),
    ],
)
def test_attributes_of_cells(cell: Cell, numeric: bool, sortable: bool, expected: str) -> None:
    assert cell_attributes(cell, numeric, sortable) == expected


def test_data_uris() -> None:
    assert data_uri(b"\x00\xff", "image/png") == "data:image/png;base64,AP8="


def test_a_table_on_the_terminal_is_text() -> None:
    file = io.StringIO()
    table = Table("", ("name", "count"), [["[red]cat[/]\x1b[31m", 1234], ["dog", None]])
    Console(file=file, width=60, force_terminal=False).print(rich_table(table, title="[b]Title[/b]"))
    printed = file.getvalue()
    assert "[b]Title[/b]" in printed
    assert "[red]cat[/]\ufffd[31m" in printed
    assert "1,234 │" in printed
    assert f"{DASH} │" in printed
