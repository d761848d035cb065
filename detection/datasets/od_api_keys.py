"""Masks and keypoints of an image under the keys of the TF Object Detection API, whose decoder reads them.

Source: `dataset_tools/create_coco_tf_record.py` and `data_decoders/tf_example_decoder.py` of the original.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from detection.datasets.importers.source_format import (
    KEYPOINT_NUM,
    KEYPOINT_TEXT,
    KEYPOINT_VISIBILITY,
    KEYPOINT_X,
    KEYPOINT_Y,
    MASK,
)
from detection.datasets.masks import compressed_rle


def od_api_values(
    annotations: Sequence[Mapping[str, Any]], *, height: int, width: int, keypoints: Mapping[int, Sequence[str]]
) -> dict[str, list[Any]]:
    """Returns the values by key; a key without values is left out.

    `mask` has a PNG of the image's size per object, 1 inside, without a mask all 0.  The keypoints of an object are
    those of all categories, in the order of `keypoints`: of other categories and if missing, they are at 0 with the
    visibility 0.

    Args:
        annotations: the image's annotations, N.
        height: height of the image in pixels.
        width: width of the image in pixels.
        keypoints: names of the keypoints by category id.
    """
    values: dict[str, list[Any]] = {}
    if any(annotation.get("segmentation") for annotation in annotations):
        values[MASK] = [_png(annotation.get("segmentation"), height, width) for annotation in annotations]
    names = [name for own in keypoints.values() for name in own]
    if names:
        rows = np.zeros([len(annotations), len(names), 3])
        for row, annotation in zip(rows, annotations, strict=True):
            first = 0
            for category, own in keypoints.items():
                if annotation["category_id"] == category and annotation.get("keypoints"):
                    row[first : first + len(own)] = np.reshape(annotation["keypoints"], [-1, 3])
                first += len(own)
        rows[rows[..., 2] == 0] = 0.0
        visibility = rows[..., 2].astype(int)
        values |= {
            KEYPOINT_X: (rows[..., 0] / width).ravel().tolist(),
            KEYPOINT_Y: (rows[..., 1] / height).ravel().tolist(),
            KEYPOINT_VISIBILITY: visibility.ravel().tolist(),
            KEYPOINT_TEXT: [name.encode() for name in names] * len(annotations),
            KEYPOINT_NUM: (visibility > 0).sum(axis=1).tolist(),
        }
    return {key: listed for key, listed in values.items() if listed}


def _png(segmentation: Any, height: int, width: int) -> bytes:
    from pycocotools import mask

    rle = compressed_rle(segmentation, height=height, width=width)
    pixels = np.zeros([height, width], np.uint8) if rle is None else mask.decode(rle)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
