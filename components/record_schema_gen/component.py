"""The component's contract: the schema as text in, a `Schema` artifact out."""

from pathlib import Path

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

import schemas
from components.history.driver import Driver
from components.history.records import RUN_ROOT_KEY
from components.record_schema_gen.executor import SCHEMA_TEXT_KEY, Executor

_SCHEMA_FILE = Path(schemas.__file__).parent / "records.pbtxt"


class RecordSchemaGenSpec(ComponentSpec):
    """Text in, Schema out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SCHEMA_TEXT_KEY: ExecutionParameter(type=str),
        RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: dict[str, ChannelParameter] = {}  # noqa: RUF012
    OUTPUTS = {keys.SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}  # noqa: RUF012


class RecordSchemaGen(base_component.BaseComponent):
    """Publishes the schema of the records that `CocoExampleGen` writes.

    TFX's `ImportSchemaGen` takes a path, which another machine's container does not have.
    """

    SPEC_CLASS = RecordSchemaGenSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(self, *, run_root: str | None = None) -> None:
        """Creates the component with the schema of this installation.

        Args:
            run_root: folder of the run, with the history; None: nothing is recorded.
        """
        text = _SCHEMA_FILE.read_text(encoding="utf-8")
        schema = types.Channel(type=standard_artifacts.Schema)
        super().__init__(RecordSchemaGenSpec(schema_text=text, run_root=run_root, schema=schema))
