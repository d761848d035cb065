"""What the two-stage detectors make of their options: losses, proposals, masks."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.registry import build_detector
from detection.ops.replicas import micro_batch
from detection.types import Detections, ImageInfo, Labels
from schemas.config.section import merged
from schemas.errors import ConfigError

SIDE, CLASSES, BATCH = 64, 3, 2
SMALL: dict[str, Any] = {
    "min_level": 4,
    "neck": {"filters": 8},
    "anchors": {"scale": 1.0},
    "rpn": {"sampling": {"count": 16}, "train": {"post_nms_top_k": 20}, "test": {"post_nms_top_k": 20}},
    "roi": {"sampling": {"count": 16}},
    "box_head": {"layers": 1, "units": 8},
    "mask_head": {"layers": 1, "filters": 8},
    "backbone": {"train_batch_norm": False},
}
TERMS = ("rpn_score_loss", "rpn_box_loss", "class_loss", "box_loss", "mask_loss")
INFO = ImageInfo(tf.fill([BATCH, 2], 64.0), tf.ones([BATCH, 2]))


def _build(**overrides: Any) -> FasterRcnn:
    keras.utils.set_random_seed(0)
    detector = build_detector(
        "mask-rcnn-nano",
        num_classes=CLASSES,
        image_size=SIDE,
        overrides=merged(SMALL, overrides),
        postprocess={"max_detections": 10, "score_threshold": 0.0},
    )
    assert isinstance(detector, FasterRcnn)
    return detector


def _row(nest: Any, row: int) -> Any:
    return tf.nest.map_structure(lambda value: None if value is None else value[row : row + 1], nest)


@pytest.fixture(scope="module")
def images() -> tf.Tensor:
    return tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 0])


@pytest.fixture(scope="module")
def labels() -> Labels:
    boxes = tf.constant([[[4.0, 6.0, 30.0, 28.0], [30.0, 20.0, 60.0, 50.0]], [[10.0, 12.0, 40.0, 44.0], [0.0] * 4]])
    return Labels(
        boxes=boxes,
        classes=tf.constant([[0, 2], [1, 0]]),
        valid=tf.constant([[True, True], [True, False]]),
        masks=tf.ones([BATCH, 2, 28, 28], tf.uint8),
    )


@pytest.fixture(scope="module")
def detector() -> FasterRcnn:
    """The detector as it is; tests leave it so."""
    return _build()


@pytest.fixture(scope="module")
def outputs(detector: FasterRcnn, images: tf.Tensor) -> Any:
    return detector(images)


@pytest.fixture(scope="module")
def plain(detector: FasterRcnn, outputs: Any, labels: Labels) -> dict[str, tf.Tensor]:
    """The losses of the detector as it is."""
    return detector.losses(outputs, labels)


@pytest.fixture(scope="module")
def found(detector: FasterRcnn, outputs: Any) -> Detections:
    return detector.detect(outputs, INFO)


def test_each_weight_multiplies_its_term(plain: dict[str, tf.Tensor], images: tf.Tensor, labels: Labels) -> None:
    factors = dict(zip(TERMS, (2.0, 3.0, 5.0, 7.0, 11.0), strict=True))
    detector = _build(
        rpn={"score_loss_weight": 2.0, "box_loss_weight": 3.0},
        box_head={"class_loss_weight": 5.0, "box_loss_weight": 7.0},
        mask_head={"loss_weight": 11.0},
    )
    terms = detector.losses(detector(images), labels)
    assert terms.keys() == plain.keys() == factors.keys()
    for term, value in terms.items():
        np.testing.assert_allclose(value, plain[term] * factors[term], rtol=1e-5, err_msg=term)


def test_an_untrained_head_is_undecided(plain: dict[str, tf.Tensor], labels: Labels) -> None:
    """All 16 anchors and RoIs of an image are used; classes and masks start nearly even."""
    np.testing.assert_allclose(plain["rpn_score_loss"], np.log(2.0), rtol=0.05)
    np.testing.assert_allclose(plain["class_loss"], np.log(CLASSES + 1), rtol=0.05)
    assert 0.3 < float(plain["mask_loss"]) < 3.0


def test_faster_rcnn_has_the_losses_and_boxes_of_mask_rcnn(
    detector: FasterRcnn, plain: dict[str, tf.Tensor], found: Detections, images: tf.Tensor, labels: Labels
) -> None:
    other = _build(include_mask=False)
    other.set_weights([*detector.get_weights()][: len(other.get_weights())])
    without, outputs = labels._replace(masks=None), other(images)
    for key, value in other.losses(outputs, without).items():
        np.testing.assert_allclose(value, plain[key], rtol=1e-5, err_msg=key)
    ours = other.detect(outputs, INFO)
    np.testing.assert_allclose(ours.boxes, found.boxes, atol=1e-5)
    assert ours.masks is None
    with pytest.raises(ValueError, match="the labels have no masks"):
        detector.losses(detector(images), without)


@pytest.mark.parametrize("option", [{"pre_nms_top_k": 1}, {"post_nms_top_k": 2}, {"iou_threshold": 0.0}], ids=str)
def test_proposals_have_options_of_their_own_in_training_and_in_detection(
    plain: dict[str, tf.Tensor], found: Detections, images: tf.Tensor, labels: Labels, option: dict[str, float]
) -> None:
    for stage in ("train", "test"):
        detector = _build(rpn={stage: option})
        outputs = detector(images)
        losses_differ = float(detector.losses(outputs, labels)["class_loss"]) != float(plain["class_loss"])
        detections_differ = bool((detector.detect(outputs, INFO).boxes.numpy() != found.boxes.numpy()).any())
        assert (losses_differ, detections_differ) == (stage == "train", stage == "test")


def test_small_proposals_are_left_out(images: tf.Tensor) -> None:
    detector = _build(rpn={"min_size": 65.0})
    assert not detector.detect(detector(images), INFO).num.numpy().any()


def test_masks_are_those_of_the_final_boxes_and_classes(images: tf.Tensor) -> None:
    """The mask of each class is a constant of its own."""
    detector = _build()
    head: Any = detector.mask_head
    head.masks.kernel.assign(tf.zeros_like(head.masks.kernel))
    head.masks.bias.assign([9.0, -1.0, 0.0, 1.0])
    detections = detector.detect(detector(images), INFO)
    for image in range(BATCH):
        count = int(detections.num[image])
        assert count > 0
        assert detections.masks is not None
        expected = tf.sigmoid(tf.gather([-1.0, 0.0, 1.0], detections.classes[image, :count]))
        masks = detections.masks[image].numpy()
        assert masks.shape == (10, 28, 28)
        np.testing.assert_allclose(masks[:count].min(axis=(1, 2)), expected, rtol=1e-5)
        np.testing.assert_allclose(masks[:count].max(axis=(1, 2)), expected, rtol=1e-5)
        assert not masks[count:].any()


def test_an_object_without_a_mask_teaches_its_box_and_no_mask(
    detector: FasterRcnn, outputs: Any, labels: Labels
) -> None:
    def losses(drawn: list[float]) -> dict[str, float]:
        masks = tf.tile(tf.reshape(tf.constant(drawn), [BATCH, 1, 1, 1]), [1, 2, 28, 28])
        terms = detector.losses(outputs, labels._replace(masks=tf.cast(masks, tf.uint8)))
        return {name: float(term) for name, term in terms.items()}

    both, second, none = losses([1, 1]), losses([0, 1]), losses([0, 0])
    for name in ("rpn_score_loss", "rpn_box_loss", "class_loss", "box_loss"):
        assert both[name] == second[name] == none[name] > 0.0
    alone = detector.losses(
        outputs._replace(**_row({"features": outputs.features, "rpn": outputs.rpn}, 1)), _row(labels, 1)
    )
    np.testing.assert_allclose(second["mask_loss"], alone["mask_loss"], rtol=1e-5)
    assert both["mask_loss"] != second["mask_loss"]
    assert none["mask_loss"] == 0.0


def test_slots_without_an_object_need_no_masks(
    detector: FasterRcnn, outputs: Any, plain: dict[str, tf.Tensor], labels: Labels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPUs the mask head runs on the slots in use; as on accelerators, where it runs on all."""
    counted: list[int] = []
    mask_logits = detector._mask_logits

    def counting(outputs: Any, boxes: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        counted.append(boxes.shape[1])
        return mask_logits(outputs, boxes, columns)

    monkeypatch.setattr(detector, "_mask_logits", counting)
    few = [detector.losses(outputs, labels)["mask_loss"], detector.detect(outputs, INFO).masks]
    detector.portable = True
    all_ = [detector.losses(outputs, labels)["mask_loss"], detector.detect(outputs, INFO).masks]
    assert 0 < counted[0] < counted[2] == 4
    assert counted[3] == 10
    for one, other in zip(few, all_, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(few[0], plain["mask_loss"], rtol=1e-5)


def test_portable_detection_needs_no_sparse_product(outputs: Any, found: Detections) -> None:
    """Which LiteRT lacks, and which is faster elsewhere."""
    detector = _build()
    sparse = []
    for portable in (False, True):
        detector.portable = portable
        traced = tf.function(lambda: detector.detect(outputs, INFO), autograph=False).get_concrete_function()
        sparse.append(any("Sparse" in operation.type for operation in traced.graph.get_operations()))
    for ours, theirs in zip(detector.detect(outputs, INFO)[:5], found[:5], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert sparse == [not tf.config.list_physical_devices("GPU"), False]


def test_detections_stay_inside_the_image_that_fills_a_part_of_the_input(detector: FasterRcnn, outputs: Any) -> None:
    info = ImageInfo(tf.constant([[40.0, 20.0], [128.0, 64.0]]), tf.constant([[1.0, 1.0], [0.5, 0.5]]))
    boxes = detector.detect(outputs, info).boxes.numpy()
    assert ((boxes >= 0.0) & (boxes <= 1.0)).all()
    assert (boxes[..., 2:] > boxes[..., :2]).any()


def test_tpu_mask_rcnns_box_loss_of_the_rpn(images: tf.Tensor, labels: Labels) -> None:
    """Its `rpn_loss` in numpy: of each level the mean over all matched anchors' deltas, then the sum over levels."""
    detector = _build(dialect="tpu", rpn={"sampling": {"count": 2}})  # what is sampled does not matter
    outputs = detector(images)
    small = tf.constant([[[4.0, 6.0, 30.0, 28.0], [30.0, 20.0, 47.0, 36.0]], [[10.0, 12.0, 40.0, 44.0], [0.0] * 4]])
    labels = labels._replace(boxes=small)
    boxes, valid, anchors = labels.boxes.numpy(), labels.valid.numpy(), detector.anchors
    low = np.maximum(boxes[:, None, :, :2], anchors[:, None, :2])
    high = np.minimum(boxes[:, None, :, 2:], anchors[:, None, 2:])
    overlap = np.prod(np.maximum(high - low, 0.0), axis=-1)
    area, own = np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1), np.prod(anchors[:, 2:] - anchors[:, :2], axis=-1)
    iou = np.where(valid[:, None], overlap / (area[:, None] + own[:, None] - overlap), -1.0)
    matched, best = iou.max(axis=2) >= 0.7, iou.argmax(axis=2)
    for image, number in np.argwhere(valid):
        forced = iou[image, :, number].argmax()
        matched[image, forced], best[image, forced] = True, number
    terms, start = [], 0
    for level in outputs.rpn.deltas:
        predicted, huber = level.numpy().reshape(BATCH, -1, 4), []
        for image, anchor in np.argwhere(matched[:, start : start + predicted.shape[1]]):
            of, box = anchors[start + anchor], boxes[image, best[image, start + anchor]]
            size, anchor_size = box[2:] - box[:2], of[2:] - of[:2]
            offset = (box[:2] + size / 2 - of[:2] - anchor_size / 2) / anchor_size
            error = np.abs(predicted[image, anchor] - np.concatenate([offset, np.log(size / anchor_size)]))
            huber.append(np.where(error <= 1 / 9, error**2 / 2, error / 9 - 1 / 162))
        terms.append(float(np.mean(huber)) if huber else 0.0)
        start += predicted.shape[1]
    assert all(terms)
    np.testing.assert_allclose(detector.losses(outputs, labels)["rpn_box_loss"], sum(terms), rtol=1e-4)
    in_parts = [
        (_row(outputs._replace(seed=None), at)._replace(seed=outputs.seed), _row(labels, at)) for at in range(BATCH)
    ]
    positives = sum(detector.count_positives(part) for _, part in in_parts)
    total = 0.0
    for at, part in enumerate(in_parts):
        with micro_batch(at, BATCH):
            total += float(detector.losses(*part, positives)["rpn_box_loss"])
    np.testing.assert_allclose(total, sum(terms), rtol=1e-4)


def test_the_seed_chooses_the_samples(images: tf.Tensor, labels: Labels) -> None:
    detector = _build(rpn={"sampling": {"count": 4}}, roi={"sampling": {"count": 4}})

    def loss(*seed: int) -> float:
        outputs = detector(images, seed=tf.constant(seed)) if seed else detector(images)
        return float(detector.losses(outputs, labels)["class_loss"])

    assert loss(1, 2) == loss(1, 2) != loss(1, 3)
    assert loss() == loss(0, 0)


def test_objects_of_weight_zero_do_not_count(
    detector: FasterRcnn, outputs: Any, plain: dict[str, tf.Tensor], labels: Labels
) -> None:
    weightless = detector.losses(outputs, labels._replace(weights=tf.zeros([BATCH, 2])))
    for key in ("rpn_box_loss", "box_loss", "mask_loss"):
        assert float(weightless[key]) == 0.0 < float(plain[key])


def test_without_objects_the_losses_are_those_of_the_background(
    detector: FasterRcnn, outputs: Any, labels: Labels
) -> None:
    empty = labels._replace(valid=tf.zeros_like(labels.valid), boxes=tf.zeros_like(labels.boxes))
    terms = detector.losses(outputs, empty)
    assert all(np.isfinite(value) for value in terms.values())
    assert {key for key, value in terms.items() if value > 0.0} == {"rpn_score_loss", "class_loss"}


def test_a_cascade_has_losses_of_each_stage_and_class_agnostic_boxes(
    plain: dict[str, tf.Tensor], images: tf.Tensor, labels: Labels
) -> None:
    detector = _build(box_head={"cascade_ious": (0.5, 0.6, 0.7)})
    paths = {variable.path.split("/")[0] for variable in detector.variables if "box_head" in variable.path}
    assert paths == {"box_head", "box_head_2", "box_head_3"}
    assert [head.boxes.kernel.shape[-1] for head in detector.box_heads] == [4, 4, 4]
    classes = {path for path in detector.output_classes(CLASSES) if "box_head" in path}
    assert {path.split("/")[1] for path in classes} == {"class"}
    assert len(classes) == 6
    outputs = detector(images)
    terms = detector.losses(outputs, labels)
    assert terms.keys() == {*plain, "class_loss_2", "box_loss_2", "class_loss_3", "box_loss_3"}
    # Untrained heads are undecided; weights halve from stage to stage.
    np.testing.assert_allclose(terms["class_loss_2"] / terms["class_loss"], 0.5, rtol=0.1)
    np.testing.assert_allclose(terms["class_loss_3"] / terms["class_loss"], 0.25, rtol=0.1)
    assert detector.detect(outputs, INFO).num.numpy().min() > 0


@pytest.mark.parametrize("ious", [(0.5,), (0.6, 0.5), (0.5, 0.5), (0.5, 1.0), (0.0, 0.5)])
def test_thresholds_of_a_cascade_must_rise(ious: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="specify two or more ascending thresholds between 0 and 1"):
        _build(box_head={"cascade_ious": ious})


def test_a_cascade_refuses_the_threshold_that_its_first_one_replaces() -> None:
    with pytest.raises(
        ConfigError, match=r"does nothing with box_head\.cascade_ious, whose first threshold replaces it"
    ):
        _build(box_head={"cascade_ious": (0.5, 0.6)}, roi={"positive_iou": 0.6})
