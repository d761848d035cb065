"""Pages opened in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, Page
from tests.detection.reports.evaluation.pages import WRITERS

Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in WRITERS}
    for name, path in paths.items():
        WRITERS[name](path)
    return paths


@pytest.fixture
def open_page(browser: Browser, files: dict[str, Path]) -> Iterator[Opener]:
    pages = []

    def opener(name: str = "evaluation", **arguments: Any) -> Page:
        pages.append(Page(browser, files[name], **arguments))
        return pages[-1]

    yield opener
    for page in pages:
        page.close()
