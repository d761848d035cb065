"""Keypoints of detections: positions regressed from centers, refined by the peaks of heat-maps.

As in the TF Object Detection API's CenterNets; Zhou et al., "Objects as Points", 2019, section 6.2.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.centernet.keypoint_options import KeypointPostprocess
from detection.models.centernet.keypoint_targets import keypoint_sigmas
from detection.models.centernet.peaks import peaks
from detection.ops.nms import Picked
from detection.types import ImageInfo

_FAR = 1e5  # cells; distance of a candidate below the threshold


class Candidates(NamedTuple):
    """The best M peaks of P heat-maps, best first.

    points: float32 [B, P, M, 2], (y, x) in cells.
    scores: float32 [B, P, M].
    """

    points: tf.Tensor
    scores: tf.Tensor


def keypoint_candidates(heatmap: tf.Tensor, offsets: tf.Tensor, options: KeypointPostprocess) -> Candidates:
    """Returns the best peaks of each heat-map.

    Args:
        heatmap: probabilities, float32 [B, h, w, P].
        offsets: float32 [B, h, w, 2 or 2 P], (y, x) from a cell to the keypoint.
        options: options of post-processing.
    """
    _, height, width, channels = heatmap.shape
    found = peaks(heatmap, side=options.peak_max_pool_kernel_size)
    by_channel = tf.transpose(tf.reshape(found, [-1, height * width, channels]), [0, 2, 1])
    count = min(options.num_candidates_per_keypoint, height * width)
    scores, cells = tf.math.top_k(by_channel, count)
    pairs = offsets.shape[3] // 2
    own = cells if pairs == 1 else cells * pairs + tf.range(channels)[:, tf.newaxis]
    steps = tf.gather(tf.reshape(offsets, [-1, height * width * pairs, 2]), own, batch_dims=1)
    corners = tf.cast(tf.stack([cells // width, cells % width], axis=-1), tf.float32)
    return Candidates(corners + steps, scores)


def refined_keypoints(
    regressed: tf.Tensor,
    candidates: Candidates,
    boxes: tf.Tensor,
    options: KeypointPostprocess,
    *,
    spreads: npt.NDArray[np.float32],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves regressed positions to their best candidates.

    Args:
        regressed: float32 [B, N, P, 2], (y, x) in cells.
        candidates: candidates for each of the P keypoints.
        boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax) in cells.
        options: options of post-processing.
        spreads: [P], as in `keypoint_targets`.

    Returns:
        float32 [B, N, P, 2], (y, x) in cells; and scores, float32 [B, N, P].
    """
    sizes = boxes[..., 2:] - boxes[..., :2]
    # By axis: a sum over a last axis of two is slow.
    down, across = (regressed[..., axis, tf.newaxis] - candidates.points[:, tf.newaxis, ..., axis] for axis in (0, 1))
    is_valid = candidates.scores >= options.keypoint_candidate_score_threshold
    distances = tf.where(is_valid[:, tf.newaxis], tf.sqrt(down * down + across * across), _FAR)  # [B, N, P, M]
    ranks = _ranks(candidates.scores[:, tf.newaxis], distances, sizes, options, spreads)
    best = tf.argmax(ranks, axis=-1, output_type=tf.int32)
    by_keypoint = tf.transpose(best, [0, 2, 1])  # [B, P, N]
    points, scores = (tf.gather(part, by_keypoint, batch_dims=2) for part in (candidates.points, candidates.scores))
    points, scores = tf.transpose(points, [0, 2, 1, 3]), tf.transpose(scores, [0, 2, 1])
    if options.candidate_ranking_mode == "gaussian_weighted":
        scores = tf.reduce_max(ranks, axis=-1)
    middle, half = (boxes[..., :2] + boxes[..., 2:]) / 2.0, options.box_scale * sizes / 2.0
    outside = tf.reduce_any(tf.abs(points - middle[:, :, tf.newaxis]) > half[:, :, tf.newaxis], axis=-1)
    radius = options.candidate_search_scale * 2.0 * tf.reduce_max(half, axis=-1)
    is_far = tf.reduce_min(distances, axis=-1) > radius[..., tf.newaxis]
    unmatched = outside | is_far | (scores < options.keypoint_candidate_score_threshold)
    return (
        tf.where(unmatched[..., tf.newaxis], regressed, points),
        tf.where(unmatched, options.unmatched_keypoint_score, scores),
    )


def _ranks(
    scores: tf.Tensor,
    distances: tf.Tensor,
    sizes: tf.Tensor,
    options: KeypointPostprocess,
    spreads: npt.NDArray[np.float32],
) -> tf.Tensor:
    """Returns the rank of each candidate, highest first: [B, N, P, M]; `scores` are [B, 1, P, M]."""
    if options.candidate_ranking_mode == "min_distance":
        return -distances
    if options.candidate_ranking_mode == "gaussian_weighted":
        sigmas = keypoint_sigmas(sizes, spreads) * options.std_dev_multiplier
        return scores * tf.exp(-(distances**2) / (2.0 * sigmas[..., tf.newaxis] ** 2))
    if options.candidate_ranking_mode == "score_distance_ratio":
        return scores / (distances + options.score_distance_offset)
    sides = tf.reduce_max(sizes, axis=-1)[..., tf.newaxis, tf.newaxis]
    return scores / (distances + options.score_distance_multiplier * sides)


def rescored(scores: tf.Tensor, keypoint_scores: tf.Tensor, threshold: float) -> tf.Tensor:
    """Multiplies scores of boxes [B, N] by the mean of their keypoints' scores [B, N, K] above a threshold.

    Scores of objects without keypoints, which all have a score of 0, do not change.
    """
    counted = tf.cast(keypoint_scores > threshold, tf.float32)
    mean = tf.math.divide_no_nan(tf.reduce_sum(keypoint_scores * counted, axis=-1), tf.reduce_sum(counted, axis=-1))
    return tf.where(tf.reduce_max(keypoint_scores, axis=-1) > 0.0, scores * mean, scores)


def picked_keypoints(keypoints: tf.Tensor, picked: Picked, image_info: ImageInfo, *, clips: bool) -> tf.Tensor:
    """Gathers the keypoints of picked detections, and normalizes them to the original image.

    Args:
        keypoints: float32 [B, N, K, 3], (y, x, score) in pixels of the network input.
        picked: the detections.
        image_info: sizes and scales of the images.
        clips: move keypoints outside of the image to its border, with a score of 0.
    """
    rows = tf.gather(keypoints, picked.indices, batch_dims=1)
    factor = 1.0 / (image_info.scale * image_info.original_size)
    points, scores = rows[..., :2] * factor[:, tf.newaxis, tf.newaxis], rows[..., 2:]
    if clips:
        clipped = tf.clip_by_value(points, 0.0, 1.0)
        scores = tf.where(tf.reduce_all(points == clipped, axis=-1, keepdims=True), scores, 0.0)
        points = clipped
    is_row = tf.range(picked.indices.shape[1]) < picked.num[:, tf.newaxis]
    return tf.where(is_row[..., tf.newaxis, tf.newaxis], tf.concat([points, scores], axis=-1), 0.0)
