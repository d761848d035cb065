from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from detection.models.faster_rcnn.rpn import ProposalOptions, Proposals, RpnHead, RpnOutputs, propose
from detection.ops.anchors import feature_sizes, pyramid_anchors_yxyx

Oracles = dict[str, dict[str, Any]]
Array = npt.NDArray[Any]

IMAGE, BATCH, PER_CELL = (64, 48), 3, 2
SIZES = feature_sizes(IMAGE, 4)[2:]
ANCHORS = pyramid_anchors_yxyx(
    IMAGE, min_level=2, max_level=4, num_scales=1, aspect_ratios=((1.0, 1.0), (1.4, 0.7)), anchor_scale=3.0
)
OPTIONS = ProposalOptions(pre_nms_top_k=40, post_nms_top_k=30, iou_threshold=0.5)
MIN_SIZE = 4.0
CLIP = 1.0


def _outputs(seed: int = 0) -> RpnOutputs:
    random = np.random.default_rng(seed)

    def level(size: tuple[int, int], width: int, scale: float) -> tf.Tensor:
        return tf.constant(random.normal(scale=scale, size=(BATCH, *size, PER_CELL * width)), tf.float32)

    return RpnOutputs([level(size, 1, 2.0) for size in SIZES], [level(size, 4, 0.7) for size in SIZES])


def _propose(outputs: RpnOutputs, options: ProposalOptions = OPTIONS, **coder: Any) -> Proposals:
    limits = tf.constant([[64.0, 48.0], [40.0, 48.0], [64.0, 20.0]])
    return propose(outputs, tf.constant(ANCHORS), limits, options, max_log_size=CLIP, **{"min_size": MIN_SIZE} | coder)


def _iou(first: Array, second: Array) -> float:
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    overlap = max(sides[0], 0.0) * max(sides[1], 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return float(overlap / (areas[0] + areas[1] - overlap))


def _decoded(deltas: Array, anchor: Array, offset: float) -> Array:
    size = anchor[2:] - anchor[:2] + offset
    centre = anchor[:2] + size / 2 + deltas[:2] * size
    size = size * np.exp(np.minimum(deltas[2:], CLIP))
    return np.concatenate([centre - size / 2, centre + size / 2 - offset])


def _plain(outputs: RpnOutputs, image: int, limit: tuple[float, float], options: ProposalOptions, offset: float) -> Any:
    """One image: each level alone, then the best of all."""
    kept: list[tuple[float, Array]] = []
    start = 0
    for logits, deltas in zip(outputs.logits, outputs.deltas, strict=True):
        values, codes = logits.numpy()[image].ravel(), deltas.numpy()[image].reshape(-1, 4)
        best = np.argsort(-values, kind="stable")[: options.pre_nms_top_k]
        of_level: list[tuple[float, Array]] = []
        for row in best:
            box = _decoded(codes[row].astype(float), ANCHORS[start + row].astype(float), offset)
            box = np.clip(box, 0.0, np.array([*limit, *limit]) - offset)
            if min(box[2] - box[0], box[3] - box[1]) + offset < MIN_SIZE:
                continue
            if all(_iou(box, other) <= options.iou_threshold for _, other in of_level):
                of_level.append((float(values[row]), box))
        kept += of_level[: options.post_nms_top_k]
        start += len(values)
    kept.sort(key=lambda item: -item[0])
    return kept[: options.post_nms_top_k]


@pytest.mark.parametrize("graph", ["loop", "op"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [OPTIONS, OPTIONS.changed({"pre_nms_top_k": 1000, "post_nms_top_k": 500}), OPTIONS.changed({"iou_threshold": 0.1})],
)
def test_proposals_equal_those_of_each_level_alone(options: ProposalOptions, offset: float, graph: str) -> None:
    outputs = _outputs()
    ours = _propose(outputs, options, pixel_offset=offset, graph=graph)
    assert ours.boxes.shape == (BATCH, options.post_nms_top_k, 4)
    for image, limit in enumerate([(64.0, 48.0), (40.0, 48.0), (64.0, 20.0)]):
        expected = _plain(outputs, image, limit, options, offset)
        count = int(ours.valid[image].numpy().sum())
        assert ours.valid[image].numpy().tolist() == [True] * count + [False] * (options.post_nms_top_k - count)
        assert 0 < count == len(expected)
        np.testing.assert_allclose(ours.boxes[image, :count], [box for _, box in expected], atol=1e-4)
        scores = [1.0 / (1.0 + np.exp(-logit)) for logit, _ in expected]
        np.testing.assert_allclose(ours.scores[image, :count], scores, rtol=1e-5)
        assert not ours.boxes[image, count:].numpy().any()
        assert not ours.scores[image, count:].numpy().any()


def test_boxes_of_different_levels_do_not_compete() -> None:
    """Both levels predict the whole image, again and again."""
    logits = [tf.fill([1, *size, PER_CELL], float(number)) for number, size in enumerate(SIZES)]
    deltas = [tf.tile(tf.constant([0.0, 0.0, 9.0, 9.0]), [PER_CELL]) + tf.zeros([1, *size, 1]) for size in SIZES]
    proposals = propose(
        RpnOutputs(logits, deltas),
        tf.constant(ANCHORS),
        tf.constant([64.0, 48.0]),
        OPTIONS,
        min_size=MIN_SIZE,
        max_log_size=9.0,
    )
    assert int(tf.reduce_sum(tf.cast(proposals.valid, tf.int32))) == len(SIZES)
    np.testing.assert_allclose(proposals.boxes[0, :3], [[0.0, 0.0, 64.0, 48.0]] * 3)
    np.testing.assert_allclose(proposals.scores[0, :3], tf.sigmoid([2.0, 1.0, 0.0]))


@pytest.mark.parametrize("graph", ["loop", "op"])
def test_one_nms_over_all_levels_of_boxes_that_are_clipped_afterwards(graph: str) -> None:
    outputs = _outputs()
    options = ProposalOptions(pre_nms_top_k=1000, post_nms_top_k=30, iou_threshold=0.5)
    ours = _propose(outputs, options, min_size=0.0, by_level=False, clip_after_nms=True, graph=graph)
    dropped = 0
    for image, limit in enumerate([(64.0, 48.0), (40.0, 48.0), (64.0, 20.0)]):
        logits, codes = (
            np.concatenate([level.numpy()[image].reshape(-1, width) for level in levels])
            for levels, width in ((outputs.logits, 1), (outputs.deltas, 4))
        )
        kept: list[Array] = []
        for row in np.argsort(-logits[:, 0], kind="stable"):
            box = _decoded(codes[row].astype(float), ANCHORS[row].astype(float), 0.0)
            if len(kept) < options.post_nms_top_k and all(_iou(box, other) <= 0.5 for other in kept):
                kept.append(box)
        boxes = np.clip(kept, 0.0, [*limit, *limit])
        inside = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
        np.testing.assert_array_equal(ours.valid[image], inside)
        np.testing.assert_allclose(ours.boxes[image], np.where(inside[:, np.newaxis], boxes, 0.0), atol=1e-4)
        dropped += int((~inside).sum())
    assert dropped > 0


def test_without_large_boxes_nothing_is_proposed() -> None:
    proposals = _propose(_outputs(), min_size=65.0)
    assert not proposals.valid.numpy().any()
    assert not proposals.boxes.numpy().any()


def test_equal_probabilities_are_ordered_by_logits() -> None:
    """In float32, the sigmoid of 40 equals that of 50: both are 1."""
    outputs = _outputs()
    outputs = outputs._replace(logits=[logits + 60.0 for logits in outputs.logits])
    expected = _plain(outputs, 0, (64.0, 48.0), OPTIONS, 0.0)
    proposals = _propose(outputs)
    np.testing.assert_array_equal(proposals.scores[0, : len(expected)], 1.0)
    np.testing.assert_allclose(proposals.boxes[0, : len(expected)], [box for _, box in expected], atol=1e-4)


def test_it_has_no_gradient() -> None:
    outputs = _outputs()
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        total = tf.reduce_sum(_propose(outputs).boxes) + tf.reduce_sum(_propose(outputs).scores)
    assert all(gradient is None for gradient in tf.nest.flatten(tape.gradient(total, outputs)))


def test_head_equals_the_originals_size(oracles: Oracles) -> None:
    expected = oracles["maskrcnn.params.r50_fpn"]["expected"]["rpn"]
    head = RpnHead(filters=256, anchors_per_cell=3)
    head.build([(None, None, None, 256)] * 5)
    assert sum(int(np.prod(variable.shape)) for variable in head.variables) == expected
    assert all(abs(np.std(kernel) - 0.01) < 2e-3 for kernel in head.get_weights()[::2])


def test_head_is_shared_by_levels() -> None:
    head = RpnHead(filters=4, anchors_per_cell=PER_CELL)
    head.build([(None, None, None, 4)])
    for variable in head.variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    feature = tf.random.stateless_normal([BATCH, 5, 7, 4], [0, 0])
    small, large = head([feature[:, :3]]), head([feature, feature])
    for ours, theirs in zip(large.logits[1:] + large.deltas[1:], large.logits[:1] + large.deltas[:1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(small.logits[0][:, :2], large.logits[0][:, :2], rtol=1e-5)
    inner = np.maximum(head.conv(feature), 0.0)
    np.testing.assert_allclose(
        large.deltas[0], inner @ head.boxes[0].kernel.numpy()[0, 0] + head.boxes[0].bias.numpy(), rtol=1e-4, atol=1e-4
    )
    assert (large.logits[0].shape[1:], large.deltas[0].shape[1:]) == ((5, 7, PER_CELL), (5, 7, 4 * PER_CELL))


def test_the_od_api_s_levels_have_outputs_of_their_own() -> None:
    head = RpnHead(filters=6, anchors_per_cell=PER_CELL, levels=[3, 4], layout="od-api")
    head.build([(None, None, None, 4)] * 2)
    random = np.random.default_rng(0)
    for variable in head.variables:
        variable.assign(random.normal(size=variable.shape) * 2)
    features = [tf.random.stateless_normal([BATCH, *size, 4], [0, 0]) for size in ((5, 7), (3, 4))]
    outputs = head(features)
    assert {variable.path.split("/")[1] for variable in head.variables} == {
        *("conv2d", "score_p3", "score_p4", "box_p3", "box_p4")
    }
    for level, feature in enumerate(features):
        inner = np.clip(head.conv(feature), 0.0, 6.0)
        assert (inner == 6.0).any()
        for convs, ours in ((head.scores, outputs.logits), (head.boxes, outputs.deltas)):
            expected = inner @ convs[level].kernel.numpy()[0, 0] + convs[level].bias.numpy()
            np.testing.assert_allclose(ours[level], expected, rtol=1e-4, atol=1e-3)
