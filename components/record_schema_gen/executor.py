"""The component's work: writes the schema's file."""

from typing import Any

from tfx.components.schema_gen.executor import DEFAULT_FILE_NAME
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.history.execution import Artifacts, recorded
from detection.storage.atomic import write_text

SCHEMA_TEXT_KEY = "schema_text"  # text format of a tensorflow_metadata Schema


class Executor(base_executor.BaseExecutor):
    """Writes the schema where TFX's components look for it."""

    @recorded("RecordSchemaGen")
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            DataError: the file cannot be written.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        folder = artifact_utils.get_single_uri(output_dict[keys.SCHEMA_KEY])
        write_text(f"{folder}/{DEFAULT_FILE_NAME}", exec_properties[SCHEMA_TEXT_KEY])
