from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from detection.models.heads import postprocess
from detection.models.heads.postprocess import BoxPostprocess, best_classes, best_pairs, detect_boxes
from detection.ops.boxes import decode_yxyx
from detection.types import ImageInfo
from tests.detection.ops.plain_nms import plain_nms

SIZES = (300, 80, 20)  # anchors per level
CLASSES = 4
LIMIT = 600


def _levels(values: Any) -> list[tf.Tensor]:
    return [tf.constant(part) for part in np.split(values, np.cumsum(SIZES)[:-1], axis=1)]


def _order(logits: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-logits.ravel(), kind="stable")[:count]


@pytest.mark.parametrize("decimals", [6, 0])  # 0: many equal logits
@pytest.mark.parametrize("count", [20, 410, sum(SIZES) * CLASSES])
def test_candidates_are_the_best_pairs(decimals: int, count: int) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, sum(SIZES), CLASSES)).round(decimals).astype(np.float32)
    candidates = best_pairs(_levels(logits), tf.reduce_max(logits, axis=2), count)
    for image in range(2):
        order = _order(logits[image], count)
        np.testing.assert_array_equal(candidates.anchors[image], order // CLASSES)
        np.testing.assert_array_equal(candidates.classes[image], order % CLASSES)
        np.testing.assert_array_equal(candidates.logits[image], logits[image].ravel()[order])


def test_candidates_are_the_best_classes() -> None:
    logits = np.random.default_rng(0).normal(size=(2, sum(SIZES), CLASSES)).round(1).astype(np.float32)
    best = logits.max(axis=2)
    candidates = best_classes(_levels(logits), tf.constant(best), 50)
    for image in range(2):
        order = _order(best[image], 50)
        np.testing.assert_array_equal(candidates.anchors[image], order)
        np.testing.assert_array_equal(candidates.classes[image], logits[image].argmax(axis=1)[order])


class Case:
    """Outputs of two images: objects with many overlapping anchors, or nothing above the score threshold."""

    def __init__(self, *, objects: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        anchors = sum(SIZES)
        centres = random.uniform(0, 100, (objects, 2))[random.integers(0, objects, anchors)]
        centres += random.normal(0, 2, (anchors, 2))
        half = random.uniform(8, 12, (anchors, 2))
        self.anchors = np.concatenate([centres - half, centres + half], axis=1).astype(np.float32)
        self.deltas = random.normal(0, 0.1, (2, anchors, 4)).astype(np.float32)
        self.logits = random.normal(0, 2, (2, anchors, CLASSES)).astype(np.float32)
        self.info = ImageInfo(original_size=tf.constant([[400.0, 200.0]] * 2), scale=tf.constant([[0.5, 0.25]] * 2))

    def inputs(self) -> tuple[Any, ...]:
        return _levels(self.logits), _levels(self.deltas), tf.constant(self.anchors), self.info

    def detect(self, options: BoxPostprocess, *, graph: Any = "windows") -> Any:
        return detect_boxes(*self.inputs(), options=options, graph=graph)

    def expected(self, image: int, options: BoxPostprocess) -> tuple[np.ndarray, np.ndarray, list[float]]:
        """Boxes in pixels of the input, classes and scores."""
        logits = self.logits[image]
        if options.one_class_per_anchor:
            anchors = _order(logits.max(axis=1), options.pre_nms_top_k)
            classes = logits.argmax(axis=1)[anchors]
        else:
            anchors, classes = np.divmod(_order(logits, options.pre_nms_top_k), CLASSES)
        boxes = decode_yxyx(tf.constant(self.deltas[image]), tf.constant(self.anchors)).numpy()[anchors]
        # The input is half as high and a quarter as wide as the image of 400 x 200.
        in_image = (boxes[:, :2] < [200, 50]).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1)
        picked, scores = plain_nms(
            boxes,
            tf.sigmoid(logits).numpy()[anchors, classes],
            classes,
            max_outputs=options.max_detections,
            max_per_class=options.max_detections_per_class,
            counts=in_image,
            **options.model_dump(include={"nms", "class_agnostic", "iou_threshold", "sigma", "score_threshold"}),
        )
        return boxes[picked], classes[picked], scores


MODES = [
    {"nms": nms, "class_agnostic": agnostic, "one_class_per_anchor": best}
    for nms, agnostic, best in [
        ("hard", False, False),
        ("hard", True, False),
        ("hard", True, True),
        ("linear", False, False),
        ("gaussian", False, False),
        ("gaussian", True, True),
        ("gaussian", False, True),
    ]
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_detections_are_those_of_all_candidates(monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]) -> None:
    # Small windows, so that the best candidates do, or do not, settle the result.
    monkeypatch.setitem(postprocess._WINDOWS, mode["nms"], (32, 128))
    limits: dict[str, Any] = {"max_detections": 20, "pre_nms_top_k": LIMIT}
    case, options = Case(objects=6), BoxPostprocess(**mode, **limits)
    _require_expected(case, options, case.detect(options))
    case = Case(objects=60)
    _require_expected(case, options, case.detect(options))


@pytest.mark.parametrize("graph", ["windows", "loops", "op"])
def test_no_detection_is_outside_of_the_image_and_the_others_fill_the_places(graph: Any) -> None:
    # The op looks at four times as many boxes; a file's image fills its input, so that few are outside.
    case, options = Case(objects=60), BoxPostprocess(max_detections=20 if graph == "op" else 50)
    detections = tf.function(case.detect, autograph=False)(options, graph=graph)
    sides = (detections.boxes[..., 2:] - detections.boxes[..., :2]).numpy()
    assert (sides > 0.0).all()
    assert detections.num.numpy().tolist() == [options.max_detections] * 2
    _require_expected(case, options, detections)


@pytest.mark.parametrize("nms", ["hard", "gaussian"])
def test_few_scores_above_the_threshold(nms: Any) -> None:
    case = Case(objects=6)
    options = BoxPostprocess(nms=nms, score_threshold=0.97, max_detections=100)
    _require_expected(case, options, case.detect(options))


def _require_expected(case: Case, options: BoxPostprocess, detections: Any) -> None:
    for image in range(2):
        boxes, classes, scores = case.expected(image, options)
        num = int(detections.num[image])
        assert num == len(scores)
        np.testing.assert_allclose(detections.scores[image, :num], scores, rtol=1e-5)
        np.testing.assert_array_equal(detections.classes[image, :num], classes)
        normalised = np.clip(boxes / [200, 50, 200, 50], 0, 1)
        np.testing.assert_allclose(detections.boxes[image, :num], normalised, atol=1e-5)
        for padding in (detections.boxes, detections.scores, detections.classes):
            assert not padding[image, num:].numpy().any()


@pytest.mark.parametrize("nms", ["hard", "linear", "gaussian"])
def test_detections_compile_under_xla(monkeypatch: pytest.MonkeyPatch, nms: Any) -> None:
    monkeypatch.setitem(postprocess._WINDOWS, nms, (32,))
    case = Case(objects=20)
    options = BoxPostprocess(nms=nms, max_detections=20, pre_nms_top_k=200)
    compiled = tf.function(partial(detect_boxes, options=options), jit_compile=True, autograph=False)
    _require_expected(case, options, compiled(*case.inputs()))


def test_an_empty_image_beside_a_full_one() -> None:
    case = Case(objects=10)
    case.logits[1] -= 100
    options = BoxPostprocess(score_threshold=0.01, max_detections=5)
    detections = case.detect(options)
    assert detections.num.numpy().tolist() == [5, 0]
    assert not detections.boxes[1].numpy().any()
    assert not detections.scores[1].numpy().any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nms": "gaussian", "iou_threshold": 0.6}, "iou_threshold = 0.6 does nothing under nms = gaussian"),
        ({"nms": "hard", "sigma": 0.4}, "sigma = 0.4 does nothing under nms = hard"),
        ({"nms": "linear", "sigma": 0.4}, "sigma = 0.4 does nothing under nms = linear"),
        ({"nms": "soft"}, "'hard', 'linear' or 'gaussian'"),
        ({"nms": "gaussian", "sigma": 0.0}, "greater than 0"),
        ({"class_agnostic": True, "max_detections_per_class": 3}, "max_detections_per_class = 3 does nothing"),
        ({"nms": "linear", "max_detections_per_class": 3}, "max_detections_per_class = 3 does nothing"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BoxPostprocess(**options)
