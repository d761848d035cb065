"""Keypoints of CenterNet: the search for candidates, the channels of classes and the targets, against NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.centernet.centers import centers_of
from detection.models.centernet.keypoint_candidates import (
    Candidates,
    keypoint_candidates,
    picked_keypoints,
    refined_keypoints,
    rescored,
)
from detection.models.centernet.keypoint_options import (
    HEATMAP,
    OFFSET,
    REGRESSION,
    KeypointOptions,
    KeypointPostprocess,
)
from detection.models.centernet.keypoints import Keypoints
from detection.ops.nms import Picked
from detection.types import ImageInfo, Labels

SIZE = (12, 16)
NAMES = (("head", "tail"), (), ("tip",))
SPREADS = np.array([0.5, 1.0, 2.0], np.float32)


def _keypoints(**options: Any) -> Keypoints:
    defaults: dict[str, Any] = {"spread": {"head": 0.5, "tip": 2.0}, "radius": 1, "per_keypoint_offset": True}
    return Keypoints(names=NAMES, stride=4, size=SIZE, options=KeypointOptions(**defaults | options))


def _sigma(height: float, width: float) -> float:
    """The standard deviation of a center's Gaussian for an overlap of 0.7, from the paper's three cases."""
    total, area, overlap = height + width, height * width, 0.7
    cases = [
        (1, -total, area * (1 - overlap) / (1 + overlap)),
        (4, -2 * total, (1 - overlap) * area),
        (4 * overlap, 2 * overlap * total, (overlap - 1) * area),
    ]
    radius = max(0, int(min((-b + np.sqrt(b * b - 4 * a * c)) / 2 for a, b, c in cases)))
    return (2 * radius + 1) / 6


def _refined(
    regressed: np.ndarray, points: np.ndarray, scores: np.ndarray, box: np.ndarray, *, spread: float, options: Any
) -> tuple[np.ndarray, float]:
    """One keypoint of one object, by the description of the original."""
    distances = np.sqrt(((points - regressed) ** 2).sum(axis=1))
    distances[scores < options.keypoint_candidate_score_threshold] = np.inf
    height, width = box[2] - box[0], box[3] - box[1]
    ranks = {
        "min_distance": -distances,
        "score_distance_ratio": scores / (distances + options.score_distance_offset),
        "score_scaled_distance_ratio": scores / (distances + options.score_distance_multiplier * max(height, width)),
        "gaussian_weighted": scores
        * np.exp(-(distances**2) / (2 * (spread * options.std_dev_multiplier * _sigma(height, width)) ** 2)),
    }[options.candidate_ranking_mode]
    best = int(np.argmax(ranks))
    score = ranks[best] if options.candidate_ranking_mode == "gaussian_weighted" else scores[best]
    center, half = (box[:2] + box[2:]) / 2, options.box_scale * np.array([height, width]) / 2
    inside = (np.abs(points[best] - center) <= half).all()
    near = distances.min() <= options.candidate_search_scale * 2 * half.max()
    if inside and near and score >= options.keypoint_candidate_score_threshold:
        return points[best], float(score)
    return regressed, options.unmatched_keypoint_score


@pytest.mark.parametrize(
    "mode", ["min_distance", "score_distance_ratio", "score_scaled_distance_ratio", "gaussian_weighted"]
)
def test_refines_by_each_ranking(mode: str) -> None:
    random = np.random.default_rng(1)
    options = KeypointPostprocess.model_validate(
        {"candidate_ranking_mode": mode, "unmatched_keypoint_score": 0.05, "std_dev_multiplier": 3.0}
    )
    corners = random.uniform(0, 8, (2, 5, 2))
    boxes = np.concatenate([corners, corners + random.uniform(1, 8, (2, 5, 2))], axis=-1).astype(np.float32)
    regressed = random.uniform(0, 14, (2, 5, 3, 2)).astype(np.float32)
    points = random.uniform(0, 14, (2, 3, 6, 2)).astype(np.float32)
    scores = -np.sort(-random.uniform(0, 1, (2, 3, 6)), axis=-1).astype(np.float32)
    scores[1, 2] = 0.0  # no candidate
    found = refined_keypoints(
        tf.constant(regressed),
        Candidates(tf.constant(points), tf.constant(scores)),
        tf.constant(boxes),
        options,
        spreads=SPREADS,
    )
    kept = 0
    for image, row, channel in np.ndindex(2, 5, 3):
        expected, score = _refined(
            regressed[image, row, channel],
            points[image, channel],
            scores[image, channel],
            boxes[image, row],
            spread=float(SPREADS[channel]),
            options=options,
        )
        np.testing.assert_allclose(found[0][image, row, channel], expected, rtol=1e-5)
        np.testing.assert_allclose(found[1][image, row, channel], score, rtol=1e-4)
        kept += score == options.unmatched_keypoint_score
    assert 0 < kept < 30, "the case has both"


@pytest.mark.parametrize("shared", [False, True])
def test_candidates_are_the_best_peaks_with_their_offsets(shared: bool) -> None:
    heatmap = np.zeros((1, *SIZE, 2), np.float32)
    heatmap[0, 3, 4, 0], heatmap[0, 3, 5, 0], heatmap[0, 8, 2, 0], heatmap[0, 11, 15, 1] = 0.9, 0.8, 0.5, 0.4
    offsets = np.random.default_rng(0).normal(size=(1, *SIZE, 2 if shared else 4)).astype(np.float32)
    options = KeypointPostprocess(num_candidates_per_keypoint=2)
    found = keypoint_candidates(tf.constant(heatmap), tf.constant(offsets), options)
    np.testing.assert_allclose(found.scores, [[[0.9, 0.5], [0.4, 0.0]]])
    for channel, place, (y, x) in [(0, 0, (3, 4)), (0, 1, (8, 2)), (1, 0, (11, 15))]:
        own = offsets[0, y, x, -2:] if channel else offsets[0, y, x, :2]
        np.testing.assert_allclose(found.points[0, channel, place], np.add(own, [y, x]), rtol=1e-6)


def test_detections_get_the_keypoints_of_their_class() -> None:
    keypoints = _keypoints()
    assert keypoints.outputs == {HEATMAP: 3, OFFSET: 6, REGRESSION: 6}
    regressions = np.random.default_rng(0).normal(size=(1, *SIZE, 6)).astype(np.float32)
    outputs = {HEATMAP: tf.fill([1, *SIZE, 3], -20.0), OFFSET: tf.zeros([1, *SIZE, 6]), REGRESSION: regressions}
    cells, classes = tf.constant([[[2, 3], [4, 5], [6, 7]]]), tf.constant([[2, 0, 1]])
    found = keypoints.detect(outputs, cells, tf.ones([1, 3, 4]), classes, KeypointPostprocess()).numpy()[0]
    expected = np.zeros((3, 2, 3))
    expected[0, 0] = [*(regressions[0, 2, 3, 4:] + [2, 3]), 0.1]
    expected[1, :, :2] = np.add(regressions[0, 4, 5, :4].reshape(2, 2), [4, 5])
    expected[1, :, 2] = 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("point", [(0, 0), (11, 15), (11, 0), (0, 15), (5, 7)])
def test_cells_beyond_the_borders_have_no_weight(point: tuple[int, int]) -> None:
    keypoints = _keypoints()
    y, x = (4 * side + 2.0 for side in point)
    labels = Labels(
        boxes=tf.constant([[[0.0, 0.0, 48.0, 64.0]]]),
        classes=tf.constant([[0]]),
        valid=tf.constant([[True]]),
        keypoints=tf.constant([[[[y, x, 2.0], [0.0, 0.0, 0.0]]]]),
        weights=tf.constant([[1.0]]),
    )
    offsets = keypoints.targets(labels, centers_of(labels, stride=4, size=SIZE)).offsets
    weighted = offsets.cells[0].numpy()[offsets.weights[0].numpy().reshape(-1) > 0, :2]
    around = [(point[0] + down, point[1] + right) for down, right in [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]]
    inside = [cell for cell in around if 0 <= cell[0] < SIZE[0] and 0 <= cell[1] < SIZE[1]]
    assert sorted(map(tuple, weighted.tolist())) == sorted(inside)


def test_targets_of_two_classes() -> None:
    keypoints = _keypoints()
    boxes = np.array([[[4, 8, 36, 40], [20, 24, 44, 60], [0, 0, 0, 0]]], np.float32)
    points = np.array([[[[10, 12, 2], [30, 38, 1]], [[28, 50, 2], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]], np.float32)
    labels = Labels(
        boxes=tf.constant(boxes),
        classes=tf.constant([[0, 2, 0]]),
        valid=tf.constant([[True, True, False]]),
        keypoints=tf.constant(points),
        weights=tf.constant([[1.0, 0.5, 1.0]]),
    )
    targets = keypoints.targets(labels, centers_of(labels, stride=4, size=SIZE))
    heatmap, region = np.zeros((*SIZE, 3)), np.ones((*SIZE, 3))
    down, across = np.mgrid[: SIZE[0], : SIZE[1]]
    for channel, row, place, weight in [(0, 0, 0, 1.0), (1, 0, 1, 1.0), (2, 1, 0, 0.5)]:
        y, x = (int(side // 4) for side in points[0, row, place, :2])
        sigma = SPREADS[channel] * _sigma(*((boxes[0, row, 2:] - boxes[0, row, :2]) / 4))
        heatmap[..., channel] = weight * np.exp(-((down - y) ** 2 + (across - x) ** 2) / (2 * sigma**2))
    for channel, row in [(2, 0), (0, 1), (1, 1)]:  # objects without the keypoint
        low, high = boxes[0, row, :2] / 4, boxes[0, row, 2:] / 4
        region[(down >= low[0]) & (down < high[0]) & (across >= low[1]) & (across < high[1]), channel] = 0
    np.testing.assert_allclose(targets.heatmap[0], heatmap, atol=1e-6)
    np.testing.assert_array_equal(targets.region[0], region)
    # The cell and its four neighbours; of weight 0.5, the keypoints are rounded down for the heat-map.
    np.testing.assert_allclose(targets.counts, [2.0, 12.5, 12.5])
    outputs = {task: [tf.zeros([1, *SIZE, count])] for task, count in keypoints.outputs.items()}
    losses = keypoints.losses(outputs, targets, lambda *parts: tf.constant(0.0))
    near = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    offsets = regressions = 0.0
    for row, place, weight in [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 0.5)]:
        point, center = points[0, row, place, :2] / 4, (boxes[0, row, :2] + boxes[0, row, 2:]) // 8
        offsets += weight * sum(np.abs(point - (point // 1) - step).sum() for step in near)
        regressions += weight * sum(np.abs(point - center - step).sum() for step in near)
    assert float(losses[OFFSET]) == pytest.approx(offsets, rel=1e-5)
    assert float(losses[REGRESSION]) == pytest.approx(regressions, rel=1e-5)


def test_scores_by_keypoints() -> None:
    scores = tf.constant([[0.8, 0.6, 0.5]])
    of_keypoints = tf.constant([[[0.5, 0.1], [0.1, 0.1], [0.0, 0.0]]])
    np.testing.assert_allclose(rescored(scores, of_keypoints, 0.2), [[0.4, 0.0, 0.5]])


def test_picked_keypoints_are_normalised_and_clipped() -> None:
    picked = Picked(tf.constant([[1, 0, 0]]), tf.constant([[0.9, 0.5, 0.0]]), tf.constant([2]))
    info = ImageInfo(tf.constant([[100.0, 50.0]]), tf.constant([[0.5, 1.0]]))
    keypoints = tf.constant([[[[25.0, 25.0, 0.7]], [[60.0, 10.0, 0.6]]]])
    found = picked_keypoints(keypoints, picked, info, clips=False)
    np.testing.assert_allclose(found, np.array([[[[1.2, 0.2, 0.6]], [[0.5, 0.5, 0.7]], [[0, 0, 0]]]]), rtol=1e-6)
    clipped = picked_keypoints(keypoints, picked, info, clips=True)
    np.testing.assert_allclose(clipped, np.array([[[[1.0, 0.2, 0.0]], [[0.5, 0.5, 0.7]], [[0, 0, 0]]]]), rtol=1e-6)
