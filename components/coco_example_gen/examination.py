"""Examines a COCO data set on Beam: writes its records, and finds every issue, including duplicate images."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.beam.pipelines import make_pipeline
from components.beam.progress import report_progress
from components.coco_example_gen.inputs import Inputs, open_inputs
from components.coco_example_gen.shards import (
    IMAGES_PER_SHARD,
    SeenImage,
    SplitResult,
    read_results,
    write_plans,
    write_shard,
)
from components.coco_example_gen.sources import ImageSource
from detection.datasets.encode_record import Rules
from detection.datasets.entries import Entry
from detection.datasets.issues import Issue
from detection.datasets.layouts import SplitFiles
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.quoting import one_line

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
    """

    dataset: dict[str, Any]
    sources: Mapping[str, ImageSource]
    results: Mapping[str, SplitResult]
    issues: list[Issue]
    rules: Rules

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
    judge: Callable[[Sequence[Issue]], None] = lambda issues: None,
) -> Examination:
    """Reads every annotation and every image.

    Args:
        splits: the files of each split.
        data: `on_fault`, `max_pixels` and `label_map` are used.
        work: folder, seen by all workers, for what they need and find.
        records: folder that receives Split-<name>/ with the records; None: none are written.
        beam_args: `run.beam_args`, the options of the Beam pipelines that read the data.
        judge: sees the issues of the annotation files before any image is read, and
            may raise.

    Raises:
        DataError: an annotation file or a TFRecord file that cannot be read; a split
            without images.
    """
    policies = data.on_fault
    inputs = open_inputs(splits, policies, label_map=data.label_map, work=work, beam_args=beam_args)
    judge(inputs.issues)
    rules = _rules(inputs.dataset["categories"], policies, data.max_pixels)
    plans = write_plans(inputs.sources, rules, records=records, work=work)
    paths = [path for of_split in plans.values() for path in of_split]
    options = local_options(len(paths) * IMAGES_PER_SHARD)
    pipeline = make_pipeline(beam_args, options)
    with report_progress("reading images", pipeline.runner, _total(inputs), work) as counter, pipeline:
        (
            pipeline
            | "Plans" >> beam.Create(paths)
            | "Distribute" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, counter, threads=1 if options else None)
        )
    results = {name: read_results(of_split) for name, of_split in plans.items()}
    for name, issues in find_duplicates({name: result.seen for name, result in results.items()}, policies).items():
        results[name].issues += issues
    empty = _empty_categories(inputs, results, policies)
    return Examination(inputs.dataset, inputs.sources, results, inputs.issues + empty, rules)


def local_options(images: int) -> list[str]:
    """Returns Beam options for reading images on the cores of this machine; empty: threads do it."""
    cores = os.cpu_count() or 1
    if images * (cores - 1) < _PROCESSES_PAY:
        return []
    return ["--direct_running_mode=multi_processing", f"--direct_num_workers={cores}"]


def find_duplicates(seen: Mapping[str, Sequence[SeenImage]], policies: IssuePolicies) -> dict[str, list[Issue]]:
    """Finds images whose pixels are already in their split or in another split.

    The first copy is that of the lowest id in a split; across splits that of eval, with
    train last, so that dropping never makes an evaluation smaller.

    Args:
        seen: the images of each split.
        policies: policies of `image_duplicate` and `image_leak`.

    Returns:
        The issues of each split, in the order of image ids.
    """
    order = sorted(seen, key=lambda name: (name == TRAIN_SPLIT, name != EVAL_SPLIT, name))
    first: dict[str, tuple[str, SeenImage]] = {}
    issues: dict[str, list[Issue]] = {name: [] for name in seen}
    for split in order:
        for image in sorted(seen[split]):
            other_split, other = first.setdefault(image.digest, (split, image))
            if other == image and other_split == split:
                continue
            kind = "image_duplicate" if other_split == split else "image_leak"
            message = (
                f"the same pixels as {other_split}: {one_line(other.file_name)} (image {other.image_id}). "
                "Remove one of them, or join their annotations."
            )
            issues[split].append(
                Issue(kind, policies.of(kind), f"{split}: {one_line(image.file_name)}", image.image_id, None, message)
            )
    return issues


def _total(inputs: Inputs) -> int | None:
    totals = [source.total for source in inputs.sources.values()]
    return None if None in totals else sum(filter(None, totals))


def _rules(categories: Sequence[Entry], policies: IssuePolicies, max_pixels: int) -> Rules:
    return Rules(
        policies=policies,
        max_pixels=max_pixels,
        category_names={category["id"]: category["name"] for category in categories},
        keypoints={category["id"]: len(category["keypoints"]) for category in categories if category.get("keypoints")},
    )


def _empty_categories(inputs: Inputs, results: Mapping[str, SplitResult], policies: IssuePolicies) -> list[Issue]:
    instances: Counter[int] = Counter()
    for result in results.values():
        instances.update(result.summary.instances)
    first = next(iter(inputs.sources.values()))
    return [
        Issue(
            "category_empty",
            policies.category_empty,
            first.path,
            None,
            None,
            f"category {category['id']} ({one_line(category['name'])}) has no annotation. "
            "Add some, or remove the category.",
        )
        for category in inputs.dataset["categories"]
        if not instances[category["id"]]
    ]
