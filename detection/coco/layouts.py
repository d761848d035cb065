"""Where the files of a COCO data set lie: the layouts recognised without being told."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from detection.coco.annotations import scan_file_names
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.errors import DataError

_INSTANCES = re.compile(r"instances_(?P<token>(?P<name>[A-Za-z][\w.-]*?)(?:[12]\d{3})?)\.json")
_KEYPOINTS = "person_keypoints_{token}.json"
_ROBOFLOW = "_annotations.coco.json"
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_RENAMED = {"val": EVAL_SPLIT, "valid": EVAL_SPLIT, "validation": EVAL_SPLIT, "default": TRAIN_SPLIT}
_LOOKED_AT = 20  # file names tried when an image folder is chosen

_KNOWN_LAYOUTS = f"""Known layouts:
  annotations/instances_{{train,val}}.json, or the same in the folder itself, also with a year;
    images beside, in images/, or in a folder per split
  {{train,valid,test}}/{_ROBOFLOW} with the images beside (Roboflow)
  annotations/instances_default.json (CVAT)
Anything else is said outright:
  --set data.splits.train.annotations=FILE --set data.splits.train.images=DIR (likewise eval)"""


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split.

    annotations: COCO JSON file.
    images: folder that `file_name` is relative to.
    keypoints: person_keypoints file to merge by annotation id, or None.
    hash_range: (low, high): the split is made of the file's images with
        low <= `id_fraction(image id)` < high; None: of all.
    """

    annotations: str
    images: str
    keypoints: str | None = None
    hash_range: tuple[float, float] | None = None

    def holds(self, image_id: int) -> bool:
        """Whether an image of the annotation file belongs to this split."""
        return self.hash_range is None or self.hash_range[0] <= id_fraction(image_id) < self.hash_range[1]


def find_splits(root: str | Path, *, eval_fraction: float) -> dict[str, SplitFiles]:
    """Finds the splits of a data set in one of the recognised layouts.

    A file of `val` or `valid` becomes the split `eval`.  Where there is none, the
    train file (or CVAT's `default`) is divided by a hash of the image id, so an image
    stays in its split when others are added.

    Args:
        root: the data set's folder.
        eval_fraction: share of images for `eval` where it has no file of its own.

    Raises:
        DataError: no such folder, nothing recognised in it, or two files for one split.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: no such data set folder. Check --data or data.root.")
    for candidates in (_instances_in(root, root / "annotations"), _instances_in(root, root), _roboflow(root)):
        splits: dict[str, SplitFiles] = {}
        for name, files in candidates:
            _add(splits, name, files)
        if splits:
            return _with_eval(splits, eval_fraction)
    raise DataError(f"{root}: no COCO data set recognised in this folder.\n{_KNOWN_LAYOUTS}")


def given_splits(sources: Mapping[str, tuple[str, str]], *, eval_fraction: float) -> dict[str, SplitFiles]:
    """The splits that a user names outright.

    Args:
        sources: split name -> (annotation file, image folder).
        eval_fraction: as for `find_splits`.

    Raises:
        DataError: a file or folder that is not there, a name that cannot name a
            folder, two names for one split.
    """
    splits: dict[str, SplitFiles] = {}
    for name, (annotations, images) in sources.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise DataError(f"data.splits.{name}: a split's name is made of letters, digits, '_', '-' and '.'.")
        if not Path(annotations).is_file():
            raise DataError(f"{annotations}: no such annotation file. Check data.splits.{name}.annotations.")
        if not Path(images).is_dir():
            raise DataError(f"{images}: no such image folder. Check data.splits.{name}.images.")
        _add(splits, name, SplitFiles(str(annotations), str(images), _keypoints_beside(Path(annotations))))
    return _with_eval(splits, eval_fraction)


def id_fraction(image_id: int) -> float:
    """A pseudo-random figure of an image id, 0 <= figure < 1: SHA-256 of its decimal digits."""
    digest = hashlib.sha256(str(image_id).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _instances_in(root: Path, folder: Path) -> Iterator[tuple[str, SplitFiles]]:
    for file in sorted(folder.glob("instances_*.json")):
        match = _INSTANCES.fullmatch(file.name)
        if match:
            images = _image_folder(root, file, (match["token"], match["name"]))
            yield match["name"], SplitFiles(str(file), str(images), _keypoints_beside(file))


def _roboflow(root: Path) -> Iterator[tuple[str, SplitFiles]]:
    for file in sorted(root.glob(f"*/{_ROBOFLOW}")):
        yield file.parent.name, SplitFiles(str(file), str(file.parent))


def _keypoints_beside(file: Path) -> str | None:
    match = _INSTANCES.fullmatch(file.name)
    keypoints = file.with_name(_KEYPOINTS.format(token=match["token"])) if match else file
    return str(keypoints) if match and keypoints.is_file() else None


def _image_folder(root: Path, annotations: Path, tokens: tuple[str, ...]) -> Path:
    """The folder that holds most of the file's first images; with none found, the likeliest that exists."""
    parents = (root, root / "images")
    candidates = [parent / token for token in tokens for parent in parents]
    candidates += [root / "images", root, annotations.parent]
    existing = [folder for folder in candidates if folder.is_dir()]
    names = list(islice(scan_file_names(annotations), _LOOKED_AT))
    return max(existing, key=lambda folder: sum((folder / name).is_file() for name in names))


def _add(splits: dict[str, SplitFiles], name: str, files: SplitFiles) -> None:
    name = _RENAMED.get(name.lower(), name)
    if name in splits:
        raise DataError(
            f"{splits[name].annotations} and {files.annotations} are both the split {name}. Keep one, or name the "
            f"files with --set data.splits.{name}.annotations=FILE --set data.splits.{name}.images=DIR."
        )
    splits[name] = files


def _with_eval(splits: dict[str, SplitFiles], eval_fraction: float) -> dict[str, SplitFiles]:
    if TRAIN_SPLIT not in splits or EVAL_SPLIT in splits:
        return splits
    whole = splits[TRAIN_SPLIT]
    divided = {
        TRAIN_SPLIT: replace(whole, hash_range=(eval_fraction, 1.0)),
        EVAL_SPLIT: replace(whole, hash_range=(0.0, eval_fraction)),
    }
    return splits | divided
