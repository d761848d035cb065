"""Executor of CocoExampleGen: reads annotations, writes shards on workers, lists the issues."""

from typing import Any

from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.coco_example_gen.conversion import convert
from components.coco_example_gen.spans.resolution import FINGERPRINT_PROPERTY, REUSE_RULE, mark, reading_of, resolve
from components.history.execution import Artifacts, recorded


class Executor(base_beam_executor.BaseBeamExecutor):
    """Turns COCO annotations and images into plain TFRecords, one record per image."""

    @recorded("CocoExampleGen", REUSE_RULE)
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            ConfigError: the keys about spans do not fit the data's paths.
            DataError: files that are missing or cannot be used; issues whose policy is to fail.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[keys.EXAMPLES_KEY])
        if FINGERPRINT_PROPERTY not in exec_properties:  # open-source Kubeflow Pipelines runs no driver
            exec_properties.update(resolve(exec_properties))
        splits, data = reading_of(exec_properties)
        convert(splits, examples.uri, data, beam_args=self._beam_pipeline_args)
        examples.split_names = artifact_utils.encode_split_names(list(splits))
        # No file format: TFX knows only "tfrecords_gzip", its readers go by the file's ending.
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
        mark(examples, exec_properties)
