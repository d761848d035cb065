"""The schema as an artifact; TFX takes 20 s to import: imported inside."""

from pathlib import Path

import pytest

import schemas

pytestmark = pytest.mark.slow


def test_the_schema_travels_as_text(tmp_path: Path) -> None:
    from tfx.types import standard_artifacts
    from tfx.utils import io_utils

    from components.record_schema_gen.component import RecordSchemaGen
    from components.record_schema_gen.executor import Executor

    component = RecordSchemaGen()
    schema = standard_artifacts.Schema()
    schema.uri = str(tmp_path)
    Executor().Do({}, {"schema": [schema]}, component.exec_properties)
    [file] = tmp_path.iterdir()
    assert file.read_bytes() == Path(schemas.__file__).with_name("records.pbtxt").read_bytes()
    assert [feature.name for feature in io_utils.SchemaReader().read(str(file)).feature]
