"""Reads a whole COCO data set on Beam: writes its records, and finds every issue."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.coco_example_gen.inputs import Inputs, open_inputs
from components.coco_example_gen.progress import told_progress
from components.coco_example_gen.repeats import find_repeats
from components.coco_example_gen.shards import IMAGES_PER_SHARD, SplitResult, read_results, write_plans, write_shard
from components.coco_example_gen.sources import Source
from components.coco_example_gen.workers import MakePipeline, local_options, make_local_pipeline
from detection.datasets.annotations import Entry
from detection.datasets.encode_record import Rules
from detection.datasets.issues import Issue, printable
from detection.datasets.layouts import SplitFiles
from schemas.config.issues import IssuePolicies


@dataclass(frozen=True)
class Examination:
    """What a data set holds.

    dataset: the contents of dataset.json but for the counts.
    sources: of each split.
    results: what became of each split; images that are there twice are still in it.
    issues: of the annotation files and of the whole data set; those of images are in
        `results`.
    """

    dataset: dict[str, Any]
    sources: Mapping[str, Source]
    results: Mapping[str, SplitResult]
    issues: list[Issue]

    @property
    def all_issues(self) -> list[Issue]:
        """Those of images as well."""
        return [*self.issues, *(issue for result in self.results.values() for issue in result.issues)]


def examine(
    splits: Mapping[str, SplitFiles],
    *,
    policies: IssuePolicies,
    max_pixels: int,
    work: Path,
    records: Path | None,
    make_pipeline: MakePipeline = make_local_pipeline,
    label_map: str | None = None,
    judge: Callable[[Sequence[Issue]], None] = lambda issues: None,
) -> Examination:
    """Reads every annotation and every image.

    Args:
        splits: the files of each split.
        policies: what is done about issues.
        max_pixels: images of more are refused before they are decoded.
        work: existing folder, seen by all workers, for what they need and find.
        records: folder that receives Split-<name>/ with the records; None: none are written.
        make_pipeline: of the Beam pipelines that read the data.
        label_map: categories of TFRecords, see `read_label_map`; None: those of the records.
        judge: sees the issues of the annotation files before any image is read, and
            may raise.

    Raises:
        DataError: an annotation file or a TFRecord file that cannot be read; a split
            without images.
    """
    inputs = open_inputs(splits, policies, label_map=label_map, work=work, make_pipeline=make_pipeline)
    judge(inputs.issues)
    rules = _rules(inputs.dataset["categories"], policies, max_pixels)
    plans = write_plans(inputs.sources, rules, records=records, work=work)
    paths = [path for parts in plans.values() for path in parts]
    options = local_options(len(paths) * IMAGES_PER_SHARD)
    with make_pipeline(options) as pipeline, told_progress(paths):
        (
            pipeline
            | "Plans" >> beam.Create(paths)
            | "Distribute" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard, threads=1 if options else None)
        )
    results = {name: read_results(parts) for name, parts in plans.items()}
    for name, found in find_repeats({name: result.seen for name, result in results.items()}, policies).items():
        results[name].issues += found
    empty = _empty_categories(inputs, results, policies)
    return Examination(inputs.dataset, inputs.sources, results, inputs.issues + empty)


def _rules(categories: Sequence[Entry], policies: IssuePolicies, max_pixels: int) -> Rules:
    return Rules(
        policies=policies,
        max_pixels=max_pixels,
        category_names={category["id"]: category["name"] for category in categories},
        keypoints={category["id"]: len(category["keypoints"]) for category in categories if category.get("keypoints")},
    )


def _empty_categories(inputs: Inputs, results: Mapping[str, SplitResult], policies: IssuePolicies) -> list[Issue]:
    found: Counter[int] = Counter()
    for result in results.values():
        found.update(result.summary.instances)
    first = next(iter(inputs.sources.values()))
    return [
        Issue(
            "category_empty",
            policies.category_empty,
            first.path,
            None,
            None,
            f"category {category['id']} ({printable(category['name'])}) has no annotation. "
            "Add some, or remove the category.",
        )
        for category in inputs.dataset["categories"]
        if not found[category["id"]]
    ]
