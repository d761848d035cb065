"""A whole COCO data set into records, on Beam: the work of the component and of programs without TFX."""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import apache_beam as beam

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
from schemas.artifacts import DATASET_JSON, QUARANTINE_JSONL, split_dir
from schemas.errors import DataError

_WORK = ".work"  # inside the output, while it is written: storage that all workers see
_LISTED = 10  # faults told in an error message

log = logging.getLogger("cocoflow.example_gen")


def convert(
    splits: Mapping[str, SplitFiles],
    root: Path,
    *,
    drop: bool,
    make_pipeline: Callable[[], beam.Pipeline] = beam.Pipeline,
) -> None:
    """Writes Split-<name>/, dataset.json and quarantine.jsonl below `root`, or nothing.

    Args:
        splits: the files of each split.
        root: folder, seen by all workers.
        drop: leave faulty images and annotations out instead of refusing the data.
        make_pipeline: of the Beam pipeline that writes the shards.

    Raises:
        DataError: unusable annotation files; faulty images or annotations, unless
            they are to be dropped; nothing left of a split.
    """
    try:
        _write(splits, root, drop=drop, make_pipeline=make_pipeline)
    except BaseException:
        for name in splits:
            shutil.rmtree(root / split_dir(name), ignore_errors=True)
        raise
    finally:
        shutil.rmtree(root / _WORK, ignore_errors=True)


def _write(
    splits: Mapping[str, SplitFiles], root: Path, *, drop: bool, make_pipeline: Callable[[], beam.Pipeline]
) -> None:
    files = read_splits(splits)
    dataset = describe_dataset(files.values())
    work = root / _WORK
    work.mkdir(parents=True, exist_ok=True)
    plans = write_plans(splits, files, dataset["categories"], root=root, work=work)
    with make_pipeline() as pipeline:
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
