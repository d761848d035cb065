"""A whole COCO data set into records, on Beam: the work of the component and of programs without TFX."""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.coco_example_gen.repeats import drop_images, find_repeats
from components.coco_example_gen.shards import SplitResult, index_splits, read_results, write_plans, write_shard
from detection.atomic_files import write_json, write_text
from detection.coco.annotations import AnnotationFile, Entry, merge_categories
from detection.coco.faults import Fault
from detection.coco.layouts import SplitFiles
from detection.data.records import Rules
from schemas.artifacts import DATASET_JSON, QUARANTINE_JSONL, split_dir
from schemas.errors import DataError
from schemas.faults import FaultPolicies

_WORK = ".work"  # inside the output, while it is written: storage that all workers see
_LISTED = 10  # faults told in an error message
_DONE = {"drop": f"left out, see {QUARANTINE_JSONL}", "fix": "fixed", "keep": "kept as they are"}

log = logging.getLogger("cocoflow.example_gen")


def convert(
    splits: Mapping[str, SplitFiles],
    root: Path,
    *,
    policies: FaultPolicies,
    max_pixels: int,
    make_pipeline: Callable[[], beam.Pipeline] = beam.Pipeline,
) -> None:
    """Writes Split-<name>/, dataset.json and quarantine.jsonl below `root`, or nothing.

    Args:
        splits: the files of each split.
        root: folder, seen by all workers.
        policies: what is done about faulty images and annotations.
        max_pixels: images of more are refused before they are decoded.
        make_pipeline: of the Beam pipeline that writes the shards.

    Raises:
        DataError: unusable annotation files; faults whose policy is to fail; nothing
            left of a split.
    """
    try:
        _write(splits, root, policies, max_pixels, make_pipeline)
    except BaseException:
        for name in splits:
            shutil.rmtree(root / split_dir(name), ignore_errors=True)
        raise
    finally:
        shutil.rmtree(root / _WORK, ignore_errors=True)


def _write(
    splits: Mapping[str, SplitFiles],
    root: Path,
    policies: FaultPolicies,
    max_pixels: int,
    make_pipeline: Callable[[], beam.Pipeline],
) -> None:
    files = index_splits(splits, policies)
    dataset = _describe(list(files.values()))
    faults = [fault for file in {file.path: file for file in files.values()}.values() for fault in file.faults]
    _stop_at(faults)
    work = root / _WORK
    work.mkdir(parents=True, exist_ok=True)
    plans = write_plans(splits, files, _rules(dataset["categories"], policies, max_pixels), root=root, work=work)
    with make_pipeline() as pipeline:
        (
            pipeline
            | "Plans" >> beam.Create([path for paths in plans.values() for path in paths])
            | "Distribute" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard)
        )
    results = {name: read_results(paths) for name, paths in plans.items()}
    _drop_repeats(results, policies, root)
    faults += [fault for result in results.values() for fault in result.faults]
    _stop_at(faults)
    _tell(results, faults)
    dropped = [fault for fault in faults if fault.policy == "drop"]
    write_text(root / QUARANTINE_JSONL, "".join(f"{json.dumps(fault.as_dict())}\n" for fault in dropped))
    write_json(root / DATASET_JSON, dataset)


def _describe(files: Sequence[AnnotationFile]) -> dict[str, Any]:
    """The contents of dataset.json: the first file's info, all licences, all categories."""
    licenses: list[Entry] = []
    for file in files:
        licenses += [entry for entry in file.licenses if entry not in licenses]
    categories = merge_categories((file.path, file.categories) for file in files)
    return {"info": files[0].info, "licenses": licenses, "categories": categories}


def _rules(categories: Iterable[Entry], policies: FaultPolicies, max_pixels: int) -> Rules:
    categories = list(categories)
    return Rules(
        policies=policies,
        max_pixels=max_pixels,
        category_names={category["id"]: category["name"] for category in categories},
        keypoints={category["id"]: len(category["keypoints"]) for category in categories if category.get("keypoints")},
    )


def _drop_repeats(results: Mapping[str, SplitResult], policies: FaultPolicies, root: Path) -> None:
    """Adds the faults of images that are there twice, and leaves them out where policy says so."""
    for name, faults in find_repeats({name: result.seen for name, result in results.items()}, policies).items():
        result = results[name]
        result.faults += faults
        ids = {fault.image_id for fault in faults if fault.policy == "drop" and fault.image_id is not None}
        if ids:
            result.images -= len(ids)
            result.annotations -= drop_images(sorted((root / split_dir(name)).iterdir()), ids)


def _stop_at(faults: Sequence[Fault]) -> None:
    """Refuses the data set where a policy says so."""
    fatal = [fault for fault in faults if fault.policy == "fail"]
    if fatal:
        raise DataError(
            f"{len(fatal)} {'fault' if len(fatal) == 1 else 'faults'} in the data set:\n{_listed(fatal)}\n"
            f"Correct the data, or leave out what is faulty with --set data.on_fault=drop (or "
            f"data.on_fault.{fatal[0].kind}=drop); it is then listed in {QUARANTINE_JSONL}."
        )


def _tell(results: Mapping[str, SplitResult], faults: Sequence[Fault]) -> None:
    for name, result in results.items():
        log.info("%s: %d images, %d annotations", name, result.images, result.annotations)
    for policy, done in _DONE.items():
        kinds = Counter(fault.kind for fault in faults if fault.policy == policy)
        if kinds:
            counts = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
            log.warning("%s: %s", done, ", ".join(f"{count} {kind}" for kind, count in counts))
    for name, result in results.items():
        if not result.images:
            raise DataError(
                f"split {name}: no image is usable, {len(result.faults)} are at fault:\n{_listed(result.faults)}\n"
                "Correct the data."
            )


def _listed(faults: Sequence[Fault]) -> str:
    lines = [f"  {fault}" for fault in faults[:_LISTED]]
    if len(faults) > _LISTED:
        lines.append(f"  ... and {len(faults) - _LISTED} more")
    return "\n".join(lines)
