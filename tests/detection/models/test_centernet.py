"""CenterNet: targets, losses and detections, against NumPy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.hourglass import HOURGLASSES, HourglassSpec
from detection.models.centernet.centers import center_heatmap, centers_of, inside_image, penalty_reduced_focal
from detection.models.centernet.model import CenterNet
from detection.models.registry import build_detector
from detection.types import ImageInfo, Labels
from schemas.errors import ConfigError

SIZE, STRIDE, CLASSES = (12, 20), 4, 3


def _build(**arguments: Any) -> CenterNet:
    detector = build_detector("centernet-nano", num_classes=CLASSES, image_size=64, **arguments)
    assert isinstance(detector, CenterNet)
    return detector


def _labels(count: int = 6) -> Labels:
    random = np.random.default_rng(3)
    corners = random.uniform(0, 20, (2, count, 2))
    boxes = np.concatenate([corners, corners + random.uniform(4, 28, (2, count, 2))], axis=-1)
    valid = np.array([[True] * (count - 1) + [False], [False] * count])
    return Labels(
        boxes=tf.constant(boxes * valid[..., None], tf.float32),
        classes=tf.constant(random.integers(0, CLASSES, (2, count)) * valid, tf.int32),
        valid=tf.constant(valid),
        weights=tf.constant(random.choice([0.5, 1.0], (2, count)), tf.float32),
    )


def _radius(height: float, width: float, overlap: float) -> int:
    """The largest shift of corners in the paper's three cases, as its authors' code has them."""
    total, area = height + width, height * width
    cases = [
        (1, -total, area * (1 - overlap) / (1 + overlap)),
        (4, -2 * total, (1 - overlap) * area),
        (4 * overlap, 2 * overlap * total, (overlap - 1) * area),
    ]
    return max(0, int(min((-b + np.sqrt(b * b - 4 * a * c)) / 2 for a, b, c in cases)))


def test_the_heatmap_is_the_maximum_of_gaussians_about_the_cells_of_centers() -> None:
    labels = _labels()
    assert labels.weights is not None
    expected = np.zeros((2, *SIZE, CLASSES))
    down, across = np.mgrid[: SIZE[0], : SIZE[1]]
    for image, row in np.argwhere(labels.valid.numpy()):
        start_y, start_x, end_y, end_x = labels.boxes.numpy()[image, row] / STRIDE
        y, x = int((start_y + end_y) / 2), int((start_x + end_x) / 2)
        sigma = (2 * _radius(end_y - start_y, end_x - start_x, 0.7) + 1) / 6
        gaussian = np.exp(-((down - y) ** 2 + (across - x) ** 2) / (2 * sigma**2)) * labels.weights.numpy()[image, row]
        channel = expected[image, ..., labels.classes.numpy()[image, row]]
        np.maximum(channel, gaussian, out=channel)
    centers = centers_of(labels, stride=STRIDE, size=SIZE)
    heatmap = center_heatmap(centers, size=SIZE, num_classes=CLASSES, min_iou=0.7)
    np.testing.assert_allclose(heatmap, expected, atol=1e-6)
    assert (heatmap.numpy() == 1).any(), "cells of centers are exactly 1, also in float32"


def test_the_focal_loss_is_the_papers() -> None:
    random = np.random.default_rng(0)
    logits, targets = random.normal(0, 4, (2, 5, 5, 3)), random.choice([0.0, 0.3, 0.99, 1.0], (2, 5, 5, 3))
    p = np.clip(1 / (1 + np.exp(-logits)), 1e-4, 1 - 1e-4)
    expected = -np.where(targets == 1, (1 - p) ** 2 * np.log(p), (1 - targets) ** 4 * p**2 * np.log(1 - p))
    found = penalty_reduced_focal(
        tf.constant(logits, tf.float32), tf.constant(targets, tf.float32), alpha=2.0, beta=4.0
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_padding_has_no_loss() -> None:
    inside = inside_image(tf.constant([[48.0, 80.0], [17.0, 40.0]]), stride=STRIDE, size=SIZE)
    expected = np.zeros((2, *SIZE, 1))
    expected[0], expected[1, :5, :10] = 1, 1
    np.testing.assert_array_equal(inside, expected)
    detector = _build()
    outputs, labels = detector(tf.random.stateless_normal([2, 64, 64, 3], [0, 0])), _labels()
    whole, part = (
        float(detector.losses(outputs, labels._replace(sizes=sizes))["center_loss"])
        for sizes in (None, tf.constant([[64.0, 32.0]] * 2))
    )
    assert part < whole


@pytest.mark.parametrize("slots", [5, 2000])
def test_detections_are_the_peaks_with_their_sizes_and_offsets(slots: int) -> None:
    detector = _build(postprocess={"max_detections": slots, "score_threshold": 0.3})
    logits = np.full((1, 16, 16, CLASSES), -9.0, np.float32)
    logits[0, 3, 5, 1], logits[0, 3, 6, 1], logits[0, 4, 6, 2], logits[0, 15, 0, 0] = 2.0, 1.0, 1.5, 0.5
    sizes = np.full((1, 16, 16, 2), (4.0, 2.0), np.float32)
    logits[0, 12, 12, 1], sizes[0, 12, 12] = 3.0, -1.0
    offsets = np.full((1, 16, 16, 2), (0.25, 0.5), np.float32)
    outputs = {"center": [tf.constant(logits)], "size": [tf.constant(sizes)], "offset": [tf.constant(offsets)]}
    info = ImageInfo(tf.constant([[128.0, 128.0]]), tf.constant([[0.5, 0.5]]))
    found = detector.detect(outputs, info)
    assert found.boxes.shape == (1, slots, 4)
    assert found.num.numpy().tolist() == [3], "the second of class 1 has a better neighbour, the best no area"
    assert found.classes[0, :3].numpy().tolist() == [1, 2, 0]
    np.testing.assert_allclose(found.scores[0, :3], 1 / (1 + np.exp([-2.0, -1.5, -0.5])), rtol=1e-5)
    cells = [[1.25, 4.5, 5.25, 6.5], [2.25, 5.5, 6.25, 7.5], [13.25, 0, 16, 1.5]]
    np.testing.assert_allclose(found.boxes[0, :3], np.array(cells) / 16, atol=1e-6)


@pytest.mark.parametrize("slots", [5, 2000])
def test_peaks_whose_boxes_are_in_the_padding_take_no_place(slots: int) -> None:
    """The image fills the left half of the input; the best peaks are in the right half, one box reaches to the left."""
    detector = _build(postprocess={"max_detections": slots, "score_threshold": 0.3})
    logits = np.full((1, 16, 16, CLASSES), -9.0, np.float32)
    logits[0, ::2, 10::2, 0] = 3.0
    logits[0, 1:14:4, 2:7:2, 1] = np.arange(12).reshape(4, 3) * 0.1
    sizes = np.full((1, 16, 16, 2), 1.5, np.float32)
    sizes[0, 8, 12] = 10.0
    outputs = {"center": [tf.constant(logits)], "size": [tf.constant(sizes)], "offset": [tf.zeros([1, 16, 16, 2])]}
    found = detector.detect(outputs, ImageInfo(tf.constant([[64.0, 32.0]]), tf.constant([[1.0, 1.0]])))
    count = int(found.num[0])
    assert count == min(slots, 13)
    assert found.classes[0, :count].numpy().tolist() == [0] + [1] * (count - 1)
    sides = found.boxes[0, :count, 2:] - found.boxes[0, :count, :2]
    assert (sides.numpy() > 0.0).all()


def test_each_hourglass_has_heads_and_the_last_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOURGLASSES, "hourglass-104", HourglassSpec((16, 16, 24), (1, 2, 1), 8, stacks=2))
    detector = build_detector(
        "centernet-hourglass-104", num_classes=CLASSES, image_size=(52, 64), overrides={"head": {"filters": 8}}
    )
    stages = detector.backbone.stages
    paths = {variable.path for stage in stages for layer in stage for variable in layer.variables}
    assert len(stages) == 2
    assert paths == {variable.path for variable in detector.backbone.variables}
    outputs = detector(tf.random.stateless_normal([2, 52, 64, 3], [0, 0]), training=True)
    assert [output.shape for output in outputs["size"]] == [(2, 13, 16, 2)] * 2
    np.testing.assert_array_equal(detector.named_outputs(outputs)["center"], outputs["center"][1])
    both, *alone = (
        detector.losses(values, _labels())
        for values in (outputs, *({task: [levels[at]] for task, levels in outputs.items()} for at in (0, 1)))
    )
    for name, loss in both.items():
        np.testing.assert_allclose(loss, (alone[0][name] + alone[1][name]) / 2, rtol=1e-5, err_msg=name)


def test_an_hourglass_that_is_recomputed_has_the_same_gradients_and_freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOURGLASSES, "hourglass-104", HourglassSpec((16, 16, 24), (1, 2, 1), 8, stacks=2))
    images = tf.random.stateless_normal([2, 52, 64, 3], [0, 0])
    found: list[dict[str, np.ndarray]] = []
    for recomputed in (False, True):
        overrides = {"head": {"filters": 8}, "gradient_checkpointing": recomputed, "backbone": {"frozen_stages": 1}}
        detector = build_detector("centernet-hourglass-104", num_classes=2, image_size=(52, 64), overrides=overrides)
        for number, variable in enumerate(detector.variables):
            values = tf.random.stateless_normal(variable.shape, [1, number]) / 10.0
            variable.assign(tf.abs(values) if "moving_variance" in variable.path else values)
        with tf.GradientTape() as tape:
            loss = tf.add_n(list(detector.losses(detector(images, training=True), _labels()).values()))
        paths = [variable.path for variable in detector.trainable_variables]
        gradients = tape.gradient(loss, [variable.value for variable in detector.trainable_variables])
        found.append(dict(zip(paths, map(np.asarray, gradients), strict=True)))
    once, again = found
    assert not any(path.split("/")[1] in ("stem", "hourglass_network_0") for path in once)
    assert any("hourglass_network_1" in path for path in once)
    for path, gradient in once.items():
        assert np.abs(gradient).max() > 0.0, path
        np.testing.assert_allclose(again[path], gradient, rtol=1e-3, atol=1e-5, err_msg=path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"neck": {"filters": [64, 32]}},
            r"neck\.filters = \[64, 32\]: specify one value for each of the 4 levels 5 to 2",
        ),
        ({"max_level": 6, "neck": {"filters": [64] * 5}}, r"max_level = 6: efficientnet-nano has 5 levels"),
        ({"backbone": {"name": "hourglass-104"}}, r"hourglass-104 needs neck\.filters = \[\] and min_level = 2"),
        ({"max_level": 4, "neck": {"filters": [64] * 3}}, "include its deepest level, 5"),
        ({"backbone": {"layout": "tpu"}}, "efficientnet-nano has no layout = tpu"),
    ],
)
def test_levels_that_do_not_fit_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _build(overrides=overrides)
