"""Tables of numbers and text for pages and the terminal; sanitizes names from the data."""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    import rich.table

LONGEST_NAME = 100  # characters

DASH = "\u2013"  # for missing values

_LONG = 40  # characters of a text that needs a wide column
_LONG_WORD = 16  # characters of a word that may not fit into a line
_WORDS = re.compile(r"(\s+)")
_BREAKS = re.compile(r"(?<=[/\\_])(?=\w)|(?<=\w)(?=\.[A-Za-z])")  # in paths and file names


def shown_name(name: str) -> str:
    """Returns a name from the data for display: without control characters, and not too long."""
    # Keeps joiners and directional marks: emoji and right-to-left scripts need them.
    clean = "".join("\ufffd" if unicodedata.category(letter) in {"Cc", "Cs"} else letter for letter in name)
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"


def breakable(text: str) -> Markup:
    """Returns a text as HTML whose long paths and file names break between their parts, not in a word."""
    return Markup().join(
        Markup("<wbr>").join(_BREAKS.split(word)) if len(word) > _LONG_WORD else word for word in _WORDS.split(text)
    )


class Number(NamedTuple):
    """A cell with a number.

    text: text of the cell.
    value: sort key; None: undefined, sorted last.
    bar: length of the bar behind the text, 0..1; None: no bar.
    tone: colour, for a gain or a loss.
    """

    text: str
    value: float | None
    bar: float | None = None
    tone: Literal["", "good", "bad"] = ""


class Link(NamedTuple):
    """A link within the page; `href` is "#" and the id of the target."""

    text: str
    href: str


# Integers are counts and sizes, ids are text; None: empty.
Cell = str | int | Number | Link | None


class Table(NamedTuple):
    """A table of the page.

    caption: caption; "" if the section's heading is enough.
    header: one text per column.
    rows: one cell per column; the first names the row.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """True for each column that has numbers only."""
        columns = range(len(self.header))
        return [all(not isinstance(row[column], str | Link) for row in self.rows) for column in columns]


def cell_text(cell: Cell) -> str:
    """Returns a cell's text; a dash for None."""
    if cell is None:
        return DASH
    if isinstance(cell, Number | Link):
        return cell.text
    return f"{cell:,}" if isinstance(cell, int) else cell


def cell_attributes(cell: Cell, numeric: bool, sortable: bool) -> Markup:
    """Returns the classes of a cell's tag, the length of its bar and, for tables.js, its sort value."""
    number = cell if isinstance(cell, Number) else None
    classes = ["number"] * numeric + ["long"] * (isinstance(cell, str) and len(cell) > _LONG)
    classes += ["bar"] * bool(number and number.bar is not None)
    if number and number.tone:
        classes.append(number.tone)
    attributes = f' class="{" ".join(classes)}"' if classes else ""
    if number and number.bar is not None:
        attributes += f' style="--share:{100 * number.bar:.0f}%"'
    value = number.value if number else cell
    if isinstance(cell, Link):
        return Markup(attributes)
    if sortable and isinstance(value, int | float):
        attributes += f' data-value="{value:.6g}"'
    return Markup(attributes)


def rich_table(table: Table, *, title: str) -> "rich.table.Table":
    """Returns a table for `rich.console.Console.print`; its content is text, not markup."""
    import rich.table
    from rich.text import Text

    shown = rich.table.Table(title=Text(title), title_justify="left")
    for name, numeric in zip(table.header, table.numeric, strict=True):
        shown.add_column(Text(name), justify="right" if numeric else "left")
    for row in table.rows:
        shown.add_row(*(Text(shown_name(cell_text(cell))) for cell in row))
    return shown
