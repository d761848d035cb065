"""Chooses the span to read, and fingerprints the data, so that an earlier run on the same data is reused."""

from typing import Any

from tfx.components.example_gen import driver, utils
from tfx.orchestration import data_types
from tfx.orchestration.portable import data_types as portable_data_types
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.proto.orchestration import driver_output_pb2
from tfx.types import standard_component_specs as keys
from tfx.utils import proto_utils

from components.coco_example_gen.executor import LABEL_MAP_KEY, SPLITS_KEY, splits_from_json, splits_to_json
from components.coco_example_gen.sources import fingerprint
from components.coco_example_gen.spans import SpanVersion, fill, find_newest, splits_at

PINNED_VERSION_KEY = "pinned_version"
DATA_SOURCE_KEY = "data_source"  # of the execution and of its `Examples`: the paths as the user wrote them


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
            ConfigError, DataError: see `find_newest`.
        """
        del pipeline_info, component_info
        splits = splits_from_json(exec_properties[SPLITS_KEY])
        newest = find_newest(splits, span=_asked_for(exec_properties))
        files = splits_at(splits, newest)
        version = exec_properties.get(PINNED_VERSION_KEY) if newest.version is None else newest.version
        exec_properties[SPLITS_KEY] = splits_to_json(files)
        exec_properties[keys.INPUT_CONFIG_KEY] = _filled(exec_properties[keys.INPUT_CONFIG_KEY], newest)
        # The newest span and the same one asked for are the same data.
        exec_properties[keys.RANGE_CONFIG_KEY] = ""
        exec_properties[PINNED_VERSION_KEY] = version
        exec_properties[utils.SPAN_PROPERTY_NAME] = newest.span
        exec_properties[utils.VERSION_PROPERTY_NAME] = version
        exec_properties[utils.FINGERPRINT_PROPERTY_NAME] = fingerprint(
            files.values(), exec_properties.get(LABEL_MAP_KEY)
        )
        return exec_properties


def _asked_for(exec_properties: dict[str, Any]) -> int | None:
    text = exec_properties.get(keys.RANGE_CONFIG_KEY)
    if not text:
        return None
    config = range_config_pb2.RangeConfig()
    proto_utils.json_to_proto(text, config)
    return config.static_range.start_span_number


def _filled(input_config: str, at: SpanVersion) -> str:
    config = example_gen_pb2.Input()
    proto_utils.json_to_proto(input_config, config)
    for split in config.splits:
        split.pattern = fill(split.pattern, at)
    return proto_utils.proto_to_json(config)
