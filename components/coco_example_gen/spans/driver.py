"""Chooses the span to read, and fingerprints the data, so that an earlier execution on the same data is reused."""

from collections.abc import Mapping
from typing import Any

from tfx.orchestration import data_types

from components.coco_example_gen.spans.resolution import deciding, resolve
from components.history import driver


class Driver(driver.Driver):
    """Finds the span and its version, and fingerprints its annotation files and the images that they name.

    TFX's own driver takes the files that patterns match, whether used or not, and
    sees a change within one second as none.
    """

    def deciding(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the parameters that decide about the outputs."""
        return deciding(parameters)

    def resolve_exec_properties(
        self,
        exec_properties: dict[str, Any],
        pipeline_info: data_types.PipelineInfo | None,
        component_info: data_types.ComponentInfo | None,
    ) -> dict[str, Any]:
        """Replaces patterns by the files that are read: these decide about reuse.

        Raises:
            ConfigError, DataError: see `resolve`.
        """
        del pipeline_info, component_info
        return resolve(exec_properties)
