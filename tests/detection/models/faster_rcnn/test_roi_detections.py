from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from detection.models.detector import NmsGraph
from detection.models.faster_rcnn.roi_detections import detect_in_rois
from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.rpn import Proposals
from detection.models.heads.postprocess import MaskPostprocess
from detection.types import Detections, ImageInfo
from tests.detection.ops.plain_nms import plain_nms

BATCH, ROIS, CLASSES = 2, 20, 3
FACTORS, MAX_LOG_SIZE = (10.0, 10.0, 5.0, 5.0), 0.5
OPTIONS = MaskPostprocess(score_threshold=0.05, iou_threshold=0.4, max_detections=15)
INFO = ImageInfo(tf.constant([[100.0, 80.0], [50.0, 50.0]]), tf.constant([[0.5, 0.5], [1.0, 1.0]]))
LIMITS = ((50.0, 40.0), (50.0, 50.0))


def _case(columns: int = CLASSES + 1) -> tuple[BoxHeadOutputs, Proposals]:
    random = np.random.default_rng(0)
    corners = random.uniform(-5, 40, (BATCH, ROIS, 2))
    boxes = np.concatenate([corners, corners + random.uniform(5, 25, (BATCH, ROIS, 2))], axis=2)
    valid = np.arange(ROIS) < np.array([[ROIS], [12]])
    logits = random.normal(scale=2.0, size=(BATCH, ROIS, CLASSES + 1))
    deltas = random.normal(scale=3.0, size=(BATCH, ROIS, columns, 4))
    outputs = BoxHeadOutputs(tf.constant(logits, tf.float32), tf.constant(deltas, tf.float32))
    boxes = boxes * valid[..., None]
    return outputs, Proposals(tf.constant(boxes, tf.float32), tf.zeros([BATCH, ROIS]), tf.constant(valid))


def _detect(
    outputs: BoxHeadOutputs,
    proposals: Proposals,
    options: MaskPostprocess,
    offset: float = 0.0,
    graph: NmsGraph = "windows",
    **more: Any,
) -> tuple[Detections, tf.Tensor]:
    return detect_in_rois(
        outputs,
        proposals,
        INFO,
        options,
        scale_factors=FACTORS,
        pixel_offset=offset,
        max_log_size=MAX_LOG_SIZE,
        graph=graph,
        **more,
    )


def _plain_boxes(
    outputs: BoxHeadOutputs, proposals: Proposals, image: int, offset: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Box, score and class of each pair of RoI and class, in this order."""
    rows = []
    for roi in range(int(proposals.valid[image].numpy().sum())):
        logits = outputs.class_logits[image, roi].numpy().astype(float)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        low, high = np.split(proposals.boxes[image, roi].numpy().astype(float), 2)
        for kind in range(CLASSES):
            columns = outputs.box_deltas.shape[2]
            delta = outputs.box_deltas[image, roi, kind + 1 if columns > 1 else 0].numpy() / FACTORS
            size = high - low + offset
            centre = low + size / 2 + delta[:2] * size
            size = size * np.exp(np.minimum(delta[2:], MAX_LOG_SIZE))
            box = np.concatenate([centre - size / 2, centre + size / 2 - offset])
            rows.append((np.clip(box, 0, np.array(LIMITS[image] * 2) - offset), probabilities[kind + 1], kind))
    boxes, scores, classes = zip(*rows, strict=True)
    return np.array(boxes), np.array(scores), np.array(classes)


def _area(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)


@pytest.mark.parametrize("graph", ["loop", "op"])
@pytest.mark.parametrize("columns", [CLASSES + 1, 1])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_detections_equal_loops(columns: int, offset: float, graph: NmsGraph) -> None:
    outputs, proposals = _case(columns)
    detections, pixels = _detect(outputs, proposals, OPTIONS, offset, graph)
    for image in range(BATCH):
        boxes, scores, classes = _plain_boxes(outputs, proposals, image, offset)
        picked, values = plain_nms(
            boxes,
            scores,
            classes,
            iou_threshold=0.4,
            score_threshold=0.05,
            max_outputs=OPTIONS.max_detections,
            counts=_area(boxes) > 0.0,
        )
        count = int(detections.num[image])
        assert count == len(picked) > 5
        np.testing.assert_allclose(detections.scores[image, :count], values, rtol=1e-5)
        np.testing.assert_array_equal(detections.classes[image, :count], classes[picked])
        np.testing.assert_allclose(pixels[image, :count], boxes[picked], atol=1e-4)
        normalised = boxes[picked] / np.array(LIMITS[image] * 2)
        np.testing.assert_allclose(detections.boxes[image, :count], normalised, atol=1e-5)
        assert not pixels[image, count:].numpy().any()


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_box_below_one_pixel_is_dropped_if_corners_are_pixels(offset: float) -> None:
    """RoIs of 4 by 4 pixels, shrunk to a hundredth: from one pixel to itself, without an area."""
    outputs, proposals = _case()
    deltas = tf.constant([0.0, 0.0, *2 * [5.0 * np.log(0.01)]], tf.float32)
    outputs = outputs._replace(box_deltas=tf.zeros_like(outputs.box_deltas) + deltas)
    edge = 14.0 - offset
    rois = tf.zeros_like(proposals.boxes) + tf.constant([10.0, 10.0, edge, edge])
    detections, pixels = _detect(outputs, proposals._replace(boxes=rois), OPTIONS, offset)
    if offset:
        assert not detections.num.numpy().any()
        return
    np.testing.assert_allclose(pixels[0, 0, :2], 12.0 - 0.02, atol=1e-4)
    np.testing.assert_allclose(pixels[0, 0, 2:] - pixels[0, 0, :2], 0.04, atol=1e-4)


def test_boxes_may_be_clipped_after_nms() -> None:
    """Two RoIs are alike within the image, of 50 by 40 pixels, but not beyond it; two are outside."""
    outputs, proposals = _case()
    outputs = outputs._replace(box_deltas=tf.zeros_like(outputs.box_deltas))
    rois = np.zeros((BATCH, ROIS, 4), np.float32)
    rois[:, :4] = [[10, 10, 50, 40], [10, 100, 30, 130], [10, 10, 50, 400], [60, 10, 90, 40]]
    proposals = Proposals(tf.constant(rois), proposals.scores, tf.range(ROIS)[tf.newaxis] < tf.constant([[4], [4]]))
    options = OPTIONS.model_copy(update={"one_class_per_anchor": True, "class_agnostic": True, "score_threshold": 0.0})
    clipped, _ = _detect(outputs, proposals, options)
    areas = np.prod(clipped.boxes[0, :, 2:] - clipped.boxes[0, :, :2], axis=-1)
    assert (areas > 0).sum() == 1
    found, pixels = _detect(outputs, proposals, options, clip_after_nms=True)
    assert int(found.num[0]) == 2
    np.testing.assert_allclose(pixels[0, :2], [[10, 10, 50, 40]] * 2)
    np.testing.assert_allclose(found.boxes[0, :2], [[0.2, 0.25, 1.0, 1.0]] * 2)
    assert not found.scores[0, 2:].numpy().any()
    assert (np.diff(found.scores[0, :2]) <= 0).all()


def test_one_class_per_roi() -> None:
    outputs, proposals = _case()
    options = OPTIONS.model_copy(update={"one_class_per_anchor": True, "iou_threshold": 1.0, "max_detections": 100})
    detections, _ = _detect(outputs, proposals, options)
    boxes, scores, _ = _plain_boxes(outputs, proposals, 0, 0.0)
    scores, areas = scores.reshape(-1, CLASSES), _area(boxes).reshape(-1, CLASSES)
    best = scores.max(axis=1)[areas[np.arange(len(scores)), scores.argmax(axis=1)] > 0.0]
    expected = np.sort(best[best > OPTIONS.score_threshold])[::-1]
    np.testing.assert_allclose(detections.scores[0, : int(detections.num[0])], expected, rtol=1e-5)


def test_without_proposals_nothing_is_found() -> None:
    outputs, proposals = _case()
    none = proposals._replace(valid=tf.zeros_like(proposals.valid), boxes=tf.zeros_like(proposals.boxes))
    detections, pixels = _detect(outputs, none, OPTIONS.model_copy(update={"score_threshold": 0.0}))
    assert not detections.num.numpy().any()
    assert not pixels.numpy().any()
