"""Samples whose pixels tell where they came from: red is the row, green the column, blue the image's number.

So an augmented image is its own reference: the colour at a moved keypoint or box corner
says which place of which image it shows.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from detection.input_pipeline.sample import Sample

BLUE = 60  # between the numbers of two images
KEYPOINTS = 2


def coordinate_image(height: int, width: int, number: int = 0) -> np.ndarray:
    """Uint8 [H, W, 3]; sides up to 256."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows, columns, np.full_like(rows, number * BLUE)], axis=-1).astype(np.uint8)


def coordinate_sample(
    height: int,
    width: int,
    boxes: list[tuple[int, int, int, int]],
    *,
    number: int = 0,
    crowds: list[bool] | None = None,
) -> Sample:
    """Objects are filled boxes (y0, x0, y1, x1 in whole pixels), classes count on from 10 * number.

    Keypoint 0 is the centre of the box's first pixel, keypoint 1 that of its last.
    """
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    size = np.array([height, width], np.float32)
    masks = np.zeros((len(boxes), height, width), np.uint8)
    for mask, (top, left, bottom, right) in zip(masks, boxes, strict=True):
        mask[top:bottom, left:right] = 1
    points = np.stack([corners[:, :2] + 0.5, corners[:, 2:] - 0.5], axis=1) / size
    visibility = np.tile([[[2.0], [1.0]]], (len(boxes), 1, 1))
    return Sample(
        tf.constant(coordinate_image(height, width, number)),
        tf.constant(corners / np.tile(size, 2)),
        tf.constant(10 * number + np.arange(len(boxes)), tf.int32),
        masks=tf.constant(masks),
        keypoints=tf.constant(np.concatenate([points, visibility], axis=-1), tf.float32),
        crowds=None if crowds is None else tf.constant(crowds, tf.bool),
    )


@st.composite
def coordinate_samples(draw: st.DrawFn, *, number: int = 0, least: int = 0) -> Sample:
    """Random sizes and objects."""
    height, width = draw(st.integers(8, 60)), draw(st.integers(8, 60))
    boxes = []
    for _ in range(draw(st.integers(least, 4))):
        top, left = draw(st.integers(0, height - 4)), draw(st.integers(0, width - 4))
        boxes.append((top, left, draw(st.integers(top + 2, height)), draw(st.integers(left + 2, width))))
    return coordinate_sample(height, width, boxes, number=number)


seeds = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))


def array(field: Any) -> np.ndarray:
    """The values of a field that is there."""
    assert field is not None
    return np.asarray(field)


def pixel_boxes(sample: Sample) -> np.ndarray:
    """Float [N, 4], in pixels of the sample's image."""
    return np.asarray(sample.boxes_yxyx) * np.tile(sample.image.shape[:2], 2)


def mask_boxes(masks: Any) -> np.ndarray:
    """Float [N, 4]: the box around each mask, none of them empty."""
    boxes = []
    for mask in array(masks):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        boxes.append([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1])
    return np.array(boxes, np.float64).reshape(-1, 4)


def assert_points_show_their_origin(sample: Sample, originals: dict[int, Sample], *, atol: float) -> int:
    """Each labelled keypoint lies where the image shows the pixel that it was put on; returns how many.

    Args:
        sample: augmented.
        originals: image number -> what it was.
        atol: in pixels of the original.
    """
    image, checked = sample.image.numpy().astype(float), 0
    size = np.array(image.shape[:2])
    for label, points in zip(sample.classes.numpy(), array(sample.keypoints), strict=True):
        original = originals[label // 10]
        row = int(np.flatnonzero(original.classes.numpy() == label)[0])
        for point, before in zip(points, array(original.keypoints)[row], strict=True):
            if point[2] == 0:
                assert (point == 0).all()
                continue
            assert point[2] == before[2]
            y, x = np.minimum(point[:2] * size, size - 1).astype(int)
            np.testing.assert_allclose(
                image[y, x, :2], before[:2] * original.image.shape[:2] - 0.5, atol=atol, err_msg=str(label)
            )
            checked += 1
    return checked


def assert_equal(left: Sample, right: Sample) -> None:
    """The same bits in every field."""
    for one, other in zip(left, right, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one.numpy(), other.numpy())
