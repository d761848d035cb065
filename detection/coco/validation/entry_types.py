"""Types of the entries that an evaluation reads: the definition of a valid image, category, annotation and detection.

msgspec decodes JSON files with these types, and converts parsed JSON to them. Both leave
out all other keys. `detection.coco.validation.checks` has what depends on other entries.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from detection.datasets.entries import LARGEST_ID, Flag, Id, Number, Side

Box = tuple[Number, Number, Side, Side]  # x, y, width, height in pixels
Pixels = Annotated[int, msgspec.Meta(gt=0, le=LARGEST_ID)]
Segmentation = Any


class Image(TypedDict):
    """An entry of `images`."""

    id: Id


class SizedImage(Image):
    """An image whose masks are compared."""

    height: Pixels
    width: Pixels


class LvisImage(Image):
    """An image of LVIS."""

    neg_category_ids: list[Id]
    not_exhaustive_category_ids: list[Id]


class SizedLvisImage(SizedImage, LvisImage):
    """An image of LVIS whose masks are compared."""


class Category(TypedDict):
    """An entry of `categories`."""

    id: Id
    name: NotRequired[Any]


class LvisCategory(Category):
    """A category of LVIS: rare, common or frequent."""

    frequency: Literal["r", "c", "f"]


class BoxAnnotation(TypedDict):
    """An entry of `annotations`; some tools write `is_crowd` for `iscrowd`."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: Box
    area: NotRequired[Side]
    iscrowd: NotRequired[Flag]
    is_crowd: NotRequired[Flag]
    ignore: NotRequired[Any]


class MaskAnnotation(BoxAnnotation):
    """An annotation whose mask is compared."""

    segmentation: NotRequired[Segmentation]


class KeypointAnnotation(BoxAnnotation):
    """An annotation whose keypoints are compared."""

    keypoints: NotRequired[list[Number]]
    num_keypoints: NotRequired[Id]


class BoxDetection(msgspec.Struct, gc=False):
    """A detection whose box is compared."""

    image_id: Id
    category_id: Id
    bbox: Box
    score: Number


class Detection(TypedDict):
    """A detection whose mask or keypoints are compared."""

    image_id: Id
    category_id: Id
    score: Number
    bbox: NotRequired[Box]
    segmentation: NotRequired[Segmentation]
    keypoints: NotRequired[list[Number]]


ANNOTATIONS: dict[str, Any] = {"bbox": BoxAnnotation, "segm": MaskAnnotation, "keypoints": KeypointAnnotation}
DETECTIONS: dict[str, Any] = {"bbox": BoxDetection, "segm": Detection, "keypoints": Detection}

_ID = "Each needs one: an integer from 0 to 2^53."
# What to do about a key that is missing or does not have its type.
REMEDIES = {
    "id": _ID,
    "image_id": _ID,
    "category_id": _ID,
    "file_name": "Images are found by it: add it.",
    "score": "Each needs one: a finite number.",
    "bbox": "Each needs one: four finite numbers, x, y, width, height in pixels.",
    "area": "Write a finite number of square pixels, not below 0.",
    "iscrowd": "Write 1 for a crowd, 0 for a single object.",
    "is_crowd": "Write 1 for a crowd, 0 for a single object.",
    "num_keypoints": "Write the number of labelled keypoints, or leave it out.",
    "keypoints": "Write x, y, visibility of each keypoint.",
    "height": "Masks need the image's size: add it in pixels.",
    "width": "Masks need the image's size: add it in pixels.",
    "neg_category_ids": "LVIS' images have such a list of category ids. Give LVIS' file, or evaluate as COCO does.",
    "not_exhaustive_category_ids": "LVIS' images have such a list of category ids. "
    "Give LVIS' file, or evaluate as COCO does.",
    "frequency": "LVIS' categories have one, r, c or f. Add it, or evaluate as COCO does.",
}
