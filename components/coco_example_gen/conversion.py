"""A COCO data set into an Examples folder: the work of the component and of programs without TFX."""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from components.coco_example_gen.examination import Examination, examine
from components.coco_example_gen.report import write_data_report
from components.coco_example_gen.shards import SplitResult
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.issues import Issue
from detection.datasets.layouts import EXAMPLES_WORK
from detection.datasets.splits import SplitFiles
from detection.storage import files, paths
from detection.storage.atomic import new_path, write_json, write_text
from detection.storage.tfrecord import read_shard
from schemas import features
from schemas.artifacts import DATA_REPORT_HTML, DATASET_JSON, GROUPS_JSON, QUARANTINE_JSONL, split_dir
from schemas.config.config import DataConfig
from schemas.errors import DataError

_LISTED = 10  # max issues in an error message
_DONE = {"drop": f"left out, see {QUARANTINE_JSONL}", "fix": "fixed", "keep": "kept as they are"}

log = logging.getLogger("cocoflow.example_gen")


def convert(
    splits: Mapping[str, SplitFiles], root: str | Path, data: DataConfig, *, beam_args: Sequence[str] = ()
) -> None:
    """Writes Split-<name>/, quarantine.jsonl, groups.json, data_report.html and, last, dataset.json, or nothing.

    What an attempt that was killed left there is removed first: it may have other shards.

    Args:
        splits: the files of each split.
        root: folder, seen by all workers; may be remote.
        data: `on_fault`, `max_pixels`, `label_map` and `od_api_keys` are used.
        beam_args: `run.beam_args`, the options of the Beam pipelines that read the data.

    Raises:
        DataError: unusable annotation files; issues whose policy is to fail; nothing
            left of a split.
    """
    _remove(root)
    work = paths.join(root, EXAMPLES_WORK)
    files.make_folder(work)
    try:
        examination = examine(splits, data, work=work, records=root, beam_args=beam_args, judge=_stop_at)
        _stop_at(examination.all_issues, examination.reasons)
        _drop_duplicates(examination.results, root)
        _log_results(examination.results, examination.all_issues, examination.notes)
        _write_side_files(examination, root)
    except BaseException:
        with contextlib.suppress(DataError):
            _remove(root)
        raise
    with contextlib.suppress(DataError):  # the examples are complete
        files.remove_folder(work)


def _remove(root: str | Path) -> None:
    """Removes all that `convert` writes: first the file that marks it as complete, last the working folder."""
    if not files.is_dir(root):
        return
    for name in (DATASET_JSON, DATA_REPORT_HTML, GROUPS_JSON, QUARANTINE_JSONL):
        files.remove_file(paths.join(root, name))
    for name in files.list_folder(root):
        if name.startswith(split_dir("")):
            files.remove_folder(paths.join(root, name))
    files.remove_folder(paths.join(root, EXAMPLES_WORK))


def _write_side_files(examination: Examination, root: str | Path) -> None:
    dropped = [issue for issue in examination.all_issues if issue.policy == "drop"]
    quarantine = "".join(f"{json.dumps(issue.as_dict())}\n" for issue in dropped)
    write_text(paths.join(root, QUARANTINE_JSONL), quarantine)
    write_data_report(examination, paths.join(root, DATA_REPORT_HTML))
    joined = {
        name: {
            image.group: group
            for image in result.seen
            if (group := examination.groups[name, image.image_id]) != image.group
        }
        for name, result in examination.results.items()
    }
    if any(joined.values()):
        write_json(paths.join(root, GROUPS_JSON), joined)
    counts = {
        name: {"images": result.images, "annotations": result.annotations, "statistics": result.summary.as_dict()}
        for name, result in examination.results.items()
    }
    write_json(paths.join(root, DATASET_JSON), {**examination.dataset, "splits": counts})


def _drop_duplicates(results: Mapping[str, SplitResult], root: str | Path) -> None:
    """Drops duplicate images if the policy says so."""
    for name, result in results.items():
        ids = {
            issue.image_id
            for issue in result.issues
            if issue.kind in ("image_duplicate", "image_leak") and issue.policy == "drop" and issue.image_id is not None
        }
        if ids:
            result.images -= len(ids)
            folder = paths.join(root, split_dir(name))
            shards = [paths.join(folder, shard) for shard in files.list_folder(folder)]
            result.annotations -= _drop_images(shards, ids)


def _drop_images(shards: Iterable[str], image_ids: set[int]) -> int:
    """Rewrites shards without some images, each atomically.

    Returns:
        Number of annotations of these images.
    """
    dropped = 0
    sources = {str(image_id).encode() for image_id in image_ids}
    for shard in shards:
        # TFX reads every file of the split's folder.
        beside = paths.parent(paths.parent(shard))
        with new_path(shard, beside=beside) as unfinished, tf.io.TFRecordWriter(str(unfinished)) as writer:
            for record in read_shard(shard):
                values = tf.train.Example.FromString(record).features.feature
                if values[features.SOURCE_ID].bytes_list.value[0] in sources:
                    dropped += len(unpack_entries(values[features.COCO].bytes_list.value[0])[1])
                else:
                    writer.write(record)
    return dropped


def _stop_at(issues: Sequence[Issue], reasons: Sequence[str]) -> None:
    """Refuses the data set where a policy says so."""
    fatal = [issue for issue in issues if issue.policy == "fail"]
    if fatal:
        because = f" ({'; '.join(reasons)})" if reasons else ""
        raise DataError(
            f"{len(fatal)} {'issue' if len(fatal) == 1 else 'issues'} in the data set{because}:\n{_list(fatal)}\n"
            f"Correct the data, or leave out what has issues with --set data.on_fault=drop (or "
            f"data.on_fault.{fatal[0].kind}=drop); it is then listed in {QUARANTINE_JSONL}."
        )


def _log_results(results: Mapping[str, SplitResult], issues: Sequence[Issue], notes: Sequence[str]) -> None:
    for note in notes:
        log.info("%s", note)
    for name, result in results.items():
        log.info("%s: %s", name, f"{result.images:,} images, {result.annotations:,} annotations")
    for policy, done in _DONE.items():
        kinds = Counter(issue.kind for issue in issues if issue.policy == policy)
        if kinds:
            counts = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
            log.warning("%s: %s", done, ", ".join(f"{count} {kind}" for kind, count in counts))
    for name, result in results.items():
        if not result.images:
            raise DataError(
                f"split {name}: no valid image, {len(result.issues)} issues:\n{_list(result.issues)}\nCorrect the data."
            )


def _list(issues: Sequence[Issue]) -> str:
    lines = [f"  {issue}" for issue in issues[:_LISTED]]
    if len(issues) > _LISTED:
        lines.append(f"  ... and {len(issues) - _LISTED} more")
    return "\n".join(lines)
