"""The tables are those of the published schemas: MediaPipe's own files, and LiteRT's generated code."""

import inspect
import re
from collections.abc import Mapping

import pytest
from ai_edge_litert import schema_py_generated

from detection.export.mediapipe.flatbuffer_tables import Schema
from detection.export.mediapipe.metadata_schema import DETECTOR_METADATA, METADATA, MODEL, MODEL_PARTS
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


def _slots(schema: Schema) -> dict[tuple[str, str], int]:
    return {(table, field): slot for table in schema.tables for slot, field, _ in schema.slots(table)}


@pytest.mark.parametrize("schema", [MODEL, MODEL_PARTS])
def test_the_fields_of_a_model_have_the_slots_of_litert(schema: Schema) -> None:
    source = inspect.getsource(schema_py_generated)
    adds = re.findall(r"def (\w+)Add(\w+)\(builder, \w+\):\n\s+builder\.Prepend\w+Slot\((\d+)", source)
    published = {(table, re.sub(r"(?<!^)([A-Z])", r"_\1", field).lower()): int(slot) for table, field, slot in adds}
    slots = _slots(schema)
    assert len(slots) > 10
    assert slots == {key: published[key] for key in slots}
    assert schema.identifier == b"TFL3"
    assert schema_py_generated.Model.ModelBufferHasIdentifier(b"\0\0\0\0TFL3", 0)
