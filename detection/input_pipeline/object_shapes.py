"""Masks and keypoints of a record's objects, from our records and from records of other tools."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.importers.coco_geometry import (
    MaskError,
    coco_keypoints,
    object_keypoints,
    object_masks,
    segmentation_of,
)
from detection.datasets.importers.source_format import Record, first_bytes, object_count, parse_record, source_id
from detection.datasets.masks import compressed_rle
from schemas import features
from schemas.errors import DataError


def record_masks(serialized: bytes, height: int, width: int) -> np.ndarray:
    """Draws the masks of a record's objects with pycocotools.

    The masks come from the packed COCO entries, or in records of other tools from
    `image/object/mask` or `image/object/polygon`.  An object without a mask gets an empty one.

    Args:
        serialized: a serialized `tf.train.Example`.
        height: height of the image in pixels.
        width: width of the image in pixels.

    Returns:
        uint8 [N, H, W], 1 inside, in the order of the record's boxes.

    Raises:
        DataError: a mask cannot be drawn, or the numbers of masks and objects differ.
    """
    record, where = _parse(serialized)
    annotations = _annotations(record, where)
    if annotations is not None:
        segmentations = [annotation.get("segmentation") for annotation in annotations]
    else:
        segmentations = _stored_segmentations(record, where, height, width)
    masks = np.zeros((len(segmentations), height, width), np.uint8)
    for number, segmentation in enumerate(segmentations):
        try:
            masks[number] = draw_mask(segmentation, height=height, width=width)
        except Exception as error:  # pycocotools raises errors of many types
            raise DataError(
                f"{where}: the mask of object {number} cannot be drawn on {width}x{height} pixels ({error}). "
                "Check the data set with `check-data`, and write the records again."
            ) from None
    return masks


def draw_mask(segmentation: Any, *, height: int, width: int) -> np.ndarray:
    """Draws a valid COCO segmentation with pycocotools.

    Args:
        segmentation: polygons or an RLE; None or empty: an empty mask.
        height: height of the image in pixels.
        width: width of the image in pixels.

    Returns:
        uint8 [H, W], 1 inside.

    Raises:
        ValueError: the RLE has another size.
    """
    from pycocotools import mask

    if isinstance(segmentation, Mapping) and list(segmentation["size"]) != [height, width]:
        raise ValueError(f"its size is {segmentation['size']}")
    rle = compressed_rle(segmentation, height=height, width=width)
    return np.zeros((height, width), np.uint8) if rle is None else np.asarray(mask.decode(rle), np.uint8)


def record_keypoints(serialized: bytes, height: int, width: int, num_keypoints: int) -> np.ndarray:
    """Reads the keypoints of a record's objects.

    Args:
        serialized: a serialized `tf.train.Example`.
        height: height of the image in pixels.
        width: width of the image in pixels.
        num_keypoints: K, the max number per category.

    Returns:
        float32 [N, K, 3], (y, x, visibility), normalised, in the order of the record's
        boxes; zeros for missing and unlabelled points.

    Raises:
        DataError: an object has more keypoints, or the keypoints cannot be assigned to the objects.
    """
    record, where = _parse(serialized)
    annotations = _annotations(record, where)
    if annotations is not None:
        values = [annotation.get("keypoints") or [] for annotation in annotations]
    else:
        points = object_keypoints(record, object_count(record))
        if points is None:
            raise DataError(f"{where}: the keypoints cannot be assigned to the objects. Write the records again.")
        values = [coco_keypoints(each, height=height, width=width) for each in points]
    keypoints = np.zeros((object_count(record), num_keypoints, 3), np.float32)
    for number, each in enumerate(values):
        xyv = np.asarray(each, np.float64).reshape(-1, 3)
        if len(xyv) > num_keypoints:
            raise DataError(
                f"{where}: object {number} has {len(xyv)} keypoints, but categories have at most {num_keypoints}. "
                "Write the records again with these categories."
            )
        yxv = xyv[:, [1, 0, 2]] / [height, width, 1]
        keypoints[number, : len(xyv)] = np.where(xyv[:, 2:] > 0, yxv, 0.0)
    return keypoints


def refuse_category(serialized: bytes, category_ids: np.ndarray) -> np.ndarray:
    """Raises the error for the first object with an unknown category.

    Args:
        serialized: a serialized `tf.train.Example`.
        category_ids: known category ids.

    Raises:
        DataError: always.
    """
    record, where = _parse(serialized)
    labels = [int(label) for label in record.get(features.CLASS_LABEL, [])]
    number, label = next((each for each in enumerate(labels) if each[1] not in category_ids), (0, None))
    known = ", ".join(map(str, category_ids[:10].tolist())) + (", ..." if len(category_ids) > 10 else "")
    raise DataError(
        f"{where}: object {number} has the unknown category {label}; the data set has {known}. "
        "Write the records again with these categories."
    )


def _parse(serialized: bytes) -> tuple[Record, str]:
    record = parse_record(serialized, "a training record")
    return record, f"the record of image {source_id(record) or 'without id'!r}"


def _annotations(record: Record, where: str) -> Sequence[Mapping[str, Any]] | None:
    """Unpacks the COCO annotations of a record's objects; None: a record of another tool."""
    packed = first_bytes(record, features.COCO)
    if not packed:
        return None
    _, annotations = unpack_entries(packed)
    if len(annotations) != object_count(record):
        raise DataError(
            f"{where}: {len(annotations)} annotations for {object_count(record)} boxes. Write the records again."
        )
    return annotations


def _stored_segmentations(record: Record, where: str, height: int, width: int) -> list[Any]:
    count = object_count(record)
    try:
        stored = object_masks(record, count) or [[]] * count
        return [segmentation_of(each, height=height, width=width) for each in stored]
    except MaskError as error:
        raise DataError(f"{where}: {error}. Write the records again.") from None
