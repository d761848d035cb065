"""Types shared by the library: labels, image infos, detections.

All are named tuples of tensors that pass `tf.data`, `tf.function` and `tf.distribute`
unchanged; an optional field is None.  Shapes are static: padding plus validity masks.
"""

from typing import Literal, NamedTuple

import tensorflow as tf

ResizeMode = Literal["fit", "stretch", "short_side"]


class Resizing(NamedTuple):
    """Resizing of an image of any size to the network's input; the rest of the input is padding.

    size: (height, width) in pixels of the part of the input that an image may fill.
    mode: `fit`: the largest scale at which the image fits, sizes rounded down; `stretch`:
        exactly to `size`, ignoring the aspect ratio; `short_side`: the short side to `short_side`
        pixels, but no side above `long_side` or `size`, sizes rounded to the nearest.
    short_side: pixels; for `short_side` only.
    long_side: pixels; for `short_side` only.
    half_pixel_centers: bilinear samples are at the centers of pixels; False: at their corners, as in TensorFlow 1.
    """

    size: tuple[int, int]
    mode: ResizeMode = "fit"
    short_side: int = 0
    long_side: int = 0
    half_pixel_centers: bool = True


class Labels(NamedTuple):
    """Ground truth of a batch, in pixels and classes of the network.

    boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax) in pixels of the network
        input; rows of padding are zero.
    classes: int32 [B, N], contiguous class index, 0 <= class < num_classes.
    valid: bool [B, N], True for objects; False for padding and crowds.
    masks: uint8 [B, N, m, m], each object's mask within its box, 1 inside, stretched to
        m x m; all 0: annotated without a mask, so that only the box is learned; None for a
        detector without masks.
    keypoints: float32 [B, N, K, 3], (y, x, visibility): pixels of the network input, and
        COCO's 0 (not labelled, or outside the input: then all three are 0), 1 or 2; None
        for a detector without keypoints.
    crowds: bool [B, N], True for boxes around groups of objects without boxes of their
        own: anchors inside are neither objects nor background; None: no crowds.
    weights: float32 [B, N], >= 0, factor of the loss of each object; None: all are 1.
    sizes: float32 [B, 2], (height, width) in pixels of the image at the top left of the
        network input; None: it fills the input.
    """

    boxes: tf.Tensor
    classes: tf.Tensor
    valid: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None
    crowds: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    sizes: tf.Tensor | None = None


class ImageInfo(NamedTuple):
    """Sizes and scales of a batch of images, to map boxes back to the original images.

    original_size: float32 [B, 2], (height, width) of the encoded image in pixels.
    scale: float32 [B, 2], (y, x): input pixel = original pixel * scale.
        The image is at the top left of the input, the rest is padding.
    """

    original_size: tf.Tensor
    scale: tf.Tensor


class Detections(NamedTuple):
    """Fixed-size detections, best score first.

    boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax), normalised to the original
        image: 0 <= min <= max <= 1.
    scores: float32 [B, N], 0 beyond `num`.
    classes: int32 [B, N], contiguous class index.
    num: int32 [B], number of valid rows.
    masks: float32 [B, N, m, m], probabilities within each box (see `detection.ops.masks`);
        None for a detector without masks.
    keypoints: float32 [B, N, K, 3], (y, x, score), normalised to the original image; None
        for a detector without keypoints.
    anchors: int32 [B, N], index of each box's anchor; None: not asked for, or no such detector.
    class_scores: float32 [B, N, C], or C + 1 with the background first, the anchor's scores of
        all classes; None: as `anchors`.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    classes: tf.Tensor
    num: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None
    anchors: tf.Tensor | None = None
    class_scores: tf.Tensor | None = None


class AnchorOutputs(NamedTuple):
    """Outputs of a detector for each of its A anchors.

    deltas: float32 [B, A, 4], (ty, tx, th, tw), as defined in `detection.ops.boxes`.
    logits: float32 [B, A, C].
    """

    deltas: tf.Tensor
    logits: tf.Tensor


class RawDetections(NamedTuple):
    """Boxes and scores of all A anchors, before non-maximum suppression.

    boxes: float32 [B, A, 4], (ymin, xmin, ymax, xmax), normalised to the original image;
        they may extend beyond it.
    scores: float32 [B, A, C], probability of each class.
    """

    boxes: tf.Tensor
    scores: tf.Tensor


class EncodedImage(NamedTuple):
    """One encoded image with its size.

    image_id: COCO's id.
    name: name in error messages.
    encoded: the bytes of the file.
    height, width: stored pixels; EXIF rotation is not applied.
    """

    image_id: int
    name: str
    encoded: bytes
    height: int
    width: int
