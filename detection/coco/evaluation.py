"""`evaluate`: computes exact metrics from ground truth and detections, as COCO files or their parsed content.

Only the keys that an evaluation needs are read.  msgspec decodes a large file several times faster than `json`, with
the same bits, and validates the entries at the same time.  If it refuses a file (NaN, an invalid entry, a truncated
file), `json` reads the file again, so that the checks can name the invalid entries.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypedDict, TypeVar, cast, runtime_checkable

import msgspec
import numpy as np

from detection.coco.accumulator import MetricsAccumulator
from detection.coco.metrics import CocoMetrics
from detection.coco.misread import misreadings
from detection.coco.params import AreaRanges, OksSigmas, Params, make_params, rows_of
from detection.coco.validation import entry_types
from detection.datasets.annotations.entries import Rows
from detection.datasets.annotations.entry_rules import Typed
from detection.storage.files import cannot_read, is_file, open_stream, read_bytes, read_range
from detection.storage.json_files import read_json
from detection.storage.paths import stem, with_name
from schemas.errors import DataError

_FEW = 0.1  # fraction of the images with objects that a detector may well have no detection in
_LISTS = ("images", "annotations", "categories")

_Annotation = TypeVar("_Annotation")

_AT_ONCE = 1 << 18  # bytes per decoding, which fit into the processor's cache
_SPACE = b" \t\r\n"
_LONGEST = 32 << 20  # max bytes without a place to split: searching in ever more text takes quadratic time
_FIRST = 4096  # bytes that hold several detections
_BETWEEN = 64  # max bytes between two detections


class _Image(TypedDict, total=False):
    """An entry of `images`; validated later, because masks and LVIS require more keys."""

    id: Any
    file_name: Any
    height: Any
    width: Any
    pos_category_ids: Any
    neg_category_ids: Any
    not_exhaustive_category_ids: Any


class _Tree(TypedDict, Generic[_Annotation], total=False):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[Any]


# Errors after which `json` reads the file: RecursionError for nesting, OverflowError for an id of many digits.
_NOT_TAKEN = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeDecodeError)


@runtime_checkable
class ComparedDetections(Protocol):
    """Detections of one or more images, as `LoadedDetector.predict` returns them."""

    def compared_by(self, iou_types: Sequence[Any]) -> Rows | list[dict[str, Any]]:
        """Returns rows if only boxes are compared, otherwise COCO results."""


def evaluate(
    ground_truth: str | Path | Mapping[str, Any],
    detections: str | Path | Sequence[Mapping[str, Any]] | Rows | ComparedDetections | Sequence[ComparedDetections],
    iou_type: str = "bbox",
    *,
    max_dets: Sequence[int] | None = None,
    use_cats: bool = True,
    iou_thresholds: Sequence[float] | None = None,
    area_ranges: AreaRanges | None = None,
    oks_sigmas: OksSigmas | None = None,
    lvis: bool = False,
    metrics: Sequence[str] = (),
    skip_invalid: bool = False,
) -> CocoMetrics:
    """Computes COCO metrics, equal to pycocotools' COCOeval, or lvis-api's LVISEval, and further metrics.

    Args:
        ground_truth: COCO annotation file, or its parsed content; not changed.
        detections: COCO results file, also of `predict`, its parsed content, for boxes an array [N, 7] of rows
            (image_id, x, y, width, height, score, category_id), pixels, or what `LoadedDetector.predict` returns;
            may be empty.
        iou_type: `bbox`, `segm` or `keypoints`.
        max_dets: max detections per image: for AR1, for AR10, for all other metrics; default 1, 10, 100.
            For keypoints one number, default COCO's 20; for LVIS one, default 300.
        use_cats: False: evaluate as if there were one category.
        iou_thresholds: default 0.50, 0.55, ... 0.95.
        area_ranges: name -> (min, max) `area` in square pixels; default COCO's.  Ranges that COCO does
            not define give the metrics AP_<name> and AR_<name>.
        oks_sigmas: spread of each keypoint, as a fraction of the root of the annotation's area, also by category
            name; default COCO's 17, or 0.05 for other keypoints.
        lvis: evaluate as LVIS does; the files need LVIS' lists of categories.
        metrics: metrics besides COCO's, such as `pascal_voc_AP50`, `open_images_AP50`.
        skip_invalid: skip invalid entries; `skipped` of the result lists them.

    Returns:
        Metrics and arrays; -1 without ground truth.

    Raises:
        ConfigError: an invalid parameter.
        DataError: a missing file, a file of another kind, or an invalid entry.

    >>> image = {"id": 1, "width": 640, "height": 480}
    >>> dog = {"id": 1, "image_id": 1, "category_id": 18, "bbox": [10, 20, 300, 200], "area": 60000, "iscrowd": 0}
    >>> detection = {"image_id": 1, "category_id": 18, "bbox": [10, 20, 300, 160], "score": 0.9}
    >>> ground_truth = {"images": [image], "annotations": [dog], "categories": [{"id": 18, "name": "dog"}]}
    >>> metrics = evaluate(ground_truth, [detection])
    >>> {name: round(metrics.by_name[name], 3) for name in ("AP", "AP75", "APs")}
    {'AP': 0.7, 'AP75': 1.0, 'APs': -1.0}
    """
    params = make_params(
        iou_type,
        max_dets=max_dets,
        use_cats=use_cats,
        iou_thresholds=iou_thresholds,
        area_ranges=area_ranges,
        oks_sigmas=oks_sigmas,
        lvis=lvis,
        metrics=metrics,
    )
    tree, where = _ground_truth(ground_truth, iou_type)
    results, where_detections = _detections(
        detections, iou_type, images=tree["images"], categories=tree["categories"] if use_cats else (), where=where
    )
    accumulator = MetricsAccumulator(tree["categories"], params, where=where)
    skipped = accumulator.add(
        tree["images"],
        tree["annotations"],
        results,
        where=where,
        where_detections=where_detections,
        skip_invalid=skip_invalid,
    )
    warnings = tuple(doubts(tree, results, params))
    return replace(accumulator.result(last=True), skipped=tuple(skipped), doubts=warnings)


def require_ground_truth(tree: Any, *, where: str) -> None:
    """Refuses a tree without the lists of an annotation file.

    Raises:
        DataError: a list is missing.
    """
    missing = [key for key in _LISTS if not (isinstance(tree, Mapping) and isinstance(tree.get(key), list))]
    if missing:
        raise DataError(
            f"{where}: not a COCO annotation file: no list {', '.join(missing)}. "
            "Pass a file with images, annotations and categories as the ground truth."
        )


def require_results(tree: Any, *, where: str) -> None:
    """Refuses anything but a list of detections.

    Raises:
        DataError: the tree is not a list.
    """
    if not isinstance(tree, np.ndarray) and (isinstance(tree, str) or not isinstance(tree, Sequence)):
        raise DataError(
            f"{where}: not COCO results: expected a list of detections, not a {type(tree).__name__}. "
            "Each detection is an object with image_id, category_id, bbox and score."
        )


def read_results(
    path: str | Path, iou_type: str, *, images: Sequence[Any], categories: Sequence[Any], where: str
) -> Any:
    """Reads a COCO results file; where ids contradict the names beside them, the names count.

    Args:
        path: the file.
        iou_type: `bbox`, `segm` or `keypoints`.
        images: `images` entries of the ground truth.
        categories: its `categories` entries; (): category ids do not matter.
        where: source of the ground truth, for messages.

    Returns:
        Detections in a form for `evaluate`.

    Raises:
        DataError: the file cannot be read or is invalid, or its images are not in the ground truth.
    """
    named, list_path = has_names(path), image_list_path(path)
    tree = read_json(path) if named else read_detections(path, iou_type)
    require_results(tree, where=str(path))
    listed = is_file(path) and is_file(list_path)
    if not named and not listed:
        return tree
    # Few files need it.
    from detection.coco.io import ids_by_name

    names = ids_by_name.names_in(tree, path) if named else {}
    if named:
        tree = ids_by_name.with_named_ids(tree, path, images, where=where)
    if listed:
        names = ids_by_name.listed_names(list_path) | names
        tree = ids_by_name.with_ground_truth_ids(tree, path, images, list_path=list_path, where=where)
    return ids_by_name.with_category_ids(tree, path, categories, names=names, where=where)


def read_ground_truth(path: str | Path, iou_type: str) -> Any:
    """Reads the keys of an annotation file that `iou_type` needs; references between entries are not checked.

    Raises:
        DataError: the file cannot be read or is not JSON.
    """
    if not is_file(path):
        return read_json(path)
    kind, tree_type = entry_types.ANNOTATIONS[iou_type], cast("Any", _Tree)
    try:
        tree = msgspec.json.decode(read_bytes(path), type=tree_type[kind])
    except _NOT_TAKEN:
        return read_json(path)
    if "annotations" in tree:
        tree["annotations"] = Typed(tree["annotations"], kind)
    return tree


def image_list_path(results: str | Path) -> str:
    """Returns the path of the list of images beside a results file of `predict`: `NAME_images.json`."""
    return with_name(results, f"{stem(results)}_images.json")


def read_detections(path: str | Path, iou_type: str) -> Any:
    """Reads a COCO results file; references to the ground truth are not checked.

    Returns:
        For boxes, if all have the right type, rows float64 [N, 7]: image_id, x, y,
        width, height, score, category_id; else the parsed JSON.

    Raises:
        DataError: the file cannot be read or is not JSON.
    """
    if not is_file(path):
        return read_json(path)
    kind: Any = entry_types.DETECTIONS[iou_type]
    decoder = msgspec.json.Decoder(list[kind])
    try:
        if iou_type == "bbox":
            return np.concatenate([rows_of(decoder.decode(text)) for text in _portions(path)])
        return Typed(itertools.chain.from_iterable(map(decoder.decode, _portions(path))), kind)
    except OSError as error:
        raise cannot_read(path, error) from None
    except _NOT_TAKEN:
        return read_json(path)


def has_names(path: str | Path) -> bool:
    """Returns whether the first detections of a results file have a `file_name` or `category_name` beside the ids."""
    if not is_file(path):
        return False
    first = read_range(path, 0, _FIRST)
    return b'"file_name"' in first or b'"category_name"' in first


def _portions(path: str | Path) -> Iterator[bytes]:
    """Splits a file with a list of JSON objects into several such lists.

    It splits at `}`, a comma and `{` in sequence.  If that is inside of an object or a string, the halves
    are not valid JSON.
    """
    # Decoded at once, 470,000 boxes (73 MB) take 27 % more memory, and the evaluation 20 % more processor time.
    opening, text = b"", b""
    with open_stream(path) as file:
        while block := file.read(_AT_ONCE):
            text += block
            comma = _last_comma(text)
            if comma > 0:
                yield b"".join((opening, text[:comma], b"]"))
                opening, text = b"[", text[comma + 1 :]
            elif len(text) > _LONGEST:
                raise msgspec.DecodeError("no place to split between two entries")
    yield opening + text


def _last_comma(text: bytes) -> int:
    """Returns the position of the last comma between two objects; -1: none."""
    brace = text.rfind(b"{")
    while brace > 0:
        before = text[max(0, brace - _BETWEEN) : brace]
        comma = before.rstrip(_SPACE)
        if comma.endswith(b",") and comma[:-1].rstrip(_SPACE).endswith(b"}"):
            return brace - len(before) + len(comma) - 1
        brace = text.rfind(b"{", 0, brace)
    return -1


def _ground_truth(source: str | Path | Mapping[str, Any], iou_type: str) -> tuple[Mapping[str, Any], str]:
    tree: Any = source
    where = "ground truth"
    if isinstance(source, str | Path):
        tree, where = read_ground_truth(source, iou_type), str(source)
    require_ground_truth(tree, where=where)
    return tree, where


def _detections(
    source: Any, iou_type: str, *, images: Sequence[Any], categories: Sequence[Any], where: str
) -> tuple[Any, str]:
    predicted = [source] if isinstance(source, ComparedDetections) else source
    if isinstance(predicted, Sequence) and predicted and isinstance(predicted[0], ComparedDetections):
        compared: list[Any] = [one.compared_by([iou_type]) for one in predicted]
        source = np.concatenate(compared) if iou_type == "bbox" else [*itertools.chain.from_iterable(compared)]
    if not isinstance(source, str | Path):
        require_results(source, where="detections")
        return source, "detections"
    return read_results(source, iou_type, images=images, categories=categories, where=where), str(source)


def doubts(ground_truth: Mapping[str, Any], detections: Any, params: Params) -> Iterator[str]:
    """Yields what to look at before the metrics are believed, a sentence each.

    Args:
        ground_truth: content of an annotation file.
        detections: COCO results, or rows [N, 7] as `evaluate` takes them; entries may be invalid.
        params: of the evaluation.
    """
    annotations = [one for one in ground_truth["annotations"] if isinstance(one, Mapping)]
    objects: Counter[Any] = Counter(_ids(one for one in annotations if not one.get("iscrowd")))
    is_rows = isinstance(detections, np.ndarray)
    found: Counter[Any] = Counter(detections[:, 0].tolist() if is_rows else _ids(detections))
    if not found and objects:
        yield "there are no detections"
    without = sum(image_id not in found for image_id in objects)
    if found and without > _FEW * len(objects):
        yield f"{without:,} of {len(objects):,} images with ground truth have no detection: the file may be a part"
    most = max(params.max_dets)
    crowded = [count for image_id, count in objects.items() if count > most and found[image_id] > most]
    if crowded:
        dets = ",".join(map(str, (*params.max_dets[:-1], max(crowded))))
        yield (
            f"{len(crowded):,} images have more than {most} instances, and only their best {most} detections count: "
            f"--max-dets {dets} counts more"
        )
    if params.iou_type == "keypoints" and (ignored := sum(map(_is_uncounted, annotations))):
        yield f"{ignored:,} annotations are ignored, because num_keypoints is 0 although keypoints are labelled"
    if is_rows and len(detections) > 1:
        rows = np.ascontiguousarray(detections).view(np.dtype((np.void, detections.itemsize * detections.shape[1])))
        repeated = len(detections) - len(np.unique(rows))
        if repeated > len(detections) / 4:
            yield f"{repeated:,} of {len(detections):,} detections are duplicates of others in the file, and FP"
        yield from misreadings(ground_truth, detections)
        if np.ptp(detections[:, 5]) == 0:
            yield f"all scores are {detections[0, 5]:g}, so the order of the file decides about AP"


def _is_uncounted(annotation: Mapping[str, Any]) -> bool:
    points = annotation.get("keypoints")
    return annotation.get("num_keypoints") == 0 and isinstance(points, list) and any(points[2::3])


def _ids(entries: Iterable[Any]) -> Iterator[int]:
    ids = (one.get("image_id") for one in entries if isinstance(one, Mapping))
    return (image_id for image_id in ids if isinstance(image_id, int))
