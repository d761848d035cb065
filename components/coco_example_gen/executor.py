"""The component's work: reads annotations, lets workers write shards, lists the issues."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import apache_beam as beam
from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.coco_example_gen.conversion import convert
from components.coco_example_gen.spans import SpanVersion, splits_at
from components.coco_example_gen.workers import chooses_workers
from detection.datasets.layouts import SplitFiles
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.issues import IssuePolicies

SPLITS_KEY = "splits"  # JSON: split name -> fields of SplitFiles
ON_FAULT_KEY = "on_fault"  # JSON: IssuePolicies
MAX_PIXELS_KEY = "max_pixels"
LABEL_MAP_KEY = "label_map"  # file, or absent


class Executor(base_beam_executor.BaseBeamExecutor):
    """Turns COCO annotations and images into plain TFRecords, one record per image."""

    def Do(  # noqa: N802 (TFX's name)
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Runs the component.

        Raises:
            DataError: see `convert`.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[keys.EXAMPLES_KEY])
        # On Kubeflow it is TFX's own driver that has found the span.
        at = SpanVersion(int(exec_properties.get("span") or 0), exec_properties.get("version"))
        splits = splits_at(splits_from_json(exec_properties[SPLITS_KEY]), at)
        convert(
            splits,
            examples.uri,
            policies=IssuePolicies.model_validate_json(exec_properties[ON_FAULT_KEY]),
            max_pixels=exec_properties[MAX_PIXELS_KEY],
            label_map=exec_properties.get(LABEL_MAP_KEY),
            make_pipeline=self._make_pipeline,
        )
        examples.split_names = artifact_utils.encode_split_names(list(splits))
        # No file format: TFX knows only "tfrecords_gzip", its readers go by the file's ending.
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)

    def _make_pipeline(self, local_options: Sequence[str]) -> beam.Pipeline:
        given = self._beam_pipeline_args
        if self._make_beam_pipeline_fn is not None or chooses_workers(given):
            return self._make_beam_pipeline()
        return beam.Pipeline(argv=[*given, *local_options])


def splits_to_json(splits: Mapping[str, SplitFiles]) -> str:
    """The splits as a component parameter, train first."""
    ordered = sorted(splits, key=lambda name: name != TRAIN_SPLIT)
    return json.dumps({name: asdict(splits[name]) for name in ordered})


def splits_from_json(text: str) -> dict[str, SplitFiles]:
    """Inverse of `splits_to_json`."""
    return {
        name: SplitFiles(**fields | {"hash_range": fields["hash_range"] and tuple(fields["hash_range"])})
        for name, fields in json.loads(text).items()
    }
