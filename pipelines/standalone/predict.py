"""`predict`: image files through an exported model to a COCO results file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from detection.coco.io.results import write_results
from detection.coco.validation.columns import by_id, identifiers, refuse_unless
from detection.datasets.entries import unwritable
from detection.images.files import ImageFileError, read_file
from detection.images.inspect import inspect_image
from detection.inference.saved_model import Rows, SavedModelDetector
from detection.storage.atomic import write_json
from detection.storage.json_files import read_json
from detection.types import EncodedImage
from pipelines.standalone.prediction_sheet import MAX_PICTURES, Found, check_picture_name, write_sheet
from schemas.config.issues import MAX_PIXELS
from schemas.errors import ConfigError, DataError
from schemas.quoting import one_line, printable

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".bmp"}


class _Named(NamedTuple):
    """An image file and its COCO id."""

    image_id: int
    path: Path


def predict(
    *,
    model: str | Path,
    images: Sequence[str | Path],
    output: str | Path,
    ground_truth: str | Path | None = None,
    picture: str | Path | None = None,
    batch_size: int = 8,
    console: Console,
) -> list[Path]:
    """Detects objects on image files.

    Args:
        model: SavedModel folder.
        images: files, and folders that are searched for files to any depth.
        output: COCO results file to write, sorted by image id.
        ground_truth: COCO file whose `file_name` entries give the ids; files that it
            does not list are left out.  None: ids are 1, 2, ... by sorted path, and
            the list is written to `<output stem>_images.json`.
        picture: PNG or JPEG file to draw the first images with their detections into.
        batch_size: images a call.
        console: for progress and notes.

    Returns:
        The files written.

    Raises:
        ConfigError: a batch size below 1, or a picture of another format.
        DataError: a model or image that cannot be read; no image; a file that cannot
            be written.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size}: give a number of images from 1 on.")
    if picture is not None:
        check_picture_name(picture)
    paths = find_images(images)
    named = _numbered(paths) if ground_truth is None else _as_listed(paths, ground_truth, console)
    detector = SavedModelDetector(folder=model, batch_size=batch_size)
    found: list[Rows] = []
    shown: list[Found] = []
    entries = []
    for batch in _with_progress(named, batch_size, console):
        loaded = [_load(image) for image in batch]
        rows = detector.detect(loaded)
        found += rows
        shown = [*shown, *map(Found, loaded, rows)][:MAX_PICTURES]
        entries += [
            {"id": image.image_id, "file_name": image.name, "height": image.height, "width": image.width}
            for image in loaded
        ]
    written = [Path(output)]
    if ground_truth is None:
        written.append(written[0].with_name(f"{written[0].stem}_images.json"))
        write_json(written[1], {"images": entries})
    write_results(output, np.concatenate(found))
    if picture is not None:
        write_sheet(picture, shown, model=model)
        written.append(Path(picture))
    return written


def find_images(sources: Sequence[str | Path]) -> list[Path]:
    """Image files among `sources`, those in folders included, sorted by path.

    Raises:
        DataError: a source that does not exist, or no image at all.
    """
    paths: set[Path] = set()
    for source in map(Path, sources):
        if source.is_dir():
            paths.update(path for path in source.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
        elif source.exists():
            paths.add(source)
        else:
            raise DataError(f"{one_line(source)}: no such file or folder. Check --images.")
    if not paths:
        raise DataError(
            f"no image in {', '.join(map(str, sources))}: looked for {', '.join(sorted(_SUFFIXES))}. Check --images."
        )
    return sorted(paths, key=lambda path: path.as_posix())


def _numbered(paths: Sequence[Path]) -> list[_Named]:
    for path in paths:
        if unwritable(path.as_posix()) is not None:
            raise DataError(f"{path.as_posix()!a}: the file's name is not UTF-8, which JSON needs. Rename the file.")
    return [_Named(number, path) for number, path in enumerate(paths, 1)]


def _as_listed(paths: Sequence[Path], ground_truth: str | Path, console: Console) -> list[_Named]:
    listed = _read_file_names(ground_truth)
    matches = {path: _listed_id(path, listed, ground_truth) for path in paths}
    by_image: dict[int, Path] = {}
    for path, image_id in matches.items():
        if image_id is None:
            continue
        other = by_image.setdefault(image_id, path)
        if other != path:
            raise DataError(f"{other} and {path} are both image {image_id} of {ground_truth}. Name one of them only.")
    if not by_image:
        raise DataError(f"{ground_truth}: lists none of the {len(paths)} images, such as {paths[0]}. Check file_name.")
    if len(by_image) < len(paths):
        _tell(console, f"{len(paths) - len(by_image)} images are not in {ground_truth} and are left out")
    images = sum(map(len, listed.values()))
    if len(by_image) < images:
        _tell(console, f"{images - len(by_image)} images of {ground_truth} are not among --images")
    return [_Named(image_id, by_image[image_id]) for image_id in sorted(by_image)]


def _tell(console: Console, text: str) -> None:
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)


def _read_file_names(path: str | Path) -> dict[str, list[int]]:
    """file_name -> ids of the images with it."""
    tree = read_json(path)
    images = tree.get("images") if isinstance(tree, dict) else None
    if not isinstance(images, list):
        raise DataError(f"{path}: no list `images`. Give a COCO annotation file as the ground truth.")
    ids = identifiers(images, "id", by_id("image"), where=str(path)).tolist()
    refuse_unless(
        lambda image: isinstance(image.get("file_name"), str),
        images,
        by_id("image"),
        where=str(path),
        what="no file_name",
        remedy="Images are found by it: add it.",
    )
    names: dict[str, list[int]] = {}
    for image, image_id in zip(images, ids, strict=True):
        names.setdefault(image["file_name"], []).append(image_id)
    return names


def _listed_id(path: Path, listed: Mapping[str, Sequence[int]], ground_truth: str | Path) -> int | None:
    """The id of the longest `file_name` that the path ends in.

    Raises:
        DataError: several images have that `file_name`.
    """
    parts = path.resolve().parts
    endings = ("/".join(parts[start:]) for start in range(1, len(parts)))
    name = next((ending for ending in endings if ending in listed), None)
    if name is None:
        return None
    first, *others = listed[name]
    if others:
        raise DataError(
            f"{ground_truth}: images {first} and {others[0]} have the same file_name {name!r}, so {path} may be "
            "either. Give each image a file of its own."
        )
    return first


def _with_progress(named: Sequence[_Named], batch_size: int, console: Console) -> Iterator[Sequence[_Named]]:
    starts = range(0, len(named), batch_size)
    for start in track(starts, description="detecting", console=console, transient=True):
        yield named[start : start + batch_size]


def _load(image: _Named) -> EncodedImage:
    real = image.path.resolve()
    try:
        file = inspect_image(read_file(str(real.parent), real.name, max_pixels=MAX_PIXELS), max_pixels=MAX_PIXELS)
    except ImageFileError as error:
        raise DataError(f"{one_line(image.path)}: {error.message}") from None
    return EncodedImage(image.image_id, image.path.as_posix(), file.data, file.height, file.width)
