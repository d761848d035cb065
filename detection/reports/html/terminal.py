"""The tables of pages on a terminal."""

import rich.table
from rich.text import Text

from detection.reports.html.names import shown_name
from detection.reports.html.table import Table, cell_text


def rich_table(table: Table, *, title: str) -> rich.table.Table:
    """A table for `rich.console.Console.print`; what it holds is text, not markup."""
    shown = rich.table.Table(title=Text(title), title_justify="left")
    for name, numeric in zip(table.header, table.numeric, strict=True):
        shown.add_column(Text(name), justify="right" if numeric else "left")
    for row in table.rows:
        shown.add_row(*(Text(shown_name(cell_text(cell))) for cell in row))
    return shown
