"""Types of the entries of an evaluation: define valid images, categories, annotations and detections.

msgspec decodes JSON files with these types, and converts parsed JSON to them. Both drop all other
keys. `detection.coco.validation.checks` has the rules that depend on other entries.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from detection.datasets.entries import LARGEST_ID, Flag, Id, Number, Side

Box = tuple[Number, Number, Side, Side]  # x, y, width, height in pixels
Pixels = Annotated[int, msgspec.Meta(gt=0, le=LARGEST_ID)]
Segmentation = Any


class _IdentifiedImage(TypedDict):
    id: Id


class Image(_IdentifiedImage):
    """An entry of `images`; Open Images lists the categories that were verified to be present or absent."""

    pos_category_ids: NotRequired[list[Id]]
    neg_category_ids: NotRequired[list[Id]]


class SizedImage(Image):
    """An image for comparing masks."""

    height: Pixels
    width: Pixels


class LvisImage(_IdentifiedImage):
    """An image of LVIS."""

    neg_category_ids: list[Id]
    not_exhaustive_category_ids: list[Id]


class SizedLvisImage(LvisImage):
    """An image of LVIS for comparing masks."""

    height: Pixels
    width: Pixels


class Category(TypedDict):
    """An entry of `categories`."""

    id: Id
    name: NotRequired[Any]


class LvisCategory(Category):
    """A category of LVIS: rare, common or frequent."""

    frequency: Literal["r", "c", "f"]


class BoxAnnotation(TypedDict):
    """An entry of `annotations`; some tools write `is_crowd` for `iscrowd`.

    `difficult` is PASCAL VOC's, `is_group_of` Open Images', `group_of` that of the TF Object Detection API's
    records.
    """

    id: Id
    image_id: Id
    category_id: Id
    bbox: Box
    area: NotRequired[Side]
    iscrowd: NotRequired[Flag]
    is_crowd: NotRequired[Flag]
    ignore: NotRequired[Any]
    difficult: NotRequired[Any]
    is_group_of: NotRequired[Any]
    group_of: NotRequired[Any]


class MaskAnnotation(BoxAnnotation):
    """An annotation for comparing masks."""

    segmentation: NotRequired[Segmentation]


class KeypointAnnotation(BoxAnnotation):
    """An annotation for comparing keypoints."""

    keypoints: NotRequired[list[Number]]
    num_keypoints: NotRequired[Id]


class BoxDetection(msgspec.Struct, gc=False):
    """A detection for comparing boxes."""

    image_id: Id
    category_id: Id
    bbox: Box
    score: Number


class Detection(TypedDict):
    """A detection for comparing masks or keypoints."""

    image_id: Id
    category_id: Id
    score: Number
    bbox: NotRequired[Box]
    segmentation: NotRequired[Segmentation]
    keypoints: NotRequired[list[Number]]


ANNOTATIONS: dict[str, Any] = {"bbox": BoxAnnotation, "segm": MaskAnnotation, "keypoints": KeypointAnnotation}
DETECTIONS: dict[str, Any] = {"bbox": BoxDetection, "segm": Detection, "keypoints": Detection}

_ID = "Every entry needs one: an integer from 0 to 2^53."
# Remedies for a missing or invalid key.
REMEDIES = {
    "id": _ID,
    "image_id": _ID,
    "category_id": _ID,
    "file_name": "Images are found by file name: add it.",
    "score": "Every detection needs one: a finite number.",
    "bbox": "Every entry needs one: four finite numbers, x, y, width, height in pixels.",
    "area": "Write a finite number of square pixels, at least 0.",
    "iscrowd": "Write 1 for a crowd, 0 for a single object.",
    "is_crowd": "Write 1 for a crowd, 0 for a single object.",
    "num_keypoints": "Write the number of labelled keypoints, or omit it.",
    "keypoints": "Write x, y, visibility of each keypoint.",
    "height": "Masks need the image's size: add it in pixels.",
    "width": "Masks need the image's size: add it in pixels.",
    "neg_category_ids": "LVIS' images have such a list of category ids. Pass LVIS' file, or evaluate as COCO does.",
    "not_exhaustive_category_ids": "LVIS' images have such a list of category ids. "
    "Pass LVIS' file, or evaluate as COCO does.",
    "frequency": "LVIS' categories have one: r, c or f. Add it, or evaluate as COCO does.",
}
