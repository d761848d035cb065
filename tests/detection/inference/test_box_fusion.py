from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.inference.box_fusion import Boxes, fuse_boxes

WHOLE = np.array([[0.0, 0.0, 1.0, 1.0]])


def _boxes(rows: Any) -> Boxes:
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Boxes(table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def _fuse(views: list[Boxes], **options: Any) -> list[list[float]]:
    fused = fuse_boxes(views, windows=[WHOLE] * len(views), **options)
    return np.column_stack(fused).tolist()


def _plain(views: list[Any], threshold: float) -> list[list[float]]:
    """Reference: the paper's lists of clusters, the fused box computed anew from all members each time."""
    rows = sorted((-score, label, *box, view) for view, one in enumerate(views) for *box, score, label in one)
    clusters: list[list[Any]] = []
    for row in rows:
        ious = [
            0.0 if cluster[0][1] != row[1] or row[6] in [other[6] for other in cluster] else _iou(_mean(cluster), row)
            for cluster in clusters
        ]
        if ious and max(ious) > threshold:
            clusters[ious.index(max(ious))].append(row)
        else:
            clusters.append([row])
    fused = [[*_mean(one)[2:6], -sum(row[0] for row in one) / len(views), one[0][1]] for one in clusters]
    return sorted(fused, key=lambda one: (-one[4], one[5], *one[:4]))


def _mean(cluster: list[Any]) -> list[float]:
    weights = [-row[0] for row in cluster]
    mean = [
        sum(w * row[place] for w, row in zip(weights, cluster, strict=True)) / sum(weights) for place in range(2, 6)
    ]
    return [0, 0, *mean]


def _iou(first: Any, second: Any) -> float:
    height = max(0.0, min(first[4], second[4]) - max(first[2], second[2]))
    width = max(0.0, min(first[5], second[5]) - max(first[3], second[3]))
    areas = [(one[4] - one[2]) * (one[5] - one[3]) for one in (first, second)]
    return height * width / (sum(areas) - height * width)


@st.composite
def _views(draw: Any) -> list[list[list[float]]]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    objects = random.uniform(0.1, 0.6, (draw(st.integers(1, 4)), 2))
    views = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 8))
        low = objects[random.integers(0, len(objects), count)] + random.normal(0, 0.02, (count, 2))
        sides = 0.3 + random.normal(0, 0.02, (count, 2))
        scores, classes = random.uniform(0.05, 1, count), random.integers(1, 3, count)
        views.append(np.column_stack([low, low + sides, scores, classes]).tolist())
    return views


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_views())
def test_equals_a_plain_reference_in_any_order_within_the_hull(views: list[Any]) -> None:
    fused = _fuse([_boxes(view) for view in views])
    np.testing.assert_allclose(fused, np.reshape(_plain(views, 0.55), (-1, 6)).tolist(), rtol=1e-9)
    np.testing.assert_allclose(_fuse([_boxes(view) for view in views[::-1]]), fused, rtol=1e-12)
    members = np.array([row for view in views for row in view]).reshape(-1, 6)
    for *box, score, label in fused:
        own = members[members[:, 5] == label]
        assert (own[:, :4].min(axis=0) - 1e-12 <= box).all()
        assert (box <= own[:, :4].max(axis=0) + 1e-12).all()
        assert 0 < score <= own[:, 4].max()


def test_one_view_is_returned_as_it_is() -> None:
    # The second box overlaps the first by more than the threshold, as soft NMS leaves them.
    rows = [[0.1, 0.1, 0.5, 0.5, 0.9, 1], [0.1, 0.1, 0.5, 0.48, 0.6, 1], [0.2, 0.2, 0.3, 0.9, 0.5, 2]]
    assert _fuse([_boxes(rows)]) == rows


def test_the_originals_numbers() -> None:
    # google/automl's average of two boxes, by 0.3 and 0.7, of two and of three views.
    first, second = _boxes([[1, 1, 2, 2, 0.3, 1]]), _boxes([[1.2, 1.2, 2.2, 2.2, 0.7, 1]])
    np.testing.assert_allclose(_fuse([first, second], iou_threshold=0.4), [[1.14, 1.14, 2.14, 2.14, 0.5, 1]])
    windows = [np.array([[0.0, 0, 9, 9]])] * 3
    fused = fuse_boxes([first, second, _boxes([])], windows=windows, iou_threshold=0.4)
    np.testing.assert_allclose(fused.scores, [1 / 3])


@pytest.mark.parametrize(("window", "score"), [([0, 0, 1, 1], 0.4), ([0, 0, 1, 0.6], 0.8), ([0, 0, 1, 0.9], 0.4)])
def test_a_view_that_cannot_see_a_box_does_not_lower_its_score(window: list[float], score: float) -> None:
    views = [_boxes([[0.1, 0.1, 0.5, 0.8, 0.8, 1]]), _boxes([])]
    fused = fuse_boxes(views, windows=[WHOLE, np.array([window])])
    assert fused.scores.tolist() == [score]


def test_nothing_detected() -> None:
    assert _fuse([_boxes([]), _boxes([])]) == []


def test_classes_are_not_fused() -> None:
    box = [0.1, 0.1, 0.5, 0.5]
    assert _fuse([_boxes([[*box, 0.9, 1]]), _boxes([[*box, 0.8, 2]])]) == [[*box, 0.45, 1], [*box, 0.4, 2]]
