"""The tables are those of the published schemas, MediaPipe's own files."""

import re
from collections.abc import Mapping

import pytest

from detection.export.mediapipe.metadata_schema import DETECTOR_METADATA, METADATA
from tests.detection.export.mediapipe.published import folder

_PUBLISHED = {"metadata_schema.fbs": METADATA, "object_detector_metadata_schema.fbs": DETECTOR_METADATA}


def _parse(text: str) -> tuple[dict[str, dict[str, str]], dict[str, list[str]], set[str]]:
    """Tables, unions and enums of a schema file."""
    text = re.sub(r"//.*|\(force_align: 16\)", "", text)
    fields = re.compile(r"(\w+)\s*:\s*([\w\[\]]+)")
    tables = {name: dict(fields.findall(body)) for name, body in re.findall(r"table (\w+)\s*{([^}]*)}", text)}
    unions = {name: re.findall(r"\w+", body) for name, body in re.findall(r"union (\w+)\s*{([^}]*)}", text)}
    enums = set(re.findall(r"enum (\w+) : byte", text))
    return tables, unions, enums


@pytest.mark.parametrize("name", _PUBLISHED)
def test_the_tables_are_those_of_mediapipes_schema(name: str) -> None:
    schema = _PUBLISHED[name]
    text = folder().joinpath(name).read_text(encoding="utf-8")
    tables, unions, enums = _parse(text)
    published: dict[str, Mapping[str, str]] = {
        table: {field: "byte" if kind in enums else kind for field, kind in fields.items()}
        for table, fields in tables.items()
    }
    assert {table: list(fields.items()) for table, fields in schema.tables.items()} == {
        table: list(fields.items()) for table, fields in published.items()
    }
    assert {union: list(members) for union, members in schema.unions.items()} == unions
    assert f'file_identifier "{schema.identifier.decode()}"' in text
