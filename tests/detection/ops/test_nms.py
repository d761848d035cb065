from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from detection.ops.nms import gaussian_decay, hard_nms, linear_decay, op_nms, soft_nms
from tests.detection.ops.plain_nms import plain_nms

Oracles = dict[str, dict[str, Any]]

COUNT = 70  # more than one tile
MAX_OUTPUTS = 12
MODES = ("hard", "linear", "gaussian")


def _function(nms: str, **options: Any) -> Any:
    if nms == "hard":
        return partial(hard_nms, **options)
    threshold, sigma = options.pop("iou_threshold", 0.5), options.pop("sigma", 0.5)
    decay = (
        partial(gaussian_decay, sigma=sigma) if nms == "gaussian" else partial(linear_decay, iou_threshold=threshold)
    )
    return partial(soft_nms, decay=decay, **options)


@cache
def _compiled(nms: str, class_agnostic: bool, threshold: float, floor: float, xla: bool) -> Any:
    run = _function(nms, iou_threshold=threshold, score_threshold=floor, max_outputs=MAX_OUTPUTS)
    return tf.function(
        lambda boxes, scores, classes, **more: run(boxes, scores, None if class_agnostic else classes, **more),
        jit_compile=xla,
        autograph=False,
    )


def _nms(boxes: Any, scores: Any, classes: Any = None, *, nms: str = "hard", **options: Any) -> tuple[Any, Any]:
    """Runs one image; the picked indices and their scores."""
    classes = np.zeros(len(scores)) if classes is None else classes
    arguments = {"iou_threshold": 0.5, "score_threshold": 0.0, "max_outputs": 10} | options
    inputs = np.array([boxes], np.float32), np.array([scores], np.float32), np.array([classes], np.int32)
    picked = _function(nms, **arguments)(*inputs)
    num = int(picked.num[0])
    assert picked.indices.shape == picked.scores.shape == (1, arguments["max_outputs"])
    assert not picked.indices[0, num:].numpy().any()
    assert not picked.scores[0, num:].numpy().any()
    return picked.indices[0, :num].numpy().tolist(), picked.scores[0, :num].numpy()


@pytest.mark.parametrize("id_", ["nms.hard", "nms.soft_gaussian"])
def test_the_originals_cases(oracles: Oracles, id_: str) -> None:
    inputs, expected = oracles[id_]["inputs"], oracles[id_]["expected"]
    nms = "gaussian" if "gaussian" in id_ else "hard"
    picked, scores = _nms(inputs["boxes"], inputs["scores"], nms=nms, max_outputs=4)
    assert picked == expected.get("order", expected.get("kept"))
    np.testing.assert_allclose(scores, expected.get("scores", expected.get("padded_scores"))[: len(picked)], atol=1e-6)


def test_a_low_threshold(oracles: Oracles) -> None:
    oracle = oracles["nms.tiled_low_threshold"]
    inputs = oracle["inputs"]
    picked, _ = _nms(inputs["boxes"], inputs["scores"], iou_threshold=inputs["thr"])
    assert picked == oracle["expected"]["correct_keep"]


def test_linear_soft_nms_by_hand() -> None:
    # IoU of the second box with the first is 0.6, of the third 0.4.
    boxes = [[0, 0, 10, 10], [0, 0, 10, 6], [0, 0, 10, 4]]
    picked, scores = _nms(boxes, [0.9, 0.8, 0.7], nms="linear")
    assert picked == [0, 2, 1]
    # The last is lowered by both: by 1 - 0.6, and by 1 - 4/6.
    np.testing.assert_allclose(scores, [0.9, 0.7, 0.8 * 0.4 / 3], rtol=1e-5)


def _corners(low: Any, sides: Any) -> Any:
    return np.concatenate([low, low + sides], axis=-1).astype(np.float32)


# Few positions, sides, scores and classes: many equal scores, equal boxes, and IoUs at the threshold.
_CASES = st.tuples(
    arrays.arrays(np.int8, (2, COUNT, 2), elements=st.integers(0, 12)),
    arrays.arrays(np.int8, (2, COUNT, 2), elements=st.integers(0, 6)),
    arrays.arrays(np.int8, (2, COUNT), elements=st.integers(0, 9)),
    arrays.arrays(np.int8, (2, COUNT), elements=st.integers(0, 2)),
)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(case=_CASES, empty=st.booleans(), class_agnostic=st.booleans(), threshold=st.sampled_from([0.25, 0.5]))
@pytest.mark.parametrize("nms", MODES)
def test_equals_a_plain_greedy_search(
    nms: str, case: tuple[Any, ...], empty: bool, class_agnostic: bool, threshold: float
) -> None:
    low, sides, tenths, classes = case
    # Exact in float32, and their products with the factors of linear NMS nearly so: no tie depends on rounding.
    scores = -np.sort(-tenths / 16.0, axis=1).astype(np.float32)
    if empty:
        scores[1] = 0.125  # not above the score threshold
    boxes = _corners(low, sides)
    run = _compiled(nms, class_agnostic, threshold, 0.125, xla=False)
    picked = run(boxes, scores, classes.astype(np.int32))
    for image in range(2):
        indices, values = plain_nms(
            boxes[image],
            scores[image],
            classes[image],
            nms=nms,
            class_agnostic=class_agnostic,
            iou_threshold=threshold,
            score_threshold=0.125,
            max_outputs=MAX_OUTPUTS,
        )
        num = int(picked.num[image])
        np.testing.assert_allclose(picked.scores[image], np.pad(values, (0, MAX_OUTPUTS - len(values))), atol=1e-6)
        if nms == "hard":  # rounding may decide between soft scores that are nearly equal
            assert picked.indices[image, :num].numpy().tolist() == indices


@pytest.mark.parametrize("nms", MODES)
@pytest.mark.parametrize("xla", [False, True])
def test_equals_a_plain_greedy_search_on_distinct_scores(nms: str, xla: bool) -> None:
    random = np.random.default_rng(0)
    boxes = _corners(random.uniform(0, 60, (3, COUNT, 2)), random.uniform(4, 40, (3, COUNT, 2)))
    scores = -np.sort(-random.uniform(size=(3, COUNT)), axis=1).astype(np.float32)
    classes = random.integers(0, 3, (3, COUNT)).astype(np.int32)
    picked = _compiled(nms, False, 0.5, 0.125, xla)(boxes, scores, classes)
    for image in range(3):
        options: Any = {"nms": nms, "score_threshold": 0.125, "max_outputs": MAX_OUTPUTS}
        indices, values = plain_nms(boxes[image], scores[image], classes[image], **options)
        num = int(picked.num[image])
        assert picked.indices[image, :num].numpy().tolist() == indices
        np.testing.assert_allclose(picked.scores[image, :num], values, rtol=1e-5)


@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("nms", [*MODES, "op hard", "op gaussian"])
def test_boxes_that_do_not_count_suppress_others_and_take_no_place(nms: str, share: float) -> None:
    random = np.random.default_rng(0)
    boxes = _corners(random.uniform(0, 60, (3, COUNT, 2)), random.uniform(4, 40, (3, COUNT, 2)))
    scores = -np.sort(-random.uniform(size=(3, COUNT)), axis=1).astype(np.float32)
    classes = random.integers(0, 3, (3, COUNT)).astype(np.int32)
    counts = random.random((3, COUNT)) < share
    op, kind = nms.startswith("op"), nms.removeprefix("op ")
    options: Any = {"score_threshold": 0.125, "max_outputs": 24}
    if op:
        sigma = 0.5 if kind == "gaussian" else None
        picked = op_nms(
            boxes, scores, classes, counts=counts, num_classes=3, side=100.0, iou_threshold=0.5, sigma=sigma, **options
        )
    else:
        picked = _function(kind, iou_threshold=0.5, **options)(boxes, scores, classes, counts=counts)
    for image in range(3):
        indices, values = plain_nms(
            boxes[image], scores[image], classes[image], nms=kind, counts=counts[image], **options
        )
        num = int(picked.num[image])
        assert picked.indices[image, :num].numpy().tolist() == indices
        np.testing.assert_allclose(picked.scores[image, :num], values, rtol=1e-4)
        assert not picked.scores[image, num:].numpy().any()


def test_many_boxes_that_do_not_count_leave_the_places_to_the_others() -> None:
    boxes = _corners(np.arange(200)[np.newaxis, :, np.newaxis] * [[[20, 0]]], [10, 10])
    scores = np.linspace(0.9, 0.5, 200, dtype=np.float32)[np.newaxis]
    counts = np.arange(200)[np.newaxis] >= 150
    for nms in MODES:
        picked = _function(nms, score_threshold=0.0, max_outputs=10, iou_threshold=0.5)(
            boxes, scores, np.zeros((1, 200), np.int32), counts=counts
        )
        assert picked.indices[0].numpy().tolist() == list(range(150, 160)), nms


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.7, 1.0])
def test_hard_nms_at_other_thresholds(threshold: float) -> None:
    random = np.random.default_rng(int(threshold * 10))
    boxes = _corners(random.uniform(0, 60, (150, 2)), random.uniform(4, 40, (150, 2)))
    scores = -np.sort(-random.uniform(size=150)).astype(np.float32)
    classes = random.integers(0, 3, 150)
    options: Any = {"iou_threshold": threshold, "max_outputs": 150}
    assert _nms(boxes, scores, classes, **options)[0] == plain_nms(boxes, scores, classes, **options)[0]


def test_a_chain_of_overlaps() -> None:
    # Each box overlaps the next one only, so that every second one stays: the slowest case within a tile.
    boxes = [[0, 2 * place, 10, 2 * place + 6] for place in range(100)]
    picked, _ = _nms(boxes, np.linspace(0.9, 0.1, 100), iou_threshold=0.4, max_outputs=100)
    assert picked == list(range(0, 100, 2))


def test_an_overlap_of_exactly_the_threshold_stays() -> None:
    boxes = [[0, 0, 2, 1], [0, 0, 1, 1]]
    assert _nms(boxes, [0.9, 0.8], iou_threshold=0.5)[0] == [0, 1]
    assert _nms(boxes, [0.9, 0.8], iou_threshold=0.49)[0] == [0]


@pytest.mark.parametrize("nms", MODES)
def test_classes_do_not_suppress_each_other(nms: str) -> None:
    boxes = [[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4]]
    picked, scores = _nms(boxes, [0.6, 0.5, 0.4], [1, 0, 1], nms=nms, max_outputs=2)
    assert picked == [0, 1]
    np.testing.assert_allclose(scores, [0.6, 0.5])


@pytest.mark.parametrize("limit", [1, 4, 20])
def test_a_limit_per_class_equals_a_plain_greedy_search(limit: int) -> None:
    random = np.random.default_rng(limit)
    corners = random.uniform(0, 60, (150, 2))  # more than two tiles
    boxes = np.concatenate([corners, corners + random.uniform(5, 30, (150, 2))], axis=1).astype(np.float32)
    scores = np.sort(random.uniform(0.1, 1, 150)).astype(np.float32)[::-1]
    classes = random.choice(3, 150, p=[0.7, 0.2, 0.1])
    options: Any = {"max_outputs": 40, "max_per_class": limit}
    expected = plain_nms(boxes, scores, classes, **options)[0]
    assert _nms(boxes, scores, classes, **options)[0] == expected
    picked = op_nms(
        boxes[np.newaxis],
        scores[np.newaxis],
        classes[np.newaxis].astype(np.int32),
        num_classes=3,
        side=100.0,
        iou_threshold=0.5,
        sigma=None,
        score_threshold=0.0,
        **options,
    )
    assert picked.indices[0, : int(picked.num[0])].numpy().tolist() == expected


def test_the_op_with_fewer_candidates_than_places() -> None:
    boxes = _corners(np.array([[[0.0, 0.0], [20.0, 0.0], [40.0, 0.0]]]), 5.0)
    picked = op_nms(
        boxes,
        np.array([[0.9, 0.8, 0.7]], np.float32),
        np.zeros((1, 3), np.int32),
        num_classes=1,
        side=100.0,
        iou_threshold=0.5,
        sigma=None,
        score_threshold=0.0,
        max_outputs=6,
        max_per_class=2,
        counts=np.array([[False, True, True]]),
    )
    assert (picked.indices[0].numpy().tolist(), picked.num.numpy().tolist()) == ([1, 0, 0, 0, 0, 0], [1])


@pytest.mark.parametrize("nms", MODES)
def test_scores_at_the_threshold_do_not_count(nms: str) -> None:
    boxes = [[0, 0, 1, 1], [5, 5, 6, 6], [9, 9, 10, 10]]
    assert _nms(boxes, [0.5, 0.25, 0.1], score_threshold=0.25, nms=nms)[0] == [0]


@pytest.mark.parametrize("nms", MODES)
def test_equal_scores_keep_their_order(nms: str) -> None:
    assert _nms([[0, 0, 1, 1], [5, 5, 6, 6]], [0.5, 0.5], nms=nms)[0] == [0, 1]


@pytest.mark.parametrize("nms", MODES)
def test_nothing_to_pick(nms: str) -> None:
    assert _nms([[0, 0, 1, 1]], [0.1], score_threshold=0.5, nms=nms)[0] == []


@pytest.mark.parametrize("nms", MODES)
def test_a_batch_of_unknown_size(nms: str) -> None:
    run = tf.function(
        _function(nms, score_threshold=0.0, iou_threshold=0.5, max_outputs=3),
        input_signature=[tf.TensorSpec([None, 2, 4]), tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2], tf.int32)],
        autograph=False,
    )
    for batch in (0, 1, 3):
        rows = np.zeros([batch, 2, 1], np.float32)
        boxes = rows + np.array([0, 0, 1, 1], np.float32)
        scores = rows[..., 0] + np.array([0.6, 0.5], np.float32)
        picked = run(boxes, scores, rows[..., 0].astype(np.int32) + np.array([0, 1], np.int32))
        assert picked.num.numpy().tolist() == [2] * batch


@pytest.mark.parametrize("num_classes", [1, 3, 90])
@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize("nms", ["hard", "gaussian"])
def test_the_op_equals_a_plain_greedy_search(nms: str, class_agnostic: bool, num_classes: int) -> None:
    random = np.random.default_rng(num_classes)
    side = 60.0
    # Some boxes reach beyond the input, on which many lie; those of a few classes are nearly equal.
    boxes = _corners(random.uniform(-30, side, (3, COUNT, 2)), random.uniform(4, 40, (3, COUNT, 2)))
    scores = -np.sort(-random.uniform(size=(3, COUNT)), axis=1).astype(np.float32)
    classes = random.integers(0, num_classes, (3, COUNT)).astype(np.int32)
    boxes[:, 1::2] = boxes[:, ::2] + 0.5
    options: Any = {"iou_threshold": 0.4, "score_threshold": 0.125, "max_outputs": MAX_OUTPUTS}
    sigma = 0.3 if nms == "gaussian" else None
    picked = op_nms(
        boxes, scores, None if class_agnostic else classes, num_classes=num_classes, side=side, sigma=sigma, **options
    )
    for image in range(3):
        plain = partial(plain_nms, nms=nms, class_agnostic=class_agnostic, sigma=0.3, **options)
        indices, values = plain(boxes[image], scores[image], classes[image])
        num = int(picked.num[image])
        assert picked.indices[image].numpy().tolist() == np.pad(indices, (0, MAX_OUTPUTS - num)).tolist()
        np.testing.assert_allclose(picked.scores[image], np.pad(values, (0, MAX_OUTPUTS - num)), rtol=1e-4)


def test_the_op_has_nothing_to_pick() -> None:
    options: Any = {"iou_threshold": 0.5, "sigma": None, "score_threshold": 0.5, "max_outputs": 2}
    picked = op_nms(
        np.ones([1, 3, 4], np.float32), np.full([1, 3], 0.5, np.float32), None, num_classes=1, side=2.0, **options
    )
    assert picked.num.numpy().tolist() == [0]
    assert not picked.indices.numpy().any()
    assert not picked.scores.numpy().any()


def test_the_op_picks_the_first_of_equal_scores() -> None:
    random = np.random.default_rng(0)
    boxes = _corners(random.uniform(0, 60, (1, COUNT, 2)), random.uniform(4, 40, (1, COUNT, 2)))
    scores = -np.sort(-random.integers(1, 4, (1, COUNT)) / 4.0, axis=1).astype(np.float32)
    options: Any = {"iou_threshold": 0.3, "score_threshold": 0.25, "max_outputs": MAX_OUTPUTS}
    picked = op_nms(boxes, scores, None, num_classes=1, side=60.0, sigma=None, **options)
    indices, _ = plain_nms(boxes[0], scores[0], np.zeros(COUNT), class_agnostic=True, **options)
    assert picked.indices[0, : int(picked.num[0])].numpy().tolist() == indices
