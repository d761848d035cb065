"""EXIF orientation: rotates an image upright, and moves detections on its stored pixels along.

Boxes, masks and keypoints of COCO files, and of this library, refer to the stored pixels.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Orientation(NamedTuple):
    """Conversion of stored pixels to the upright image: swap rows and columns first, then mirror.

    swap: rows become columns.
    mirror_x: mirrored left to right.
    mirror_y: mirrored top to bottom.
    """

    swap: bool
    mirror_x: bool
    mirror_y: bool


# By value of the EXIF tag (EXIF 2.3, 4.6.4 A, Orientation).
_ORIENTATIONS = {
    1: Orientation(False, False, False),
    2: Orientation(False, True, False),
    3: Orientation(False, True, True),
    4: Orientation(False, False, True),
    5: Orientation(True, False, False),
    6: Orientation(True, True, False),
    7: Orientation(True, True, True),
    8: Orientation(True, False, True),
}


def upright_pixels(pixels: npt.NDArray[Any], exif: int) -> npt.NDArray[Any]:
    """Rotates the pixels [H, W, ...] of an image or a mask as its EXIF orientation (1..8) says."""
    swap, mirror_x, mirror_y = _ORIENTATIONS[exif]
    shown = np.swapaxes(pixels, 0, 1) if swap else pixels
    return np.ascontiguousarray(shown[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1])


def upright_points(points_xy: npt.ArrayLike, exif: int, *, height: int, width: int) -> npt.NDArray[np.float64]:
    """Moves points [..., 2] (x, y) in stored pixels to the upright image.

    Args:
        points_xy: the points.
        exif: orientation, 1..8.
        height: height of the stored image in pixels.
        width: width of the stored image in pixels.
    """
    swap, mirror_x, mirror_y = _ORIENTATIONS[exif]
    x, y = np.moveaxis(np.asarray(points_xy, np.float64), -1, 0)
    if swap:
        x, y, height, width = y, x, width, height
    return np.stack([width - x if mirror_x else x, height - y if mirror_y else y], axis=-1)


def upright_boxes(boxes_xywh: npt.ArrayLike, exif: int, *, height: int, width: int) -> npt.NDArray[np.float64]:
    """Moves boxes [N, 4] (x, y, width, height); arguments as in `upright_points`."""
    boxes = np.asarray(boxes_xywh, np.float64).reshape(-1, 4)
    corners = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])
    moved = upright_points(corners, exif, height=height, width=width)
    return np.hstack([moved.min(axis=0), np.ptp(moved, axis=0)])


def upright_mask(rle: Mapping[str, Any], exif: int) -> Mapping[str, Any]:
    """Moves a compressed RLE of the stored image's size."""
    if exif == 1:
        return rle
    from pycocotools import mask

    moved: Mapping[str, Any] = mask.encode(np.asfortranarray(upright_pixels(np.asarray(mask.decode(rle)), exif)))
    return moved
