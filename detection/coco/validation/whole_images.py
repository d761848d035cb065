"""Whole images that may be matched: checked, what is missing filled in, and divided by category."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from detection.coco.params import Params, best_of_images
from detection.coco.validation.checks import check_annotations, check_detections, valid_images
from detection.coco.validation.invalid_entries import InvalidEntry
from detection.datasets.entries import Entry, Ids, Rows

_NO_AREA = -1.0  # in no area range, so that the object is ignored in all


class Checked(NamedTuple):
    """Some whole images.

    images, objects: COCO entries.
    detections: COCO results, or rows float64 [N, 7] (image_id, x, y, width, height,
        score, category_id).
    """

    images: list[Entry]
    objects: list[Entry]
    detections: list[Entry] | Rows

    @property
    def image_ids(self) -> Ids:
        """Of the images, int64 [N]."""
        return np.array([image["id"] for image in self.images], np.int64)


def check_whole_images(
    images: Sequence[Entry],
    annotations: Sequence[Entry],
    detections: Sequence[Entry] | Rows,
    *,
    category_ids: Ids,
    params: Params,
    where: str,
    where_detections: str,
    skipped: list[InvalidEntry] | None = None,
) -> Checked:
    """Checks all that belongs to some images.

    Args:
        images: COCO `images` entries.
        annotations: COCO `annotations` entries of these images.
        detections: COCO results of these images, or for boxes rows.
        category_ids: of the whole data set.
        params: of the evaluation.
        where: names the source of images and annotations in errors.
        where_detections: names the source of the detections in errors.
        skipped: takes faulty entries, which are then left out; None: they are refused.

    Raises:
        DataError: see `detection.coco.validation.checks`.
    """
    images = valid_images(images, iou_type=params.iou_type, where=where, lvis=params.lvis, skipped=skipped)
    sized = params.iou_type == "segm"
    known: dict[str, Any] = {
        "image_ids": np.array([image["id"] for image in images], np.int64),
        "category_ids": category_ids,
        "iou_type": params.iou_type,
        "sizes": np.array([(image["height"], image["width"]) for image in images], np.int64) if sized else None,
        "keypoints": len(params.oks_sigmas),
        "skipped": skipped,
    }
    objects = check_annotations(annotations, **known, where=where)
    found = check_detections(detections, **known, where=where_detections)
    if params.lvis:
        objects, found = lvis_annotations(objects), best_of_images(found, params.max_dets[-1])
    return Checked(images, objects, found)


def by_category(checked: Checked) -> dict[int, Checked]:
    """What belongs to each category that there is anything of, with the images that have it; orders are kept."""
    objects: dict[int, list[Entry]] = defaultdict(list)
    for annotation in checked.objects:
        objects[annotation["category_id"]].append(annotation)
    detections = checked.detections
    found: Mapping[int, Any] = (
        _rows_by_category(detections) if isinstance(detections, np.ndarray) else _results_by_category(detections)
    )
    images = {image["id"]: image for image in checked.images}
    shares = {}
    for category_id in sorted({*objects, *found}):
        mine, theirs = objects.get(category_id, []), found.get(category_id, detections[:0])
        ids = {annotation["image_id"] for annotation in mine} | _image_ids(theirs)
        shares[category_id] = Checked([images[image_id] for image_id in sorted(ids)], mine, theirs)
    return shares


def _image_ids(detections: Sequence[Entry] | Rows) -> set[int]:
    if isinstance(detections, np.ndarray):
        return set(detections[:, 0].astype(np.int64).tolist())
    return {detection["image_id"] for detection in detections}


def _rows_by_category(rows: Rows) -> dict[int, Rows]:
    rows = rows[np.argsort(rows[:, 6], kind="stable")]
    category_ids, starts = np.unique(rows[:, 6], return_index=True)
    # Without rows there is one part, an empty one.
    return dict(zip(category_ids.astype(int).tolist(), np.split(rows, starts[1:]), strict=False))


def _results_by_category(results: Sequence[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = defaultdict(list)
    for result in results:
        found[result["category_id"]].append(result)
    return found


def lvis_annotations(annotations: Sequence[Entry]) -> list[Entry]:
    """Objects as LVIS takes them: `ignore` is heeded, crowds are objects like others."""
    return [
        {**annotation, "iscrowd": 0, "area": _NO_AREA if annotation.get("ignore") else annotation["area"]}
        for annotation in annotations
    ]
