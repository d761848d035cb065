"""Layouts of COCO data sets: finds the files of each split, and divides data into splits."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from detection.datasets.annotations import scan_file_names
from detection.datasets.sampling import id_fraction
from detection.images.files import image_path
from detection.storage import files, paths
from detection.storage.markers import UNFINISHED_MARKER
from detection.storage.reading import readers
from schemas.artifacts import DATASET_JSON, EVAL_SPLIT, TRAIN_SPLIT, split_dir
from schemas.errors import ConfigError, DataError

_INSTANCES = re.compile(r"instances_(?P<token>(?P<name>[A-Za-z][\w.-]*?)(?:[12]\d{3})?)\.json")
_PERSON_KEYPOINTS = re.compile(_INSTANCES.pattern.replace("instances", "person_keypoints"))
_KEYPOINTS = "person_keypoints_{token}.json"
_RECORDS = re.compile(r"\.(tf)?records?\b")
_SHARD_NUMBERS = re.compile(r"-\d{5}-of-\d{5}")
_SPLIT_WORD = re.compile(r"(?:^|[^a-z])(train|val|valid|validation|eval|test)(?=[^a-z]|$)")
_ROBOFLOW = "_annotations.coco.json"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_RENAMED = {"val": EVAL_SPLIT, "valid": EVAL_SPLIT, "validation": EVAL_SPLIT, "default": TRAIN_SPLIT}
EXAMPLES_WORK = ".work"  # folder of plans and results in Examples during writing
_LOOKED_AT = 20  # file names to try in the search for an image folder

_KNOWN_LAYOUTS = f"""Known layouts:
  annotations/instances_{{train,val}}.json, or the same in the folder itself, also with a year;
    images beside, in images/, or in a folder per split
  {{train,valid,test}}/{_ROBOFLOW} with the images beside (Roboflow)
  annotations/instances_default.json (CVAT)
  the same with person_keypoints_ in place of instances_
  TFRecords with `train`, `val`, `test` in their names: *.record*, *.tfrecord*; Split-*/ of Examples
Specify any other layout explicitly:
  --set data.splits.train.annotations=FILE --set data.splits.train.images=DIR (and for eval), or
  --set data.splits.train.records=PATTERN"""


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split.

    annotations: COCO JSON file; or, if `images` is None, a file, folder or pattern
        of TFRecords, which include the images.
    images: folder that `file_name` is relative to, or None.
    keypoints: person_keypoints file to merge by annotation id, or None.
    hash_range: (low, high): the split has the images with
        low <= `id_fraction(image id)` < high; None: all images.
    every: take the first of each `every` of these images, in the order of the file.
    """

    annotations: str
    images: str | None
    keypoints: str | None = None
    hash_range: tuple[float, float] | None = None
    every: int = 1

    def holds(self, image_id: int) -> bool:
        """Returns whether an image of the annotation file belongs to this split."""
        return self.hash_range is None or self.hash_range[0] <= id_fraction(image_id) < self.hash_range[1]


@dataclass(frozen=True)
class Division:
    """Rules for dividing a data set's files into splits.

    eval_fraction: fraction of the images for `eval` if there is no file for it.
    ratios: split -> fraction of a data set of one file; empty: no division by ratios.
    sample_1_of_n: take one of every n images, for quick trials; or split -> n, other
        splits complete.
    """

    eval_fraction: float = 0.1
    ratios: Mapping[str, float] = field(default_factory=dict)
    sample_1_of_n: int | Mapping[str, int] = 1

    def apply(self, splits: dict[str, SplitFiles]) -> dict[str, SplitFiles]:
        """Divides one file by a hash of the image id, so that added images do not change the split of others.

        Raises:
            ConfigError: `ratios` for a data set of several files, or a sample of an unknown
                split.
        """
        if self.ratios:
            splits = self._by_ratios(splits)
        elif TRAIN_SPLIT in splits and EVAL_SPLIT not in splits:
            splits = splits | _partitions(
                splits[TRAIN_SPLIT], {EVAL_SPLIT: self.eval_fraction, TRAIN_SPLIT: 1 - self.eval_fraction}
            )
        every = self.sample_1_of_n
        if isinstance(every, int):
            every = dict.fromkeys(splits, every)
        for name in every:
            if name not in splits:
                raise ConfigError(
                    f"data.sample_1_of_n names the split {name!r}; splits are {', '.join(sorted(splits))}. Correct it."
                )
        return {name: replace(files, every=every.get(name, 1)) for name, files in splits.items()}

    def _by_ratios(self, splits: dict[str, SplitFiles]) -> dict[str, SplitFiles]:
        if len(splits) > 1:
            raise ConfigError(
                f"data.split_ratios divides a data set of one file; this one has {', '.join(sorted(splits))}. "
                "Remove data.split_ratios, or specify one file in data.splits."
            )
        [whole] = splits.values()
        # Train last, so that other splits keep their images when only the fraction of train changes.
        return _partitions(whole, dict(sorted(self.ratios.items(), key=lambda item: item[0] == TRAIN_SPLIT)))


WHOLE = Division()


def find_splits(root: str | Path, division: Division = WHOLE) -> dict[str, SplitFiles]:
    """Finds the splits of a data set in one of the known layouts.

    A file named `val` or `valid` becomes the split `eval`.

    Args:
        root: the data set's folder.
        division: rules for dividing files into splits.

    Raises:
        ConfigError: the division does not fit the files.
        DataError: no such folder, no known layout, or two files for one split.
    """
    root = paths.normalized(root)
    if not files.is_dir(root):
        what = "a file, not a data set folder" if files.exists(root) else "no such data set folder"
        raise DataError(f"{root}: {what}. Check --data or data.root.")
    annotations = paths.join(root, "annotations")
    layouts = (
        _annotated(root, annotations, _INSTANCES),
        _annotated(root, root, _INSTANCES),
        _roboflow(root),
        _annotated(root, annotations, _PERSON_KEYPOINTS),
        _annotated(root, root, _PERSON_KEYPOINTS),
        _records(root),
    )
    for candidates in layouts:
        splits: dict[str, SplitFiles] = {}
        for name, of_split in candidates:
            _add(splits, name, of_split)
        if splits:
            return division.apply(splits)
    raise DataError(f"{root}: no COCO data set recognised in this folder.\n{_KNOWN_LAYOUTS}")


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
            yield match["name"], SplitFiles(file, images, _keypoints_beside(file))


def _roboflow(root: str) -> Iterator[tuple[str, SplitFiles]]:
    for file in _sorted(files.glob(paths.join(paths.escape(root), "*", _ROBOFLOW))):
        folder = paths.parent(file)
        yield paths.name_of(folder), SplitFiles(file, folder)


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
    patterns = {
        paths.join(paths.parent(path), _SHARD_NUMBERS.sub("-*-of-*", paths.name_of(path))): path for path in records
    }
    for shards, file in patterns.items():
        match = _SPLIT_WORD.search(paths.relative(file, root).lower())
        yield match[1] if match else TRAIN_SPLIT, SplitFiles(shards, None)


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
    candidates += [paths.join(root, "images"), root, paths.parent(annotations)]
    existing = [folder for folder in dict.fromkeys(candidates) if files.is_dir(folder)]
    names = list(islice(scan_file_names(annotations), _LOOKED_AT))
    return max(existing, key=lambda folder: _present(folder, names))


def _present(folder: str, names: Sequence[str]) -> int:
    """Counts the names that are files in a folder."""
    with ThreadPoolExecutor(readers(folder)) as pool:
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


def _partitions(whole: SplitFiles, fractions: Mapping[str, float]) -> dict[str, SplitFiles]:
    """Partitions one file by adjacent ranges of `id_fraction`."""
    splits, low = {}, 0.0
    for number, (name, fraction) in enumerate(fractions.items(), start=1):
        high = 1.0 if number == len(fractions) else low + fraction
        splits[name] = replace(whole, hash_range=(low, high))
        low = high
    return splits
