"""From sources to TFRecord shards, each written by a worker of its own.

A plan file has what a worker needs, a result file beside it what the worker found; only paths travel through Beam.
The plans depend on nothing but the data, so equal data gives equal bytes, however many workers there are.
"""

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from components.beam.progress import ImageCounter
from components.coco_example_gen.sources import CocoPlan, ImageSource, PlannedImage, RecordPlan
from detection.datasets.annotations.entries import Entry
from detection.datasets.encode_record import Record, Rules, make_record
from detection.datasets.groups import group_of
from detection.datasets.issues import Issue
from detection.datasets.sampling import key_hash
from detection.datasets.statistics import SplitSummary
from detection.storage import files, paths
from detection.storage.atomic import new_path, write_bytes, write_many
from detection.storage.files import count_readers, read_bytes, read_many
from schemas.artifacts import split_dir

IMAGES_PER_SHARD = 256
RESULT = ".result"
CANDIDATES = 64  # images of a split, from which the data report chooses


class ShardPlan(NamedTuple):
    """The content of one shard, for the worker that writes it.

    split: name of the split.
    images: the images.
    rules: of the data set.
    records: file of the shard; None: no records are written.
    """

    split: str
    images: CocoPlan | RecordPlan
    rules: Rules
    records: str | None


class SeenImage(NamedTuple):
    """A written image, with what shows that it is a copy of another.

    digest: of its pixels.
    group: name of its group.
    thumbnail: see `detection.images.likeness`.
    """

    image_id: int
    file_name: str
    digest: str
    group: str
    thumbnail: bytes


class Candidate(NamedTuple):
    """An image with annotations that the data report may show.

    order: hash of the image id; the lowest of a split are a random sample that does not depend on the shards.
    image_id: COCO's id.
    category_ids: categories of its annotations, ascending.
    """

    order: int
    image_id: int
    category_ids: list[int]


@dataclass
class SplitResult:
    """Counts and issues of one split, or of one shard of it.

    images: written.
    annotations: written.
    issues: found, in the order of the records.
    seen: the images written.
    summary: of the images written.
    candidates: the CANDIDATES first in their order.
    """

    images: int = 0
    annotations: int = 0
    issues: list[Issue] = field(default_factory=list)
    seen: list[SeenImage] = field(default_factory=list)
    summary: SplitSummary = field(default_factory=SplitSummary)
    candidates: list[Candidate] = field(default_factory=list)

    def add(self, entry: Mapping[str, Any], record: Record, group: str) -> None:
        """Counts one image."""
        self.issues += record.issues
        if record.file is not None:
            self.images += 1
            self.annotations += len(record.annotations)
            self.seen.append(
                SeenImage(entry["id"], entry["file_name"], record.file.digest, group, record.file.thumbnail)
            )
            self.summary.add(
                record.annotations,
                width=record.file.width,
                height=record.file.height,
                image_format=record.file.format,
                color_mode=record.file.mode,
            )
            category_ids = sorted({annotation["category_id"] for annotation in record.annotations})
            if category_ids:
                self._add_candidates([Candidate(key_hash(str(entry["id"])), entry["id"], category_ids)])

    def merge(self, other: "SplitResult") -> None:
        """Adds what became of other images."""
        self.images += other.images
        self.annotations += other.annotations
        self.issues += other.issues
        self.seen += other.seen
        self.summary = self.summary.merge(other.summary)
        self._add_candidates(other.candidates)

    def _add_candidates(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = sorted([*self.candidates, *candidates])[:CANDIDATES]


def write_plans(
    sources: Mapping[str, ImageSource], rules: Rules, *, records: str | Path | None, work: str | Path
) -> dict[str, list[str]]:
    """Divides every split into shards.

    Args:
        sources: of the splits.
        rules: of the data set.
        records: folder of the artifact, the shards go to `Split-<name>/` in it; None: none
            are written.
        work: folder for the plans.

    Returns:
        The plan files of every split.

    Raises:
        DataError: a split without images.
    """
    plans: dict[str, list[str]] = {}
    for name, source in sources.items():
        partitions: Sequence[CocoPlan | RecordPlan] = source.plans(name, IMAGES_PER_SHARD)
        folder = None if records is None else paths.join(records, split_dir(name))
        if folder is not None:
            files.make_folder(folder)
        shards = [f"data_tfrecord-{number:05d}-of-{len(partitions):05d}" for number in range(len(partitions))]
        contents = (
            ShardPlan(name, partition, rules, folder and paths.join(folder, shard))
            for partition, shard in zip(partitions, shards, strict=True)
        )
        names = [f"{name}-{shard}.plan" for shard in shards]
        write_many(work, zip(names, map(pickle.dumps, contents), strict=True))
        plans[name] = [paths.join(work, plan) for plan in names]
    return plans


def write_shard(plan_path: str, counter: ImageCounter, threads: int | None = None) -> None:
    """Writes the shard that a plan describes, if any, and what was found beside the plan.

    May run several times for one plan, as Beam does after a failure: the shard
    appears complete or not at all.

    Args:
        plan_path: from `write_plans`.
        counter: counts the images of the plan, dropped ones included.
        threads: that decode; None: as many as there are cores.  Remote images are read by more.
    """
    plan: ShardPlan = pickle.loads(read_bytes(plan_path))
    result = SplitResult()
    with contextlib.ExitStack() as stack:
        writer = None
        if plan.records is not None:
            # TFX reads every file of the split's folder, unfinished ones as well.
            beside = paths.parent(plan_path)
            unfinished = stack.enter_context(new_path(plan.records, beside=beside, durable=False))
            writer = stack.enter_context(tf.io.TFRecordWriter(str(unfinished)))
        for entry, record in _records(
            plan, count_readers(plan.images.files.images or "", threads or os.cpu_count() or 1)
        ):
            result.add(entry, record, group_of(entry, plan.images.files.group))
            counter.add()
            if record.example is not None and writer is not None:
                writer.write(record.example.SerializeToString(deterministic=True))
    write_bytes(plan_path + RESULT, pickle.dumps(result), durable=False)


def read_results(plans: Sequence[str]) -> SplitResult:
    """Merges the results of `write_shard` for the shards of one split, whose plans are in one folder."""
    merged = SplitResult()
    for content in read_many(paths.parent(plans[0]), (paths.name_of(plan) + RESULT for plan in plans)):
        merged.merge(pickle.loads(content))
    return merged


def _records(plan: ShardPlan, threads: int) -> Iterator[tuple[Entry, Record]]:
    """Makes the records of a plan, in its order, on several threads: decoding releases Python's lock."""
    waiting: deque[tuple[PlannedImage, Future[Record]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for image in plan.images.images(plan.rules):
            if not image.accepted:
                yield image.entry, Record(None, None, [], image.issues)
                continue
            job = partial(
                make_record, image.entry, image.annotations, read=image.read, split=plan.split, rules=plan.rules
            )
            waiting.append((image, pool.submit(job)))
            if len(waiting) > 2 * threads:
                yield _finished(waiting)
        while waiting:
            yield _finished(waiting)


def _finished(waiting: deque[tuple[PlannedImage, Future[Record]]]) -> tuple[Entry, Record]:
    image, job = waiting.popleft()
    record = job.result()
    return image.entry, record._replace(issues=[*image.issues, *record.issues])
