"""Opens the sources of a data set, and describes it."""

import logging
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam

from components.beam.pipelines import make_pipeline
from components.coco_example_gen.sources import CocoSource, ImageSource, RecordSource, copy_for_workers
from detection.datasets.annotations.annotation_file import AnnotationFile, index_annotations, merge_categories
from detection.datasets.examples import require_all_images
from detection.datasets.importers.label_map import dataset_files_beside, read_dataset_head, read_label_map
from detection.datasets.importers.merging import Survey, merge_surveys, survey_report
from detection.datasets.importers.survey import ShardSurvey, survey_shard
from detection.datasets.issues import Issue, limited, make_issue
from detection.datasets.readers.converted import as_coco
from detection.datasets.readers.folder import Fault
from detection.datasets.splits import SplitFiles
from detection.storage import paths
from detection.storage.atomic import write_bytes
from detection.storage.files import read_many
from detection.storage.json_files import serialize
from detection.storage.tfrecord import find_shards
from schemas.artifacts import ROOT_CATEGORIES
from schemas.config.issues import IssuePolicies
from schemas.errors import ConfigError, DataError

log = logging.getLogger("cocoflow.example_gen")


@dataclass(frozen=True)
class Inputs:
    """The sources of a data set, indexed.

    sources: of each split.
    dataset: content of dataset.json: the first file's info, all licences, all
        categories.
    issues: of the annotation files.
    notes: remarks on the data set for the user.
    reasons: why repairs stop a run.
    """

    sources: dict[str, ImageSource]
    dataset: dict[str, Any]
    issues: list[Issue]
    notes: list[str]
    reasons: list[str]


def open_inputs(
    splits: Mapping[str, SplitFiles],
    policies: IssuePolicies,
    *,
    label_map: str | None,
    work: str | Path,
    beam_args: Sequence[str],
) -> Inputs:
    """Indexes annotation files, each once, and surveys TFRecords.

    Args:
        splits: the files of each split.
        policies: what is done about issues, for those found here.
        label_map: categories of TFRecords; None: those of the records.
        work: folder, seen by all workers.
        beam_args: `run.beam_args`, the options of the Beam pipeline that surveys TFRecords.

    Raises:
        ConfigError: a label map, but no TFRecords.
        DataError: a file that cannot be read; categories that contradict each other.
    """
    if label_map is not None and all(files.images is not None for files in splits.values()):
        raise ConfigError(
            f"data.label_map = {label_map}: annotation files have their own categories, so it would do nothing. "
            "Remove it, or add --set data.label_map=null; it is for TFRecords."
        )
    forms = {name: as_coco(files) for name, files in splits.items() if files.images is not None}
    indexed: dict[tuple[str, str | None], AnnotationFile] = {}
    issues: list[Issue] = []
    reasons: list[str] = []
    for name, (files, faults) in forms.items():
        key = (files.annotations, files.keypoints)
        if key not in indexed:
            indexed[key] = index_annotations(*key, policies=policies, shown=splits[name].annotations, group=files.group)
            file = indexed[key]
            found = [*file.issues, *(_issue_of(*fault, policies) for fault in faults)]
            left_out = Counter(issue.repaired for issue in found)
            found, why = limited(
                found,
                file.path,
                images=len(file.images) + left_out["image"],
                annotations=len(file) + left_out["annotation"],
            )
            if found and not file.images:
                raise DataError(f"{found[0].where}: {found[0].message} No image of the file can be used.")
            issues += found
            reasons += why
    of_splits = (forms[name].files if name in forms else files for name, files in splits.items())
    notes = dict.fromkeys(note for files in of_splits for note in files.notes)
    shards = {name: find_shards(files.annotations) for name, files in splits.items() if files.images is None}
    heads: list[tuple[str, dict[str, Any]]] = [
        (file.path, {"info": file.info, "licenses": file.licenses, "categories": file.categories, "roots": file.roots})
        for file in indexed.values()
    ]
    survey_file = paths.join(work, "survey.pickle")
    if shards:
        survey, records, head = _survey(
            list(dict.fromkeys(path for paths in shards.values() for path in paths)), label_map, work, beam_args
        )
        for paths_of_split in shards.values():
            require_all_images(paths.parent(paths_of_split[0]), sum(records[shard] for shard in paths_of_split))
        write_bytes(survey_file, pickle.dumps(survey), durable=False)
        heads.append((next(iter(shards.values()))[0], {**head, "categories": survey.categories}))
    sources: dict[str, ImageSource] = {
        name: RecordSource(files, {shard: records[shard] for shard in shards[name]}, survey_file)
        if name in shards
        else _coco_source(files, forms[name].files, indexed, work)
        for name, files in splits.items()
    }
    return Inputs(sources, _describe(heads), issues, list(notes), reasons)


def _issue_of(image_id: int, fault: Fault, policies: IssuePolicies) -> Issue:
    message = f"{fault.message}."
    return make_issue(
        policies, fault.kind, message, fault.where, image_id=image_id, fixable=False, concerns="annotation"
    )


def _coco_source(
    given: SplitFiles, files: SplitFiles, indexed: Mapping[tuple[str, str | None], AnnotationFile], work: str | Path
) -> CocoSource:
    """Makes the source of a split; a COCO file that this process has made is copied to where workers read it."""
    source = indexed[files.annotations, files.keypoints]
    if files.annotations != given.annotations:
        files = replace(files, annotations=copy_for_workers(files.annotations, work))
    return CocoSource(files, source)


def _survey(
    shards: Sequence[str], label_map: str | None, work: str | Path, beam_args: Sequence[str]
) -> tuple[Survey, dict[str, int], dict[str, Any]]:
    """Surveys all records; returns the survey, the number of records per shard, and the head of dataset.json."""
    names = [f"survey-{number:05d}.pickle" for number in range(len(shards))]
    answers = [paths.join(work, name) for name in names]
    with make_pipeline(beam_args) as pipeline:
        (
            pipeline
            | "Shards" >> beam.Create(list(zip(shards, answers, strict=True)))
            | "DistributeShards" >> beam.Reshuffle()
            | "SurveyShard" >> beam.MapTuple(_write_survey)
        )
    surveys: list[ShardSurvey] = [pickle.loads(content) for content in read_many(work, names)]
    beside = next(iter(dataset_files_beside(shards[0])), None)
    named = label_map or beside
    survey = merge_surveys(surveys, label_map=None if named is None else read_label_map(named))
    for line in survey_report(survey).splitlines():
        log.info("%s", line)
    records = {of_shard.path: of_shard.records for of_shard in surveys}
    return survey, records, {"info": {}, "licenses": []} if beside is None else read_dataset_head(beside)


def _write_survey(shard: str, answer: str) -> None:
    write_bytes(answer, pickle.dumps(survey_shard(shard)), durable=False)


def _describe(heads: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    if not heads:
        raise DataError("the data set has no split. Name its files.")
    licenses: dict[bytes, Any] = {}
    for _, head in heads:
        for entry in head["licenses"]:
            licenses.setdefault(serialize(entry), entry)
    categories = merge_categories((path, head["categories"]) for path, head in heads)
    # The root of a tree in one file may be a class in another.
    classes = {category["id"] for category in categories}
    roots = merge_categories((path, head.get("roots", [])) for path, head in heads)
    unused = [root for root in roots if root["id"] not in classes]
    return {"info": heads[0][1]["info"], "licenses": list(licenses.values()), "categories": categories} | (
        {ROOT_CATEGORIES: unused} if unused else {}
    )
