"""Reads a whole COCO data set on Beam: writes its records, and finds every fault."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.coco_example_gen.repeats import find_repeats
from components.coco_example_gen.shards import SplitResult, index_splits, read_results, write_plans, write_shard
from detection.coco.annotations import AnnotationFile, Entry, merge_categories
from detection.coco.faults import Fault
from detection.coco.layouts import SplitFiles
from detection.data.records import Rules
from schemas.faults import FaultPolicies


@dataclass(frozen=True)
class Examination:
    """What a data set holds.

    dataset: the contents of dataset.json.
    files: the annotation file of each split.
    results: what became of each split; images that are there twice are still in it.
    faults: of the annotation files and of the whole data set; those of images are in
        `results`.
    """

    dataset: dict[str, Any]
    files: Mapping[str, AnnotationFile]
    results: Mapping[str, SplitResult]
    faults: list[Fault]

    @property
    def all_faults(self) -> list[Fault]:
        """Those of images as well."""
        return [*self.faults, *(fault for result in self.results.values() for fault in result.faults)]


def examine(
    splits: Mapping[str, SplitFiles],
    *,
    policies: FaultPolicies,
    max_pixels: int,
    work: Path,
    records: Path | None,
    make_pipeline: Callable[[], beam.Pipeline],
    judge: Callable[[Sequence[Fault]], None] = lambda faults: None,
) -> Examination:
    """Reads every annotation and every image.

    Args:
        splits: the files of each split.
        policies: what is done about faults.
        max_pixels: images of more are refused before they are decoded.
        work: existing folder, seen by all workers, for what they need and find.
        records: folder that receives Split-<name>/ with the records; None: none are written.
        make_pipeline: of the Beam pipeline that reads the images.
        judge: sees the faults of the annotation files before any image is read, and
            may raise.

    Raises:
        DataError: an annotation file that cannot be read; a split without images.
    """
    files = index_splits(splits, policies)
    dataset = _describe(list(files.values()))
    faults = [fault for file in {file.path: file for file in files.values()}.values() for fault in file.faults]
    judge(faults)
    rules = _rules(dataset["categories"], policies, max_pixels)
    plans = write_plans(splits, files, rules, records=records, work=work)
    with make_pipeline() as pipeline:
        (
            pipeline
            | "Plans" >> beam.Create([path for paths in plans.values() for path in paths])
            | "Distribute" >> beam.Reshuffle()
            | "WriteShard" >> beam.Map(write_shard)
        )
    results = {name: read_results(paths) for name, paths in plans.items()}
    for name, found in find_repeats({name: result.seen for name, result in results.items()}, policies).items():
        results[name].faults += found
    faults += _empty_categories(dataset["categories"], list(files.values()), results, policies)
    return Examination(dataset, files, results, faults)


def _describe(files: Sequence[AnnotationFile]) -> dict[str, Any]:
    """The contents of dataset.json: the first file's info, all licences, all categories."""
    licenses: list[Entry] = []
    for file in files:
        licenses += [entry for entry in file.licenses if entry not in licenses]
    categories = merge_categories((file.path, file.categories) for file in files)
    return {"info": files[0].info, "licenses": licenses, "categories": categories}


def _rules(categories: Sequence[Entry], policies: FaultPolicies, max_pixels: int) -> Rules:
    return Rules(
        policies=policies,
        max_pixels=max_pixels,
        category_names={category["id"]: category["name"] for category in categories},
        keypoints={category["id"]: len(category["keypoints"]) for category in categories if category.get("keypoints")},
    )


def _empty_categories(
    categories: Sequence[Entry],
    files: Sequence[AnnotationFile],
    results: Mapping[str, SplitResult],
    policies: FaultPolicies,
) -> list[Fault]:
    found: Counter[int] = Counter()
    for result in results.values():
        found.update(result.summary.instances)
    return [
        Fault(
            "category_empty",
            policies.category_empty,
            files[0].path,
            None,
            None,
            f"category {category['id']} ({category['name']}) has no annotation. Add some, or remove the category.",
        )
        for category in categories
        if not found[category["id"]]
    ]
