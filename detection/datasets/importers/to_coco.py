"""`to-coco`: converts records, ours or of other tools, to COCO files and images."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from detection.datasets.annotations.coco_writer import CocoWriter
from detection.datasets.examples import require_all_images
from detection.datasets.importers.images import ImportedImage, read_images, read_own_images
from detection.datasets.importers.label_map import LabelMap, dataset_files_beside, read_dataset_head, read_label_map
from detection.datasets.importers.merging import merge_surveys, survey_report
from detection.datasets.importers.source_format import COCOFLOW, parse_record
from detection.datasets.importers.survey import survey_shard
from detection.storage import files, paths
from detection.storage.atomic import new_directory
from detection.storage.tfrecord import find_shards, read_shard
from schemas import features
from schemas.artifacts import DATASET_JSON, ROOT_CATEGORIES, split_dir
from schemas.errors import ConfigError, DataError

ONLY_SPLIT = ""  # name of the split if there are no Split-<name> folders


class _DataSet(NamedTuple):
    """A readable data set.

    head: members at the start of the COCO file.
    report: lines about the records; "" for ours.
    read: reads the images of a shard.
    """

    head: dict[str, Any]
    report: str
    read: Callable[[str], Iterator[ImportedImage]]


def export_coco(
    *,
    examples: str | Path,
    output: str | Path,
    split: str | None = None,
    images: str | Path | None = None,
    label_map: str | Path | None = None,
    console: Console,
) -> list[str]:
    """Writes a COCO file per split.

    Entries of Cocoflow's own records are written unchanged, sorted by id; entries for records of
    other tools are computed from their features.

    Args:
        examples: folder of an Examples artifact; or a folder, file or pattern of TFRecords.
        output: COCO file; for several splits, one file `<stem>_<split>` each.
        split: write only this split; None: all.
        images: new folder for the encoded image files, by their `file_name`.
        label_map: label map or COCO file with the categories; None: take them from
            dataset.json, or from the records.
        console: console for the progress.

    Returns:
        Lines for the user: the report about records of other tools, and the written files.

    Raises:
        ConfigError: no such split.
        DataError: records cannot be read, or files cannot be written.
    """
    if images is not None:
        _check_image_folder(images, output)
    splits = _find_splits(examples)
    chosen = _choose(splits, split, examples)
    source = _open_source(splits, examples, label_map, console)
    outputs = _output_paths(output, list(chosen))
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(CocoWriter(path)) for name, path in outputs.items()}
        # COCO files appear after the images that they name.
        with contextlib.nullcontext() if images is None else new_directory(images) as folder:
            pictures = None if folder is None else _ImageFolder(folder)
            for name, shards in chosen.items():
                for shard in _with_progress(shards, f"reading {name}", console):
                    _copy(source.read(shard), writers[name], pictures)
                require_all_images(paths.parent(shards[0]), writers[name].images)
        head = dict(source.head)
        head["categories"] = [*head.pop(ROOT_CATEGORIES, []), *head["categories"]]
        for writer in writers.values():
            writer.finish(head)
    lines = [source.report] if source.report else []
    for name, writer in writers.items():
        lines.append(f"{outputs[name]}: {writer.images:,} images, {writer.annotations:,} annotations")
    if images is not None:
        lines.append(f"{images}: {sum(writer.images for writer in writers.values())} image files")
    return lines


def _with_progress(shards: Sequence[str], description: str, console: Console) -> Iterable[str]:
    return track(shards, description, console=console, transient=True, disable=not console.is_terminal)


def _copy(images: Iterable[ImportedImage], writer: CocoWriter, pictures: "_ImageFolder | None") -> None:
    for image in images:
        writer.add(image.entry, image.annotations, where=image.where)
        if pictures is not None:
            pictures.write(image)


def _output_paths(output: str | Path, names: Sequence[str]) -> dict[str, str | Path]:
    """Returns the COCO file of each split."""
    if len(names) == 1:
        return {names[0]: output}
    stem, suffix = paths.stem(output), paths.suffix(output)
    return {name: paths.with_name(output, f"{stem}_{name}{suffix}") for name in names}


def _check_image_folder(images: str | Path, output: str | Path) -> None:
    if files.resolve(output).startswith(f"{files.resolve(images)}/"):
        raise ConfigError(f"--output {output} is in --images {images}, a folder of images only. Choose another path.")
    folder = paths.absolute(images)
    if files.exists(folder) and (not files.is_dir(folder) or files.list_folder(folder)):
        raise DataError(f"{images}: --images requires a new or empty folder. Choose another, or remove this one.")


def _find_splits(examples: str | Path) -> dict[str, list[str]]:
    """Returns the shards of each split."""
    prefix = split_dir("")
    folders = [folder.rstrip("/") for folder in files.glob(paths.join(paths.escape(examples), f"{prefix}*") + "/")]
    if not folders:
        return {ONLY_SPLIT: find_shards(examples)}
    return {paths.name_of(folder).removeprefix(prefix): find_shards(folder) for folder in folders}


def _choose(splits: dict[str, list[str]], split: str | None, examples: str | Path) -> dict[str, list[str]]:
    if split is None:
        return splits
    if split not in splits or split == ONLY_SPLIT:
        available = ", ".join(name for name in splits if name) or f"none, as there are no {split_dir('<name>')} folders"
        raise ConfigError(f"--split {split}: no such split in {examples}; splits: {available}.")
    return {split: splits[split]}


def _open_source(
    splits: dict[str, list[str]], examples: str | Path, label_map: str | Path | None, console: Console
) -> _DataSet:
    shards = [shard for paths in splits.values() for shard in paths]
    beside = _dataset_file(examples, shards)
    named = beside if label_map is None else label_map
    labels = None if named is None else read_label_map(named)
    head: dict[str, Any] = {"info": {}, "licenses": []} if beside is None else read_dataset_head(beside)
    if labels is not None and _is_ours(shards):
        ids = {category["id"] for category in labels.categories}
        return _DataSet(head | {"categories": labels.categories}, "", lambda shard: read_own_images(shard, ids))
    return _survey(shards, head, labels, console)


def _survey(shards: Sequence[str], head: dict[str, Any], labels: LabelMap | None, console: Console) -> _DataSet:
    tracked = _with_progress(shards, "surveying the records", console)
    survey = merge_surveys([survey_shard(shard) for shard in tracked], label_map=labels)
    report = "" if survey.source_format == COCOFLOW else survey_report(survey)
    return _DataSet(head | {"categories": survey.categories}, report, lambda shard: read_images(shard, survey))


def _dataset_file(examples: str | Path, shards: Iterable[str]) -> str | None:
    """Finds the dataset.json of the artifact that contains the shards."""
    root = paths.join(examples, DATASET_JSON)
    beside = chain.from_iterable(map(dataset_files_beside, shards))
    return next(chain([root] if files.is_file(root) else [], beside), None)


def _is_ours(shards: Iterable[str]) -> bool:
    """Returns whether the first record has our packed entries; True if there are no records."""
    for shard in shards:
        for data in read_shard(shard):
            return features.COCO in parse_record(data, shard)
    return True


class _ImageFolder:
    """Writes image files by name, each name once.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[str, bytes] = {}

    def write(self, image: ImportedImage) -> None:
        """Writes an image's encoded bytes to its `file_name`.

        Raises:
            DataError: the name is outside of the folder, is the name of another image, or cannot
                be written.
        """
        name = image.entry.get("file_name")
        if not isinstance(name, str) or not _is_safe(name):
            raise DataError(
                f"{image.where}: file_name {name!r} is outside of the folder of images, or not a file name. "
                "Run without --images, or correct the records."
            )
        digest = hashlib.sha256(image.encoded).digest()
        path = PurePosixPath(name)
        if self._digests.setdefault(str(path), digest) != digest:
            raise DataError(
                f"{image.where}: file_name {name!r} is also the name of another image. "
                "Write the images of one split at a time with --split, or run without --images."
            )
        destination = self._folder / path
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            destination.write_bytes(image.encoded)
        except OSError as error:
            raise DataError(f"{image.where}: cannot write the image {name!r}: {error.strerror}.") from None


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
