"""Chooses the span to read, and fingerprints the data, so that an earlier run on the same data is reused."""

from typing import Any

from tfx.components.example_gen import driver
from tfx.orchestration import data_types
from tfx.orchestration.portable import data_types as portable_data_types
from tfx.proto.orchestration import driver_output_pb2
from tfx.types import standard_component_specs as keys

from components.coco_example_gen.spans.resolution import DATA_SOURCE_KEY, resolve


class Driver(driver.FileBasedDriver):
    """Finds the span and its version, and fingerprints its annotation files and the images that they name.

    TFX's own driver takes the files that patterns match, whether used or not, and
    sees a change within one second as none.
    """

    def run(self, execution_info: portable_data_types.ExecutionInfo) -> driver_output_pb2.DriverOutput:
        """Runs TFX's driver, and marks the examples with the data that they are a span of."""
        result = super().run(execution_info)
        for examples in result.output_artifacts[keys.EXAMPLES_KEY].artifacts:
            source = execution_info.exec_properties[DATA_SOURCE_KEY]
            examples.custom_properties[DATA_SOURCE_KEY].string_value = source
        return result

    def resolve_exec_properties(
        self,
        exec_properties: dict[str, Any],
        pipeline_info: data_types.PipelineInfo,
        component_info: data_types.ComponentInfo,
    ) -> dict[str, Any]:
        """Replaces patterns by the files that are read: these decide about reuse.

        Raises:
            ConfigError, DataError: see `resolve`.
        """
        del pipeline_info, component_info
        return resolve(exec_properties)
