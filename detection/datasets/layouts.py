"""Layouts of data sets: finds out what a folder is, and the files of each split."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

from detection.datasets.annotations.annotation_file import scan_file_names
from detection.datasets.readers import converted
from detection.datasets.readers.coco_files import find_coco
from detection.datasets.readers.folder import SPLIT_NAMES, Folder, some, split_named
from detection.datasets.readers.unknown import refusal
from detection.datasets.splits import WHOLE, Division, SplitFiles
from detection.images.files import image_path
from detection.storage import files, paths
from detection.storage.file_system import UNFINISHED_MARKER
from detection.storage.files import count_readers
from detection.storage.tfrecord import require_all_shards
from schemas.artifacts import DATASET_JSON, EVAL_SPLIT, TRAIN_SPLIT, split_dir
from schemas.errors import DataError

_INSTANCES = re.compile(r"instances_(?P<token>(?P<name>[A-Za-z][\w.-]*?)(?:[12]\d{3})?)\.json")
_PERSON_KEYPOINTS = re.compile(_INSTANCES.pattern.replace("instances", "person_keypoints"))
_KEYPOINTS = "person_keypoints_{token}.json"
_RECORDS = re.compile(r"\.(tf)?records?\b")
_SHARD_NUMBERS = re.compile(r"-\d{5}-of-\d{5}")
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_RENAMED = {**SPLIT_NAMES, "default": TRAIN_SPLIT}
EXAMPLES_WORK = ".work"  # folder of plans and results in Examples during writing
_LOOKED_AT = 20  # file names to try in the search for an image folder
_MOST_FOLDERS = 200  # that are searched for a data set


def find_splits(root: str | Path, division: Division = WHOLE, *, corners: str = "auto") -> dict[str, SplitFiles]:
    """Finds out the format of a data set, and the files of its splits.

    A file named `val` or `valid` becomes the split `eval`, and so does `test` beside `train` alone, as tutorials use
    it.  A data set below other folders is found if it is the only one.

    Args:
        root: the data set's folder.
        division: rules for dividing files into splits.
        corners: `data.voc_corners`.

    Raises:
        ConfigError: the division does not fit the files.
        DataError: no such folder, no known format, several data sets, or two files for one split.
    """
    root = paths.normalized(root)
    if not files.is_dir(root):
        what = "a file, not a data set folder" if files.exists(root) else "no such data set folder"
        raise DataError(f"{root}: {what}. Check --data or data.root.")
    splits = _coco(root) or _recognised(Folder(root, corners)) or _below(root, corners)
    if splits.keys() == {TRAIN_SPLIT, "test"}:
        notes = (*splits[TRAIN_SPLIT].notes, "test serves as eval, since there is no val")
        splits = {TRAIN_SPLIT: replace(splits[TRAIN_SPLIT], notes=notes), EVAL_SPLIT: splits["test"]}
    return division.apply(splits)


def _coco(root: str) -> dict[str, SplitFiles]:
    """Finds the splits of a COCO data set with COCO's names of files, or of TFRecords."""
    annotations = paths.join(root, "annotations")
    layouts = (
        _annotated(root, annotations, _INSTANCES),
        _annotated(root, root, _INSTANCES),
        _annotated(root, annotations, _PERSON_KEYPOINTS),
        _annotated(root, root, _PERSON_KEYPOINTS),
        _records(root),
    )
    for candidates in layouts:
        splits: dict[str, SplitFiles] = {}
        found = list(candidates)
        both = any(name.lower() == TRAIN_SPLIT for name, _ in found)  # then trainval is the sum of others
        for name, of_split in found:
            if not (both and name.lower() == "trainval"):
                _add(splits, name, of_split)
        if splits:
            return _described(splits, root)
    return {}


def _described(splits: Mapping[str, SplitFiles], root: str, *notes: str) -> dict[str, SplitFiles]:
    """Adds the notes of a data set: its format and its files, then `notes`."""
    of_splits = splits.values()
    kind = "COCO" if any(of_split.images for of_split in of_splits) else "TFRecords"
    title = f"{kind} ({some([paths.relative(of_split.annotations, root) for of_split in of_splits])})"
    return {name: replace(of_split, notes=(title, *notes)) for name, of_split in splits.items()}


def _recognised(folder: Folder) -> dict[str, SplitFiles]:
    """Finds the splits of COCO files with other names, or of a data set that a reader knows; {} if there are none."""
    splits: dict[str, SplitFiles] = {}
    found, notes = find_coco(folder)
    for name, file in found.items():
        path = paths.join(folder.root, file)
        place = paths.parent(path)
        words = (word for word, split in SPLIT_NAMES.items() if split == name)
        images = _image_folder(folder.root, path, (paths.name_of(place), paths.stem(file), *words))
        _add(splits, name, SplitFiles(path, images, root=folder.root))
    if splits:
        return _described(splits, folder.root, *notes)
    if known := converted.recognise(folder):
        reader, data = known
        notes = [data.title]
        for name, of in data.splits.items():
            if name != TRAIN_SPLIT and set(of) == set(data.splits.get(TRAIN_SPLIT, ())):
                notes.append(f"{name} and train are the same images: divided as a data set without {name}")
                continue
            file = paths.join(folder.root, data.file)
            of_split = SplitFiles(file, folder.root, root=folder.root, reader=reader, part=name, corners=folder.corners)
            _add(splits, name, replace(of_split, anywhere=folder.anywhere))
    return {name: replace(of_split, notes=tuple(notes)) for name, of_split in splits.items()}


def _below(root: str, corners: str) -> dict[str, SplitFiles]:
    """Finds the only data set below a folder that is not itself a data set.

    Raises:
        DataError: no data set, or several.
    """
    folder = Folder(root, corners)
    found: dict[str, dict[str, SplitFiles]] = {}
    lacking: list[DataError] = []
    for place in folder.folders_with_labels()[:_MOST_FOLDERS]:
        if not any(place == known or place.startswith(f"{known}/") for known in found):
            path = paths.join(root, place)
            try:
                if splits := _coco(path) or _recognised(folder.below_folder(place)):
                    found[place] = splits
            except DataError as error:  # a part of a data set, or one that lacks a part
                lacking.append(error)
    if len(found) > 1:
        first = "".join(f"\n  --data {paths.join(root, place)}" for place in list(found)[:3])
        more = f"\n  and {len(found) - 3} more" if len(found) > 3 else ""
        raise DataError(f"{root}: {len(found)} data sets are below this folder. Choose one:{first}{more}")
    if found:
        [(place, splits)] = found.items()
        note = f"found in {place}/, the one data set below {root}"
        return {name: replace(of_split, notes=(*of_split.notes, note)) for name, of_split in splits.items()}
    if splits := _recognised(Folder(root, corners, anywhere=True)):
        return splits
    raise lacking[0] if lacking else refusal(folder)


def given_splits(sources: Mapping[str, tuple[str, str | None]], division: Division = WHOLE) -> dict[str, SplitFiles]:
    """Checks the splits that the user specifies.

    Args:
        sources: split name -> (annotation file, image folder), or (file, folder or
            pattern of TFRecords, None).
        division: rules for dividing files into splits.

    Raises:
        ConfigError: the division does not fit the files.
        DataError: a missing file or folder, a name that is not valid for a folder, two names
            for one split.
    """
    splits: dict[str, SplitFiles] = {}
    for name, (annotations, images) in sources.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise DataError(f"data.splits.{name}: the name of a split may have letters, digits, '_', '-' and '.'.")
        if images is None:
            _add(splits, name, SplitFiles(annotations, None))
            continue
        if not files.is_file(annotations):
            raise DataError(f"{annotations}: no such annotation file. Check data.splits.{name}.annotations.")
        if not files.is_dir(images):
            raise DataError(f"{images}: no such image folder. Check data.splits.{name}.images.")
        _add(splits, name, SplitFiles(str(annotations), str(images), _keypoints_beside(str(annotations))))
    return division.apply(splits)


def _annotated(root: str, folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, SplitFiles]]:
    for name in files.list_files(folder):
        match = pattern.fullmatch(name)
        if match:
            file = paths.join(folder, name)
            images = _image_folder(root, file, (match["token"], match["name"]))
            yield match["name"], SplitFiles(file, images, _keypoints_beside(file), root=root)


def _records(root: str) -> Iterator[tuple[str, SplitFiles]]:
    """Finds shards of an Examples artifact, or of other tools; the split is in the name of the file or folder."""
    pattern = paths.escape(root)
    folders = _sorted(folder.rstrip("/") for folder in files.glob(paths.join(pattern, f"{split_dir('')}*") + "/"))
    if folders:
        _require_complete(root)
    for folder in folders:
        yield paths.name_of(folder).removeprefix(split_dir("")), SplitFiles(folder, None)
    if folders:
        return
    matched = [path for names in (["*"], ["*", "*"]) for path in _sorted(files.glob(paths.join(pattern, *names)))]
    records = [path for path in matched if _RECORDS.search(paths.name_of(path))]
    require_all_shards(records)
    patterns = {
        paths.join(paths.parent(path), _SHARD_NUMBERS.sub("-*-of-*", paths.name_of(path))): path for path in records
    }
    for shards, file in patterns.items():
        yield split_named(paths.relative(file, root)) or TRAIN_SPLIT, SplitFiles(shards, None)


def _require_complete(root: str) -> None:
    """Refuses incomplete Examples, whose writer failed or is still running: shards may be missing."""
    unfinished = any(files.exists(paths.join(root, name)) for name in (EXAMPLES_WORK, UNFINISHED_MARKER))
    if unfinished and not files.is_file(paths.join(root, DATASET_JSON)):
        raise DataError(
            f"{root}: incomplete examples: no {DATASET_JSON}. Their writer failed or is still running; "
            "wait for it, or write them again."
        )


def _sorted(matched: Iterable[str]) -> list[str]:
    """Sorts paths by their names, folder by folder."""
    return sorted(matched, key=lambda path: path.split("/"))


def _keypoints_beside(file: str) -> str | None:
    match = _INSTANCES.fullmatch(paths.name_of(file))
    if match is None:
        return None
    keypoints = paths.join(paths.parent(file), _KEYPOINTS.format(token=match["token"]))
    return keypoints if files.is_file(keypoints) else None


def _image_folder(root: str, annotations: str, tokens: tuple[str, ...]) -> str:
    """Returns the folder with most of the file's first images; if it finds none, the likeliest existing folder."""
    parents = (root, paths.join(root, "images"))
    candidates = [paths.join(parent, token) for token in tokens for parent in parents]
    beside = paths.parent(annotations)
    candidates += [paths.join(root, "images"), root, beside, paths.join(beside, "images"), paths.join(root, "data")]
    existing = [folder for folder in dict.fromkeys(candidates) if files.is_dir(folder)]
    names = list(islice(scan_file_names(annotations), _LOOKED_AT))
    return max(existing, key=lambda folder: _present(folder, names))


def _present(folder: str, names: Sequence[str]) -> int:
    """Counts the names that are files in a folder."""
    with ThreadPoolExecutor(count_readers(folder)) as pool:
        return sum(pool.map(lambda name: _is_image(folder, name), names))


def _is_image(folder: str, name: str) -> bool:
    with contextlib.suppress(ValueError):
        path = image_path(folder, name)
        return path is not None and files.is_file(path)
    return False


def _add(splits: dict[str, SplitFiles], name: str, files: SplitFiles) -> None:
    name = _RENAMED.get(name.lower(), name)
    if name in splits:
        raise DataError(
            f"{splits[name].annotations} and {files.annotations} are both the split {name}. Keep one, or specify the "
            f"files with --set data.splits.{name}.annotations=FILE --set data.splits.{name}.images=DIR (TFRecords: "
            f"--set data.splits.{name}.records=PATTERN)."
        )
    splits[name] = files
