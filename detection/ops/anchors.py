"""Anchor boxes of a feature pyramid, as constants."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def feature_sizes(image_size: tuple[int, int], max_level: int) -> list[tuple[int, int]]:
    """(height, width) of the feature maps of levels 0..max_level: each half the one before, rounded up."""
    sizes = [image_size]
    for _ in range(max_level):
        height, width = sizes[-1]
        sizes.append(((height + 1) // 2, (width + 1) // 2))
    return sizes


def pyramid_anchors_yxyx(
    image_size: tuple[int, int],
    *,
    min_level: int,
    max_level: int,
    num_scales: int,
    aspect_ratios: Sequence[float],
    anchor_scale: float,
) -> npt.NDArray[np.float32]:
    """Anchors of all cells, ordered by level, row, column, octave scale, aspect ratio.

    A cell's stride is the real ratio of image size and feature size, so any image
    size works.  An anchor's base side is `anchor_scale` strides times 2^(o/num_scales).

    Args:
        image_size: (height, width) of the network input in pixels.
        min_level: finest pyramid level; level l has about image_size / 2^l cells a side.
        max_level: coarsest level.
        num_scales: octave scales, o = 0..num_scales-1.
        aspect_ratios: width / height of the anchors.
        anchor_scale: base anchor side in strides.

    Returns:
        float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels; they may reach outside.
    """
    sizes = feature_sizes(image_size, max_level)
    levels = []
    for height, width in sizes[min_level:]:
        stride = np.array([image_size[0] / height, image_size[1] / width])
        half = _half_sizes(stride, num_scales, aspect_ratios, anchor_scale)
        centre_y = (np.arange(height) + 0.5) * stride[0]
        centre_x = (np.arange(width) + 0.5) * stride[1]
        centres = np.stack(np.meshgrid(centre_y, centre_x, indexing="ij"), axis=-1)[:, :, None, :]
        levels.append(np.concatenate([centres - half, centres + half], axis=-1).reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def _half_sizes(
    stride: npt.NDArray[np.float64], num_scales: int, aspect_ratios: Sequence[float], anchor_scale: float
) -> npt.NDArray[np.float64]:
    """Half (height, width) of one cell's anchors, float64 [num_scales * len(aspect_ratios), 2]."""
    shapes = [
        (2.0 ** (octave / num_scales) / ratio**0.5, 2.0 ** (octave / num_scales) * ratio**0.5)
        for octave in range(num_scales)
        for ratio in aspect_ratios
    ]
    return np.array(shapes) * stride * anchor_scale / 2.0
