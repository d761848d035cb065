"""The tables are those of the published schemas, MediaPipe's own files."""

import pytest

from detection.export.mediapipe.flatbuffer_tables import Schema, parse_schema
from detection.export.mediapipe.metadata_schema import DETECTOR_METADATA, METADATA
from tests.detection.export.mediapipe.published import folder


@pytest.mark.parametrize(
    ("name", "schema"), [("metadata_schema", METADATA), ("object_detector_metadata_schema", DETECTOR_METADATA)]
)
def test_the_tables_are_those_of_mediapipes_schema(name: str, schema: Schema) -> None:
    published = parse_schema(folder().joinpath(f"{name}.fbs").read_text(encoding="utf-8"))
    assert schema == published
    for table, fields in published.tables.items():
        assert list(schema.tables[table]) == list(fields)  # in this order
