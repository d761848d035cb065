"""Tables of numbers and text, as pages and the terminal show them; names from the data made showable."""

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    import rich.table

LONGEST_NAME = 100  # characters

DASH = "\u2013"  # where there is nothing to show


def shown_name(name: str) -> str:
    """A name from the data as pages show it: no control characters, and not endless."""
    # Joiners and marks of direction stay: emoji and right-to-left scripts need them.
    clean = "".join("\ufffd" if unicodedata.category(letter) in {"Cc", "Cs"} else letter for letter in name)
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"


class Number(NamedTuple):
    """A number as a cell shows it.

    text: text of the cell.
    value: sort key; None: undefined, sorted last.
    bar: length of the bar behind the text, 0..1; None: no bar.
    tone: colour: a gain or a loss.
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
    """A table as the page shows it.

    caption: caption; "" if the section's heading is enough.
    header: one text per column.
    rows: one cell per column; the first names the row.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers only."""
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
    """Classes of a cell's tag, the length of its bar and, where tables.js sorts, its value."""
    number = cell if isinstance(cell, Number) else None
    classes = ["number"] * numeric + ["bar"] * bool(number and number.bar is not None)
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
    """A table for `rich.console.Console.print`; what it holds is text, not markup."""
    import rich.table
    from rich.text import Text

    shown = rich.table.Table(title=Text(title), title_justify="left")
    for name, numeric in zip(table.header, table.numeric, strict=True):
        shown.add_column(Text(name), justify="right" if numeric else "left")
    for row in table.rows:
        shown.add_row(*(Text(shown_name(cell_text(cell))) for cell in row))
    return shown
