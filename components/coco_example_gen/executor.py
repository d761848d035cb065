"""What the example gen does: read annotations, let workers write shards, list the faults."""

import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apache_beam as beam
from tfx import types
from tfx.components.util import examples_utils
from tfx.dsl.components.base import base_beam_executor
from tfx.proto import example_gen_pb2
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.coco_example_gen.shards import (
    SplitResult,
    describe_dataset,
    read_results,
    read_splits,
    write_plans,
    write_shard,
)
from detection.atomic_files import write_json, write_text
from detection.coco.layouts import SplitFiles
from detection.data.records import Fault
from schemas.artifacts import DATASET_JSON, QUARANTINE_JSONL, TRAIN_SPLIT, split_dir
from schemas.errors import DataError

SPLITS_KEY = "splits"  # JSON: split name -> fields of SplitFiles
ON_FAULT_KEY = "on_fault"  # "fail" or "drop"

_WORK = ".work"  # inside the artifact, while it is written: storage that all workers see
_LISTED = 10  # faults told in an error message

log = logging.getLogger("cocoflow.example_gen")


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
            DataError: unusable annotation files; faulty images or annotations, unless
                they are to be dropped; nothing left of a split.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        examples = artifact_utils.get_single_instance(output_dict[keys.EXAMPLES_KEY])
        splits = splits_from_json(exec_properties[SPLITS_KEY])
        try:
            self._convert(splits, Path(examples.uri), drop=exec_properties[ON_FAULT_KEY] == "drop")
        except BaseException:
            for name in splits:
                shutil.rmtree(Path(examples.uri, split_dir(name)), ignore_errors=True)
            raise
        finally:
            shutil.rmtree(Path(examples.uri, _WORK), ignore_errors=True)
        examples.split_names = artifact_utils.encode_split_names(list(splits))
        # No file format: TFX knows only "tfrecords_gzip", its readers go by the file's ending.
        examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)

    def _convert(self, splits: Mapping[str, SplitFiles], root: Path, *, drop: bool) -> None:
        files = read_splits(splits)
        dataset = describe_dataset(files.values())
        work = root / _WORK
        work.mkdir(parents=True, exist_ok=True)
        plans = write_plans(splits, files, dataset["categories"], root=root, work=work)
        with self._make_beam_pipeline() as pipeline:
            (
                pipeline
                | "Plans" >> beam.Create([path for paths in plans.values() for path in paths])
                | "Distribute" >> beam.Reshuffle()
                | "WriteShard" >> beam.Map(write_shard)
            )
        results = {name: read_results(paths) for name, paths in plans.items()}
        _judge(results, drop=drop)
        faults = [fault for result in results.values() for fault in result.faults]
        write_text(root / QUARANTINE_JSONL, "".join(f"{json.dumps(fault.as_dict())}\n" for fault in faults))
        write_json(root / DATASET_JSON, dataset)


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


def _judge(results: Mapping[str, SplitResult], *, drop: bool) -> None:
    for name, result in results.items():
        log.info("%s: %d images, %d annotations%s", name, result.images, result.annotations, _dropped(result.faults))
    faults = [fault for result in results.values() for fault in result.faults]
    if faults and not drop:
        raise DataError(
            f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'} in the data set:\n{_listed(faults)}\n"
            f"Correct the data, or leave out what is faulty with --set data.on_fault=drop; "
            f"it is then listed in {QUARANTINE_JSONL}."
        )
    for name, result in results.items():
        if not result.images:
            raise DataError(
                f"split {name}: no image is usable, {len(result.faults)} are at fault:\n{_listed(result.faults)}\n"
                "Correct the data."
            )


def _dropped(faults: Iterable[Fault]) -> str:
    kinds = [fault.annotation_id is None for fault in faults]
    return f"; at fault: {kinds.count(True)} images, {kinds.count(False)} annotations" if kinds else ""


def _listed(faults: list[Fault]) -> str:
    lines = [f"  {fault}" for fault in faults[:_LISTED]]
    if len(faults) > _LISTED:
        lines.append(f"  ... and {len(faults) - _LISTED} more")
    return "\n".join(lines)
