"""No call needs a newer Python than the oldest supported one: Debian 12's 3.11.2.

What later minor versions added, mypy and ruff refuse, which check for that version.  What later releases of 3.11
added (Python's documentation: "Changed in version 3.11.N"), no tool knows: type stubs have it for all of 3.11.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("schemas", "detection", "components", "pipelines", "benchmarks", "docs", "tests")
SOURCES = [ROOT / "pipeline_runner.py", *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
# Argument -> functions and methods that take it in later releases of 3.11 alone.
ARGUMENTS = {
    "filter": {"extract", "extractall", "unpack_archive"},  # 3.11.4
    "strict": {"getaddresses", "parseaddr"},  # 3.11.10
}
NAMES = {  # of later releases of 3.11
    "data_filter",
    "tar_filter",
    "fully_trusted_filter",
    "extraction_filter",
    "FilterError",
    "SetReparseDeferralEnabled",
}


def too_new(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", None))
            for argument in node.keywords:
                if function in ARGUMENTS.get(argument.arg or "", ()):
                    yield f"line {node.lineno}: {function}({argument.arg}=...)"
        elif isinstance(node, ast.Attribute | ast.alias):
            name = node.attr if isinstance(node, ast.Attribute) else node.name
            if name in NAMES:
                yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize(
    "source",
    [
        "archive.extract(member, folder, filter='data')",
        "shutil.unpack_archive('a.tar', filter='data')",
        "from tarfile import data_filter",
        "print(tarfile.tar_filter)",
    ],
)
def test_a_call_that_the_oldest_python_lacks_is_found(source: str) -> None:
    assert list(too_new(source))


def test_no_source_has_such_a_call() -> None:
    assert len(SOURCES) > 1000
    found = {path.relative_to(ROOT): list(too_new(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_mypy_and_ruff_check_for_the_oldest_python() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = settings["project"]["requires-python"].removeprefix(">=")
    assert settings["tool"]["mypy"]["python_version"] == oldest
    assert settings["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
