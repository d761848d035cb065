"""Runs an exported model on image files; writes a COCO results file and pictures of the detections."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn

from detection.coco.evaluation import image_list_path
from detection.coco.io.ids_by_name import ids_by_file_name, in_words, named_images, other_ids
from detection.coco.io.results import result_lines, write_list
from detection.datasets.annotations.entry_rules import unwritable
from detection.images.files import ImageFileError, read_file
from detection.images.finding import find_images
from detection.images.inspect import inspect_image
from detection.inference.detection_pictures import MIN_DRAWN_SCORE, DetectionPictures, is_sheet
from detection.inference.detectors import open_detector
from detection.inference.formats.model_files import model_folder
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.restore import read_model_categories
from detection.inference.results import Results, joined
from detection.inference.score_thresholds import keep_confident, read_score_thresholds
from detection.inference.test_time_augmentation import AugmentedDetector, augmented
from detection.pretrained.detectors import find_model
from detection.storage.atomic import json_bytes, new_file
from detection.storage.files import count_readers, is_file, remove_file, resolve
from detection.storage.json_files import read_json
from detection.storage.outputs import require_output_file, require_output_folder
from detection.storage.paths import name_of, parent
from detection.types import EncodedImage
from detection.weights.locate import CheckpointChoice
from schemas.config.evaluate import ViewsConfig
from schemas.config.issues import MAX_PIXELS
from schemas.errors import ConfigError, DataError
from schemas.quoting import one_line, printable

_MIN_FILLED = 8  # images; a single image's batch is padded to at most this size


class _Named(NamedTuple):
    """An image file and its COCO id."""

    image_id: int
    path: str


class Predicted(NamedTuple):
    """The files of `predict`.

    written: paths of the files written.
    skipped: reason for each image that was left out.
    """

    written: list[str]
    skipped: list[str]


def predict(
    *,
    model: str | Path,
    checkpoint: CheckpointChoice = None,
    images: Sequence[str | Path],
    output: str | Path | None = None,
    ground_truth: str | Path | None = None,
    pictures: str | Path | None = None,
    batch_size: int = 8,
    views: ViewsConfig | None = None,
    min_score: float | None = None,
    best_f1: bool = False,
    console: Console,
) -> Predicted:
    """Detects objects in image files: boxes, and masks and keypoints if the model has them.

    Images that cannot be read are left out and reported.

    Args:
        model: as for `find_model` and `open_detector`.
        checkpoint: checkpoint of a training to use, as for `checkpoint_of_training`.
        images: files, and folders to search for files at any depth.
        output: COCO results file to write, sorted by image id; None: only pictures.
        ground_truth: COCO file whose `file_name` entries give the ids; files without an entry
            are skipped.  None: ids are 1, 2, ... by sorted path, and the list, with the model's categories, is
            written to `<output stem>_images.json`.
        pictures: folder for a picture of each image with its detections, or PNG or JPEG file for
            one picture of the first images; None: no picture.
        batch_size: images per call.
        views: test-time augmentation; None: detect once on each unchanged image.
        min_score: min score of the detections, 0..1; None: write all, and draw those of at least 0.3.
        best_f1: drop detections below the score threshold of their category in the model.
        console: console for progress and notes.

    Raises:
        ConfigError: a batch size below 1, a score outside 0..1, exclusive options, or pictures in
            another format or in place of the images.
        DataError: a model that cannot be read, no image that can, no score thresholds, views for a model with
            masks or keypoints, no image, or a file that cannot be written.
    """
    _check_options(batch_size=batch_size, views=views, min_score=min_score, best_f1=best_f1)
    if output is not None:
        require_output_file(str(output), "--output")
    if pictures is not None:
        require = require_output_file if is_sheet(pictures) else require_output_folder
        require(str(pictures), "--draw")
    named = _named_images(images, ground_truth, pictures, console)
    batch_size = min(batch_size, max(_MIN_FILLED, len(named)))  # smaller batches are padded
    limit = (0.0 if best_f1 else MIN_DRAWN_SCORE) if min_score is None else min_score
    with console.status(f"loading {escape(printable(str(model)))}"):
        model = model_folder(find_model(model, checkpoint))
        thresholds = read_score_thresholds(model) if best_f1 else None
        drawn = None if pictures is None else _pictures(pictures, named, model, min_score=limit)
        detector = augmented(open_detector(model, batch_size=batch_size), views or ViewsConfig(), batch_size=batch_size)
    results: list[Results] = []
    image_list = []
    skipped: list[str] = []
    for image, detected in _detections(named, detector, batch_size, console, skipped):
        kept = detected.select(detected.rows[:, 5] >= (min_score or 0.0))
        results.append(kept if thresholds is None else keep_confident(kept, thresholds))
        image_list.append({"id": image.image_id, "file_name": image.name, "height": image.height, "width": image.width})
        if drawn is not None:
            drawn.add(image, results[-1])
    for reason in skipped:
        _print(console, f"left out: {reason}")
    if not image_list:
        raise DataError(f"no image can be read: {skipped[0]}" if skipped else "no image. Check --images.")
    all_results = joined(results)
    names = {one["id"]: one["name"] for one in read_model_categories(model) or ()}
    if ground_truth is not None:
        _compare_categories(names, ground_truth, console)
    content = {"images": image_list, "categories": [{"id": number, "name": name} for number, name in names.items()]}
    written = [] if output is None else _write(output, all_results, content, lists=ground_truth is None)
    if drawn is None:
        return Predicted(written, skipped)
    if not (all_results.rows[:, 5] >= limit).any():
        least = f"score of at least {limit:g}" if limit else "detection at all"
        highest = f", the highest is {all_results.rows[:, 5].max():.2g}" if len(all_results) else ""
        _print(console, f"nothing to draw: there is no {least}{highest}; see --score")
    return Predicted([*written, drawn.finish()], skipped)


def _named_images(
    images: Sequence[str | Path], ground_truth: str | Path | None, pictures: str | Path | None, console: Console
) -> list[_Named]:
    """Lists the input images with their ids."""
    paths = find_images(images, note=lambda text: _print(console, text))
    if pictures is not None:
        paths = _without_pictures(paths, pictures, console)
    return _numbered(paths) if ground_truth is None else _with_listed_ids(paths, ground_truth, console)


def _write(output: str | Path, results: Results, image_list: Mapping[str, Any], *, lists: bool) -> list[str]:
    """Writes the list of images and the detections; returns the files.

    Old detections are removed before a new list appears, as its ids may belong to other images.

    Args:
        output: COCO results file.
        results: detections.
        image_list: content of the list: `images`, and the model's `categories`.
        lists: False: only replace an existing list, which would not match the new detections.
    """
    written = [str(output)]
    with contextlib.ExitStack() as finishing:  # the list becomes visible first
        write_list(finishing.enter_context(new_file(output)), result_lines(results.coco_results()))
        if lists or is_file(image_list_path(output)):
            written.append(image_list_path(output))
            finishing.enter_context(new_file(written[1])).write(json_bytes(image_list))
            remove_file(output)
    return written


def _pictures(destination: str | Path, named: Sequence[_Named], model: str, *, min_score: float) -> DetectionPictures:
    """Returns the pictures to draw, with the model's category names and skeletons."""
    categories = read_model_categories(model) or ()
    return DetectionPictures(destination, [image.path for image in named], categories=categories, min_score=min_score)


def _without_pictures(paths: Sequence[str], pictures: str | Path, console: Console) -> list[str]:
    """Removes images in the destination of the pictures: those of an earlier run, which are never replaced.

    Raises:
        ConfigError: all images are in the destination.
    """
    destination = resolve(pictures)
    kept = [path for path in paths if not f"{resolve(path)}/".startswith(f"{destination}/")]
    if not kept:
        raise ConfigError(f"--draw {one_line(pictures)}: this folder has all --images. Pass another path.")
    if len(kept) < len(paths):
        _print(console, f"skipping {len(paths) - len(kept)} images in {pictures}, the destination of the pictures")
    return kept


def _numbered(paths: Sequence[str]) -> list[_Named]:
    for path in paths:
        if unwritable(path) is not None:
            raise DataError(f"{path!a}: the file name is not UTF-8, as JSON requires. Rename the file.")
    return [_Named(number, path) for number, path in enumerate(paths, 1)]


def _with_listed_ids(paths: Sequence[str], ground_truth: str | Path, console: Console) -> list[_Named]:
    listed = named_images(ground_truth)
    ids = ids_by_file_name(paths, listed, where=str(ground_truth))
    if len(ids) < len(paths):
        _print(console, f"skipping {len(paths) - len(ids)} images that are not in {ground_truth}")
    if len(ids) < len(listed):
        _print(console, f"{len(listed) - len(ids)} images of {ground_truth} are not among --images")
    return sorted(_Named(image_id, path) for path, image_id in ids.items())


def _compare_categories(names: Mapping[int, str], ground_truth: str | Path, console: Console) -> None:
    """Warns about category ids of the model, as in the detections, with another name in the ground truth."""
    tree = read_json(ground_truth)
    if others := other_ids(names, tree.get("categories") or ()):
        text = f"category ids are the model's, and other than in {ground_truth}: {in_words(others, names)}"
        _print(console, f"{text}. evaluate compares numbers: change them first")


def _print(console: Console, text: str) -> None:
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)


def _detections(
    named: Sequence[_Named],
    detector: SignatureDetector | AugmentedDetector,
    batch_size: int,
    console: Console,
    skipped: list[str],
) -> Iterator[tuple[EncodedImage, Results]]:
    """Yields each image and its detections, and shows progress; `skipped` receives the reasons for images without."""
    columns = (SpinnerColumn(), *Progress.get_default_columns())  # the first call compiles for seconds
    with Progress(*columns, console=console, transient=True) as progress:
        for start in progress.track(range(0, len(named), batch_size), description="detecting"):
            loaded = _load_all(named[start : start + batch_size])
            skipped += [
                f"{one_line(path)}: {error.message}" for path, error in loaded if isinstance(error, ImageFileError)
            ]
            images = [image for _, image in loaded if isinstance(image, EncodedImage)]
            if images:
                yield from zip(images, detector.detect(images), strict=True)


def _load_all(batch: Sequence[_Named]) -> list[tuple[str, EncodedImage | ImageFileError]]:
    """Reads the images of a batch, remote ones in parallel."""

    def load(image: _Named) -> tuple[str, EncodedImage | ImageFileError]:
        try:
            return image.path, _load(*image)
        except ImageFileError as error:
            return image.path, error

    with ThreadPoolExecutor(max(count_readers(image.path) for image in batch)) as pool:
        return list(pool.map(load, batch))


def load_image(image_id: int, path: str) -> EncodedImage:
    """Reads an image file.

    Raises:
        DataError: the file cannot be read, or is not a supported image.
    """
    try:
        return _load(image_id, path)
    except ImageFileError as error:
        raise DataError(f"{one_line(path)}: {error.message}") from None


def _load(image_id: int, path: str) -> EncodedImage:
    real = resolve(path)
    file = inspect_image(read_file(parent(real), name_of(real), max_pixels=MAX_PIXELS), max_pixels=MAX_PIXELS)
    return EncodedImage(image_id, path, file.data, file.height, file.width)


def _check_options(*, batch_size: int, views: ViewsConfig | None, min_score: float | None, best_f1: bool) -> None:
    """Refuses invalid options before any file is read.

    Raises:
        ConfigError: an option is invalid; see `predict`.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size}: pass at least 1.")
    if min_score is not None and not 0.0 <= min_score <= 1.0:
        raise ConfigError(f"--score {min_score:g}: pass a number from 0 to 1.")
    if best_f1 and min_score is not None:
        raise ConfigError("--score and --score-thresholds are exclusive: both set the min score. Remove one of them.")
    if best_f1 and views is not None and not views.is_empty:
        raise ConfigError(
            "--score-thresholds and --tta are exclusive: fused boxes have other scores. Remove one of them."
        )
