"""RoIAlign over a feature pyramid: features of regions of interest (RoIs), resampled to one size.

The size of a RoI selects its pyramid level (Lin et al., "Feature Pyramid Networks", 2017,
eq. 1).  The RoI is divided into bins; a bin is the mean of bilinear samples on a regular grid
(He et al., "Mask R-CNN", 2017, section 3).  Cell i of a map has its centre at i + 0.5
strides; samples beyond the outermost centres take the value of the border.

`crop_max_pool` resamples as the TF Object Detection API does instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from detection.ops.boxes import area_yxyx

_CANONICAL_SIDE = 224.0  # side in pixels of RoIs on level 4, the size of ImageNet images
CANONICAL_LEVEL = 4


def roi_levels(
    boxes: tf.Tensor, *, min_level: int, max_level: int, canonical_level: int = CANONICAL_LEVEL
) -> tf.Tensor:
    """Returns the pyramid level of each RoI: floor(log2(sqrt(area) / 224)) + canonical_level, clamped.

    Computed by comparing areas, because float32 logarithms are not exact at powers of 2.

    Args:
        boxes: float32 [..., 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        min_level: finest level, also used for boxes without an area.
        max_level: coarsest level.
        canonical_level: level of RoIs with the area of 224 x 224 pixels.

    Returns:
        int32 [...].
    """
    area = area_yxyx(boxes)
    levels = tf.fill(tf.shape(area), min_level)
    for level in range(min_level + 1, max_level + 1):
        side = _CANONICAL_SIDE * 2.0 ** (level - canonical_level)
        levels += tf.cast(area >= side**2, tf.int32)
    return levels


def roi_align(
    features: Sequence[tf.Tensor],
    boxes: tf.Tensor,
    *,
    image_size: tuple[int, int],
    min_level: int,
    output_size: int,
    samples: int = 1,
    cell_centre: float = 0.5,
    canonical_level: int = CANONICAL_LEVEL,
    corners: bool = False,
    portable: bool = False,
) -> tf.Tensor:
    """Resamples the features of RoIs to `output_size` x `output_size` bins.

    The gradient flows to the features, not to the boxes.  Sums are computed in float32.

    On CPUs without XLA, bins are the product of a sparse matrix with all features, which is
    several times as fast as gathering cells, forward and backward.  XLA and LiteRT have no such
    product, and GPUs do not need it.  The choice is made at tracing time: a `tf.function` traced
    without XLA needs `portable` to be called from a compiled one.

    Args:
        features: float [B, h, w, C] per level, finest first, of static shape except B.
        boxes: float32 [B, R, 4], (ymin, xmin, ymax, xmax) in pixels of the network input;
            they may exceed the input, and may be empty.
        image_size: (height, width) of the network input in pixels; strides are the exact ratio
            of image_size and feature size.
        min_level: level of `features[0]`.
        output_size: bins per side.
        samples: samples per bin and side, >= 1: 1 as in TPU Mask R-CNN, 2 as in torchvision.
        cell_centre: position of a cell's centre in strides from its start.  0 as in TPU Mask
            R-CNN, whose features are shifted by half a cell towards the image's origin.
        canonical_level: level of RoIs with the area of 224 x 224 pixels.
        corners: place samples as `tf.image.crop_and_resize` does: the outermost ones are on the RoI's border, and
            the image's corners are the centres of the corner cells; `samples` is 1, and `cell_centre` is ignored.
        portable: use only ops that XLA, LiteRT and ONNX have.

    Returns:
        [B, R, output_size, output_size, C], dtype of the features.
    """
    bins = _find_bins(
        tf.stop_gradient(boxes),
        [(feature.shape[1], feature.shape[2]) for feature in features],
        image_size=image_size,
        min_level=min_level,
        output_size=output_size,
        samples=samples,
        cell_centre=cell_centre,
        canonical_level=canonical_level,
        corners=corners,
    )
    gathers = portable or features[0].dtype != tf.float32 or on_accelerator()
    return _pool(tf.concat([_rows(feature) for feature in features], axis=1), bins, gathers=gathers)


def crop_max_pool(features: Sequence[tf.Tensor], boxes: tf.Tensor, *, output_size: int, **options: Any) -> tf.Tensor:
    """Resamples RoIs to twice the size as `tf.image.crop_and_resize` does, and takes the maxima of 2 x 2 bins.

    Source: the TF Object Detection API's Faster R-CNN; arguments and result as in `roi_align`.
    """
    crops = roi_align(features, boxes, output_size=2 * output_size, corners=True, **options)
    pooled = tf.nn.max_pool2d(tf.reshape(crops, [-1, *crops.shape[2:]]), 2, 2, padding="VALID")
    return tf.reshape(pooled, tf.concat([tf.shape(boxes)[:2], list(pooled.shape[1:])], axis=0))


class _Bins(NamedTuple):
    """The cells and weights of each bin; K = 4 samples^2.

    cells: int32 [K, B, R, S, S], indices into the cells of all levels of an image.
    weights: float32 [K, B, R, S, S].
    """

    cells: tf.Tensor
    weights: tf.Tensor


def _find_bins(
    boxes: tf.Tensor,
    sizes: Sequence[tuple[int, int]],
    *,
    image_size: tuple[int, int],
    min_level: int,
    output_size: int,
    samples: int,
    cell_centre: float,
    canonical_level: int,
    corners: bool,
) -> _Bins:
    max_level = min_level + len(sizes) - 1
    levels = roi_levels(boxes, min_level=min_level, max_level=max_level, canonical_level=canonical_level) - min_level
    steps = tf.range(output_size * samples, dtype=tf.float32)
    places = steps / max(output_size - 1, 1) if corners else (steps + 0.5) / (output_size * samples)
    axes = []
    for axis in (0, 1):
        counts = tf.gather(tf.constant([size[axis] for size in sizes]), levels)[..., tf.newaxis]
        low, high = boxes[..., axis, tf.newaxis], boxes[..., axis + 2, tf.newaxis]
        pixels = low + places * (high - low)
        strides = tf.cast(counts - int(corners), tf.float32) / image_size[axis]
        centres = pixels * strides - (0.0 if corners else cell_centre)
        axes.append(_neighbours(centres, counts))
    (rows, row_weights), (columns, column_weights) = axes
    widths = tf.gather(tf.constant([width for _, width in sizes]), levels)[..., tf.newaxis]
    starts = [sum(height * width for height, width in sizes[:level]) for level in range(len(sizes))]
    first_of_row = rows * widths + tf.gather(tf.constant(starts), levels)[..., tf.newaxis]

    shape = tf.concat([[4 * samples**2], tf.shape(levels), [output_size, output_size]], axis=0)
    cells = _of_bins(first_of_row, samples, axis=0) + _of_bins(columns, samples, axis=1)
    weights = _of_bins(row_weights, samples, axis=0) * _of_bins(column_weights, samples, axis=1)
    return _Bins(tf.reshape(cells, shape), tf.reshape(weights, shape) / samples**2)


def _of_bins(values: tf.Tensor, samples: int, *, axis: int) -> tf.Tensor:
    """Reshapes values of rows (axis 0) or columns (1), [2, B, R, S * samples], so that both broadcast to all bins.

    LiteRT broadcasts at most five dimensions.

    Returns:
        [2 * samples, 1, B * R, S, 1] for rows, or [2 * samples, B * R, 1, S] for columns.
    """
    size = values.shape[-1] // samples
    values = tf.transpose(tf.reshape(values, [2, -1, size, samples]), [0, 3, 1, 2])
    shape = [2 * samples, 1, -1, size, 1] if axis == 0 else [2 * samples, -1, 1, size]
    return tf.reshape(values, shape)


def _neighbours(centres: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the two cells beside each position along an axis, and their weights.

    Args:
        centres: float32 [...], positions in cells from the centre of the first cell.
        counts: int32, broadcasts to [...], numbers of cells.

    Returns:
        indices: int32 [2, ...].
        weights: float32 [2, ...].
    """
    last = tf.cast(counts - 1, tf.float32)
    centres = tf.clip_by_value(centres, 0.0, last)
    # Clip the integers, too: a NaN in a box must not become an index outside of the map.
    low = tf.clip_by_value(tf.cast(tf.floor(centres), tf.int32), 0, tf.maximum(counts - 2, 0))
    high_weight = centres - tf.cast(low, tf.float32)
    high = tf.minimum(low + 1, counts - 1)
    return tf.stack([low, high]), tf.stack([1.0 - high_weight, high_weight])


def _rows(feature: tf.Tensor) -> tf.Tensor:
    return tf.reshape(feature, [-1, feature.shape[1] * feature.shape[2], feature.shape[3]])


def on_accelerator() -> bool:
    """Returns whether the graph being traced is compiled by XLA, or may run on a GPU or TPU."""
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return True
    # TensorFlow sets this context in compiled functions, but has no public API for it.
    return not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _pool(cells: tf.Tensor, bins: _Bins, *, gathers: bool) -> tf.Tensor:
    """Returns the weighted sums [B, R, S, S, C] of cells [B, N, C]."""
    batch, count, channels = tf.shape(cells)[0], cells.shape[1], cells.shape[2]
    offsets = (count * tf.range(batch))[:, tf.newaxis, tf.newaxis, tf.newaxis]
    bins = bins._replace(cells=bins.cells + offsets)
    forward, backward = (_gather, _scatter) if gathers else (_sparse_product, _transposed_sparse_product)

    # The gradient of the ops themselves would sum in the features' dtype, and keep the gathered values in memory.
    @tf.custom_gradient
    def pool(flat: tf.Tensor) -> tuple[tf.Tensor, object]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            summed = backward(tf.reshape(upstream, [-1, channels]), bins, batch * count)
            return tf.cast(tf.reshape(summed, [-1, channels]), flat.dtype)

        return forward(flat, bins), gradient

    pooled = pool(tf.reshape(cells, [-1, channels]))
    return tf.reshape(pooled, tf.concat([tf.shape(bins.cells)[1:], [channels]], axis=0))


def _gather(flat: tf.Tensor, bins: _Bins) -> tf.Tensor:
    """Returns the weighted sums [bins, C] of cells [N, C]."""
    total = None
    for tap in range(bins.cells.shape[0]):
        values = tf.cast(tf.gather(flat, tf.reshape(bins.cells[tap], [-1])), tf.float32)
        values *= tf.reshape(bins.weights[tap], [-1, 1])
        total = values if total is None else total + values
    return tf.cast(total, flat.dtype)


def _scatter(values: tf.Tensor, bins: _Bins, count: tf.Tensor) -> tf.Tensor:
    """Scatters the bins' values [bins, C] to the cells, by their weights; returns the sums [count, C]."""
    values = tf.cast(values, tf.float32)
    total = tf.zeros([count, values.shape[1]])
    # One tap at a time into the same buffer: all taps at once would take K times the memory.
    for tap in range(bins.cells.shape[0]):
        weighted = values * tf.reshape(bins.weights[tap], [-1, 1])
        total = tf.tensor_scatter_nd_add(total, tf.reshape(bins.cells[tap], [-1, 1]), weighted)
    return total


def _sparse_product(flat: tf.Tensor, bins: _Bins) -> tf.Tensor:
    """`_gather` as a product with the sparse matrix of the weights."""
    return tf.sparse.sparse_dense_matmul(_sparse_weights(bins, tf.shape(flat)[0]), flat)


def _transposed_sparse_product(values: tf.Tensor, bins: _Bins, count: tf.Tensor) -> tf.Tensor:
    """`_scatter` as a product with the transposed sparse matrix of the weights."""
    return tf.sparse.sparse_dense_matmul(_sparse_weights(bins, count), values, adjoint_a=True)


def _sparse_weights(bins: _Bins, count: tf.Tensor) -> tf.SparseTensor:
    """Returns the weights [bins, count], ordered by bin."""
    taps, number = bins.cells.shape[0], tf.size(bins.cells[0])
    order = [1, 2, 3, 4, 0]
    rows = tf.repeat(tf.range(number), taps)
    columns = tf.reshape(tf.transpose(bins.cells, order), [-1])
    weights = tf.reshape(tf.transpose(bins.weights, order), [-1])
    indices = tf.cast(tf.stack([rows, columns], axis=1), tf.int64)
    return tf.SparseTensor(indices, weights, tf.cast([number, count], tf.int64))
