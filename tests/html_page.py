"""A page read back from its HTML, without a browser."""

from collections.abc import Sequence
from html.parser import HTMLParser


class HtmlPage(HTMLParser):
    """What a reader gets: text, tables and images of each section, and every tag's attributes.

    What stands outside of sections is section "".  Tags that do not match fail.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.images: dict[str, list[dict[str, str | None]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._section = ""
        self._cell: list[str] | None = None
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in {"meta", "img", "input", "wbr"}:
            self._open.append(tag)
        if tag == "section":
            self._section = str(given["id"])
        elif tag == "img":
            self.images.setdefault(self._section, []).append(given)
        elif tag == "table":
            self.tables.setdefault(self._section, []).append([])
        elif tag == "tr":
            self.tables[self._section][-1].append([])
        elif tag in {"td", "th"}:
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in {"td", "th"} and self._cell is not None:
            self.tables[self._section][-1][-1].append("".join(self._cell))
            self._cell = None
        elif tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        if self._open and self._open[-1] in {"script", "style"}:
            return
        self.texts[self._section] = self.texts.get(self._section, "") + data

    def table(self, section: str, index: int = 0) -> dict[str, list[str]]:
        """First cell -> the others, without the header."""
        return {row[0]: row[1:] for row in self.tables[section][index][1:]}

    def header(self, section: str, index: int = 0) -> list[str]:
        return self.tables[section][index][0]
