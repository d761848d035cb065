"""Decides, before the executor, whether the data is what an earlier run has read."""

from typing import Any

from tfx.components.example_gen import driver, utils
from tfx.orchestration import data_types

from components.coco_example_gen.executor import SPLITS_KEY, splits_from_json
from components.coco_example_gen.fingerprint import fingerprint


class Driver(driver.FileBasedDriver):
    """Fingerprints the annotation files and the images that they name.

    TFX's own driver takes the files that patterns match, whether used or not, and
    sees a change within one second as none.
    """

    def resolve_exec_properties(
        self,
        exec_properties: dict[str, Any],
        pipeline_info: data_types.PipelineInfo,
        component_info: data_types.ComponentInfo,
    ) -> dict[str, Any]:
        """Adds the fingerprint to what decides about reuse; there are no spans here."""
        del pipeline_info, component_info
        exec_properties[utils.SPAN_PROPERTY_NAME] = 0
        exec_properties[utils.VERSION_PROPERTY_NAME] = None
        exec_properties[utils.FINGERPRINT_PROPERTY_NAME] = fingerprint(
            splits_from_json(exec_properties[SPLITS_KEY]).values()
        )
        return exec_properties
