"""Types of the entries of an evaluation: define valid images, categories, annotations and detections.

msgspec decodes JSON files with these types, and converts parsed JSON to them. Both drop all other
keys. `detection.coco.validation.checks` has the rules that depend on other entries.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from detection.datasets.annotations.entries import (
    AREA_REMEDY,
    BOX_REMEDY,
    LARGEST_ID,
    Id,
    IdentifiedEntry,
    Number,
    ObjectEntry,
    Side,
)

Box = Annotated[tuple[Number, Number, Side, Side], Meta(description=BOX_REMEDY)]
Pixels = Annotated[int, Meta(gt=0, le=LARGEST_ID, description="Masks need the image's size: add it in pixels.")]
Points = Annotated[list[Number], Meta(description="Write x, y, visibility of each keypoint.")]
_LvisIds = Annotated[
    list[Id],
    Meta(description="LVIS' images have such a list of category ids. Pass LVIS' file, or evaluate as COCO does."),
]
_OptionalIds = Annotated[list[Id], Meta(description="Write a list of category ids, or omit it.")]


class Image(IdentifiedEntry):
    """An entry of `images`; Open Images lists the categories that were verified to be present or absent."""

    pos_category_ids: NotRequired[_OptionalIds]
    neg_category_ids: NotRequired[_OptionalIds]


class SizedImage(Image):
    """An image for comparing masks."""

    height: Pixels
    width: Pixels


class LvisImage(IdentifiedEntry):
    """An image of LVIS."""

    neg_category_ids: _LvisIds
    not_exhaustive_category_ids: _LvisIds


class SizedLvisImage(LvisImage):
    """An image of LVIS for comparing masks."""

    height: Pixels
    width: Pixels


class NamedImage(IdentifiedEntry):
    """An image that is found by its file name."""

    file_name: Annotated[str, Meta(description="Images are found by file name: add it.")]


class Category(IdentifiedEntry):
    """An entry of `categories`."""

    name: NotRequired[Any]


class LvisCategory(Category):
    """A category of LVIS: rare, common or frequent."""

    frequency: Annotated[
        Literal["r", "c", "f"],
        Meta(description="LVIS' categories have one: r, c or f. Add it, or evaluate as COCO does."),
    ]


class BoxAnnotation(ObjectEntry):
    """An entry of `annotations`.

    `difficult` is PASCAL VOC's, `is_group_of` Open Images', `group_of` that of the TF Object Detection API's
    records.
    """

    bbox: Box
    area: NotRequired[Annotated[Side, Meta(description=AREA_REMEDY)]]
    ignore: NotRequired[Any]
    difficult: NotRequired[Any]
    is_group_of: NotRequired[Any]
    group_of: NotRequired[Any]


class MaskAnnotation(BoxAnnotation):
    """An annotation for comparing masks."""

    segmentation: NotRequired[Any]


class KeypointAnnotation(BoxAnnotation):
    """An annotation for comparing keypoints."""

    keypoints: NotRequired[Points]
    num_keypoints: NotRequired[
        Annotated[int, Meta(ge=0, le=LARGEST_ID, description="Write the number of labelled keypoints, or omit it.")]
    ]


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
    segmentation: NotRequired[Any]
    keypoints: NotRequired[Points]


ANNOTATIONS: dict[str, Any] = {"bbox": BoxAnnotation, "segm": MaskAnnotation, "keypoints": KeypointAnnotation}
DETECTIONS: dict[str, Any] = {"bbox": BoxDetection, "segm": Detection, "keypoints": Detection}
