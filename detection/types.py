"""The few types that everything in the library passes around.

All are named tuples of tensors, so they go through `tf.data`, `tf.function` and
`tf.distribute` as they are, with None in a field that is not there.  Shapes are
static: padding plus validity masks.
"""

from typing import NamedTuple

import tensorflow as tf


class Labels(NamedTuple):
    """Ground truth of a batch, in the network's own terms.

    boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax) in pixels of the network
        input; rows of padding are zero.
    classes: int32 [B, N], contiguous class index, 0 <= class < num_classes.
    valid: bool [B, N], the row is an object; False for padding, and for crowds.
    masks: uint8 [B, N, m, m], each object's mask within its box, 1 inside, stretched to
        m x m; None for a detector without masks.
    keypoints: float32 [B, N, K, 3], (y, x, visibility): pixels of the network input, and
        COCO's 0 (not labelled, or outside the input: then all three are 0), 1 or 2; None
        for a detector without keypoints.
    crowds: bool [B, N], the row's box is a region full of objects that are not told
        apart: what lies in it counts neither as object nor as background; None where
        such regions are left out.
    """

    boxes: tf.Tensor
    classes: tf.Tensor
    valid: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None
    crowds: tf.Tensor | None = None


class ImageInfo(NamedTuple):
    """How each image came to be the network's input; enough to map boxes back.

    original_size: float32 [B, 2], (height, width) of the encoded image in pixels.
    scale: float32 [B, 2], (y, x): input pixel = original pixel * scale.
        The image lies at the input's top-left corner, the rest is padding.
    """

    original_size: tf.Tensor
    scale: tf.Tensor


class Detections(NamedTuple):
    """Fixed-size detections, best score first.

    boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax), normalised to the original
        image: 0 <= min <= max <= 1.
    scores: float32 [B, N], 0 beyond `num`.
    classes: int32 [B, N], contiguous class index.
    num: int32 [B], how many rows count.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    classes: tf.Tensor
    num: tf.Tensor


class EncodedImage(NamedTuple):
    """One image to look at.

    image_id: COCO's id.
    name: how error messages call it.
    encoded: the bytes of the file.
    height, width: stored pixels; EXIF rotation is not applied.
    """

    image_id: int
    name: str
    encoded: bytes
    height: int
    width: int
