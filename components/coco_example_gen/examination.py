"""Examines a COCO data set on Beam: writes its records, and finds every issue, including duplicate images."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.beam.pipelines import make_pipeline
from components.beam.progress import report_progress
from components.coco_example_gen.box_form import find_box_forms
from components.coco_example_gen.copies import Groups, find_groups, find_moves, judge_copies, moved
from components.coco_example_gen.inputs import Inputs, open_inputs
from components.coco_example_gen.shards import IMAGES_PER_SHARD, SplitResult, read_results, write_plans, write_shard
from components.coco_example_gen.sources import ImageSource
from detection.datasets.annotations.entries import Entry, comparable_name
from detection.datasets.annotations.entry_rules import unread_fields
from detection.datasets.encode_record import Rules
from detection.datasets.issues import Issue, limited
from detection.datasets.splits import SplitFiles
from detection.storage import files, paths
from schemas.artifacts import split_dir
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.quoting import one_line

_CATEGORY_FIELDS = frozenset(("id", "name", "supercategory", "keypoints", "skeleton"))
_IGNORED = re.compile("(?i)ignored?([ _-]*regions?)?|don'?t ?care")  # names of VisDrone, DETRAC and KITTI
# Images, for each core beyond the first, from which on worker processes are done earlier than threads: processes do not
# share Python's lock, but each takes some fifteen seconds to import what it needs.
_PROCESSES_PAY = 30_000


@dataclass(frozen=True)
class Examination:
    """The content of a data set and its issues.

    dataset: the contents of dataset.json but for the counts.
    sources: of each split.
    results: what became of each split; duplicate images included.
    issues: of the annotation files and the data set; those of images are in `results`.
    rules: how images became records.
    notes: remarks on the data set for the user.
    reasons: why repairs stop a run.
    groups: of the images that were read.
    """

    dataset: dict[str, Any]
    sources: Mapping[str, ImageSource]
    results: Mapping[str, SplitResult]
    issues: list[Issue]
    rules: Rules
    notes: Sequence[str] = ()
    reasons: Sequence[str] = ()
    groups: Groups = field(default_factory=dict)

    @property
    def all_issues(self) -> list[Issue]:
        """All issues, those of images included."""
        return [*self.issues, *(issue for result in self.results.values() for issue in result.issues)]


def examine(
    splits: Mapping[str, SplitFiles],
    data: DataConfig,
    *,
    work: str | Path,
    records: str | Path | None,
    beam_args: Sequence[str] = (),
    judge: Callable[[Sequence[Issue], Sequence[str]], None] = lambda issues, reasons: None,
) -> Examination:
    """Reads every annotation and every image.

    Args:
        splits: the files of each split.
        data: `on_fault`, `max_pixels`, `label_map` and `od_api_keys` are used.
        work: folder, seen by all workers, for what they need and find.
        records: folder that receives Split-<name>/ with the records; None: none are written.
        beam_args: `run.beam_args`, the options of the Beam pipelines that read the data.
        judge: sees the issues of the annotation files, and why repairs stop a run, before any
            image is read, and may raise.

    Raises:
        DataError: an annotation file or a TFRecord file that cannot be read; a split
            without images.
    """
    policies = data.on_fault
    inputs = open_inputs(splits, policies, label_map=data.label_map, work=work, beam_args=beam_args)
    judge(inputs.issues, inputs.reasons)
    rules = _rules(inputs.dataset["categories"], data)
    sources, notes = inputs.sources, list(inputs.notes)
    results = _read(sources, rules, records=records, work=work, beam_args=beam_args)
    forms, converted = find_box_forms(sources, results, policies)
    if converted:
        sources = {**sources, **converted}
        results = _read(sources, rules, records=records, work=work, beam_args=beam_args)
    groups = find_groups({name: result.seen for name, result in results.items()})
    moves = find_moves(splits, groups, policies)
    if moves:
        notes.append(f"{len(moves):,} images were moved to the split that has copies of them")
        sources = moved(sources, moves, work)
        results = _read(sources, rules, records=records, work=work, beam_args=beam_args)
        groups = find_groups({name: result.seen for name, result in results.items()})
    seen = {name: result.seen for name, result in results.items()}
    found, more = judge_copies(seen, groups, policies)
    notes += more
    for name, issues in found.items():
        results[name].issues += issues
    reasons = list(inputs.reasons)
    for name, result in results.items():
        left_out = Counter(issue.repaired for issue in result.issues if issue.policy == "drop")
        images, annotations = result.images + left_out["image"], result.annotations + left_out["annotation"]
        result.issues, why = limited(result.issues, name, images=images, annotations=annotations)
        reasons += why
    more_issues = [*forms, *_empty_categories(inputs, results, policies), *_alike_categories(inputs, policies)]
    return Examination(inputs.dataset, sources, results, inputs.issues + more_issues, rules, notes, reasons, groups)


def _read(
    sources: Mapping[str, ImageSource],
    rules: Rules,
    *,
    records: str | Path | None,
    work: str | Path,
    beam_args: Sequence[str],
) -> dict[str, SplitResult]:
    """Reads every image on Beam; writes its record if `records` is a folder."""
    if records is not None:
        for name in sources:
            files.remove_folder(paths.join(records, split_dir(name)))
    plans = write_plans(sources, rules, records=records, work=work)
    plan_files = [path for of_split in plans.values() for path in of_split]
    options = local_options(len(plan_files) * IMAGES_PER_SHARD)
    pipeline = make_pipeline(beam_args, options)
    with report_progress("reading images", pipeline.runner, _total(sources), work) as counter, pipeline:
        (
            pipeline
            | "Plans" >> beam.Create(plan_files)
            | "Distribute" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, counter, threads=1 if options else None)
        )
    return {name: read_results(of_split) for name, of_split in plans.items()}


def local_options(images: int) -> list[str]:
    """Returns Beam options for reading images on the cores of this machine; empty: threads do it."""
    cores = os.cpu_count() or 1
    if images * (cores - 1) < _PROCESSES_PAY:
        return []
    return ["--direct_running_mode=multi_processing", f"--direct_num_workers={cores}"]


def _total(sources: Mapping[str, ImageSource]) -> int | None:
    totals = [source.total for source in sources.values()]
    return None if None in totals else sum(filter(None, totals))


def _rules(categories: Sequence[Entry], data: DataConfig) -> Rules:
    keypoints = {category["id"]: category["keypoints"] for category in categories if category.get("keypoints")}
    return Rules(
        policies=data.on_fault,
        max_pixels=data.max_pixels,
        category_names={category["id"]: category["name"] for category in categories},
        ignored=frozenset(category["id"] for category in categories if _IGNORED.fullmatch(category["name"].strip())),
        keypoints={identity: len(names) for identity, names in keypoints.items()},
        od_api_keypoints=keypoints if data.od_api_keys else None,
    )


def _empty_categories(inputs: Inputs, results: Mapping[str, SplitResult], policies: IssuePolicies) -> list[Issue]:
    instances: Counter[int] = Counter()
    for result in results.values():
        instances.update(result.summary.instances)
    first = next(iter(inputs.sources.values()))
    return [
        Issue(
            "category_empty",
            policies.of("category_empty"),
            first.path,
            None,
            None,
            f"category {category['id']} ({one_line(category['name'])}) has no annotation. "
            "Add some, or remove the category.",
        )
        for category in inputs.dataset["categories"]
        if not instances[category["id"]]
    ]


def _alike_categories(inputs: Inputs, policies: IssuePolicies) -> list[Issue]:
    first = next(iter(inputs.sources.values()))
    names: dict[str, Entry] = {}
    issues = []
    for category in inputs.dataset["categories"]:
        unread = unread_fields(frozenset(category), known=_CATEGORY_FIELDS)
        amiss = unread if category["name"].strip() else "its name is empty. Write a text"
        if amiss is not None:
            message = f"category {category['id']}: {amiss}"
            issues.append(Issue("category_alike", policies.of("category_alike"), first.path, None, None, message))
        other = names.setdefault(comparable_name(category["name"]), category)
        if other is not category:
            message = (
                f"categories {other['id']} ({other['name']!r}) and {category['id']} ({category['name']!r}) differ only "
                "in capitals, spaces or accents. If they are one, give their annotations one of the ids."
            )
            issues.append(Issue("category_alike", policies.of("category_alike"), first.path, None, None, message))
    return issues
