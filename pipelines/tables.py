"""Tables on stdout."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.quoting import printable

_PIPED_COLUMNS = 240  # width of a table that goes to a file


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Mapping[str, str] | None = None,
    *,
    title: str | None = None,
) -> None:
    """Prints a table.

    Args:
        columns: titles.
        rows: cells of each row; control characters are escaped.
        styles: styles of cells by their text.
        title: title of the table.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_COLUMNS)
    table = Table(box=box.SIMPLE, title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), style=(styles or {}).get(cell, "")) for cell in row))
    console.print(table)
