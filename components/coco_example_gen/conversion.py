"""A COCO data set into an Examples folder: the work of the component and of programs without TFX."""

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.coco_example_gen.examination import Examination, examine
from components.coco_example_gen.fault_pictures import pictures_of
from components.coco_example_gen.issue_categories import concerned_annotations
from components.coco_example_gen.repeats import drop_images
from components.coco_example_gen.shards import SplitResult
from components.coco_example_gen.workers import MakePipeline, make_local_pipeline
from detection.datasets.issues import Issue
from detection.datasets.layouts import SplitFiles
from detection.reports.dataset.page import write_report
from detection.storage.atomic import write_json, write_text
from schemas.artifacts import DATA_REPORT_HTML, DATASET_JSON, QUARANTINE_JSONL, split_dir
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError

_WORK = ".work"  # inside the output, while it is written: storage that all workers see
_LISTED = 10  # issues told in an error message
_DONE = {"drop": f"left out, see {QUARANTINE_JSONL}", "fix": "fixed", "keep": "kept as they are"}

log = logging.getLogger("cocoflow.example_gen")


def convert(
    splits: Mapping[str, SplitFiles],
    root: Path,
    *,
    policies: IssuePolicies,
    max_pixels: int,
    label_map: str | None = None,
    make_pipeline: MakePipeline = make_local_pipeline,
) -> None:
    """Writes Split-<name>/, dataset.json, quarantine.jsonl and data_report.html below `root`, or nothing.

    Args:
        splits: the files of each split.
        root: folder, seen by all workers.
        policies: what is done about issues of images and annotations.
        max_pixels: images of more are refused before they are decoded.
        label_map: categories of TFRecords, see `read_label_map`; None: those of the records.
        make_pipeline: of the Beam pipelines that read the data.

    Raises:
        DataError: unusable annotation files; issues whose policy is to fail; nothing
            left of a split.
    """
    work = root / _WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        found = examine(
            splits,
            policies=policies,
            max_pixels=max_pixels,
            work=work,
            records=root,
            make_pipeline=make_pipeline,
            label_map=label_map,
            judge=_stop_at,
        )
        _stop_at(found.all_issues)
        _drop_repeats(found.results, root)
        _tell(found.results, found.all_issues)
        _write_side_files(found, splits, root, max_pixels)
    except BaseException:
        for name in splits:
            shutil.rmtree(root / split_dir(name), ignore_errors=True)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def report(found: Examination, splits: Mapping[str, SplitFiles], path: Path, *, max_pixels: int) -> None:
    """Writes the page that shows what a data set holds and what is wrong with it.

    Args:
        found: see `examine`.
        splits: the files of each split.
        path: of the HTML file.
        max_pixels: images of more are not shown.

    Raises:
        DataError: the file cannot be written.
    """
    write_report(
        path,
        title=_title([source.path for source in found.sources.values()]),
        splits={name: result.summary for name, result in found.results.items()},
        categories=found.dataset["categories"],
        issues=found.all_issues,
        examples=pictures_of(found, splits, max_pixels=max_pixels),
        concerned=concerned_annotations(found),
    )


def _title(paths: Sequence[str]) -> str:
    """The file, or the folder that holds all of the files."""
    return os.path.commonpath([os.path.abspath(path) for path in paths])


def _write_side_files(found: Examination, splits: Mapping[str, SplitFiles], root: Path, max_pixels: int) -> None:
    dropped = [issue for issue in found.all_issues if issue.policy == "drop"]
    write_text(root / QUARANTINE_JSONL, "".join(f"{json.dumps(issue.as_dict())}\n" for issue in dropped))
    report(found, splits, root / DATA_REPORT_HTML, max_pixels=max_pixels)
    counts = {
        name: {"images": result.images, "annotations": result.annotations} for name, result in found.results.items()
    }
    write_json(root / DATASET_JSON, {**found.dataset, "splits": counts})


def _drop_repeats(results: Mapping[str, SplitResult], root: Path) -> None:
    """Leaves out images that are there twice, where policy says so."""
    for name, result in results.items():
        ids = {
            issue.image_id
            for issue in result.issues
            if issue.kind in ("image_duplicate", "image_leak") and issue.policy == "drop" and issue.image_id is not None
        }
        if ids:
            result.images -= len(ids)
            result.annotations -= drop_images(sorted((root / split_dir(name)).iterdir()), ids)


def _stop_at(issues: Sequence[Issue]) -> None:
    """Refuses the data set where a policy says so."""
    fatal = [issue for issue in issues if issue.policy == "fail"]
    if fatal:
        raise DataError(
            f"{len(fatal)} {'issue' if len(fatal) == 1 else 'issues'} in the data set:\n{_listed(fatal)}\n"
            f"Correct the data, or leave out what has issues with --set data.on_fault=drop (or "
            f"data.on_fault.{fatal[0].kind}=drop); it is then listed in {QUARANTINE_JSONL}."
        )


def _tell(results: Mapping[str, SplitResult], issues: Sequence[Issue]) -> None:
    for name, result in results.items():
        log.info("%s: %d images, %d annotations", name, result.images, result.annotations)
    for policy, done in _DONE.items():
        kinds = Counter(issue.kind for issue in issues if issue.policy == policy)
        if kinds:
            counts = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
            log.warning("%s: %s", done, ", ".join(f"{count} {kind}" for kind, count in counts))
    for name, result in results.items():
        if not result.images:
            raise DataError(
                f"split {name}: no valid image, {len(result.issues)} issues:\n{_listed(result.issues)}\n"
                "Correct the data."
            )


def _listed(issues: Sequence[Issue]) -> str:
    lines = [f"  {issue}" for issue in issues[:_LISTED]]
    if len(issues) > _LISTED:
        lines.append(f"  ... and {len(issues) - _LISTED} more")
    return "\n".join(lines)
