from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.faster_rcnn.roi_heads import BoxHead, BoxHeadOptions, MaskHead, MaskHeadOptions, used_slots

Oracles = dict[str, dict[str, Any]]

CLASSES, BATCH, ROIS = 3, 2, 5


def _elements(layer: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in layer.variables)


def _features(side: int) -> tf.Tensor:
    return tf.random.stateless_normal([BATCH, ROIS, side, side, 4], [side, 0])


def _box_head(dtype: str | None = None, **options: Any) -> BoxHead:
    head = BoxHead(BoxHeadOptions(units=6, **options), num_classes=CLASSES, dtype=dtype)
    head.build((None, None, 3, 3, 4))
    return head


def _mask_head() -> MaskHead:
    head = MaskHead(MaskHeadOptions(filters=4, layers=2), num_classes=CLASSES)
    head.build((None, None, 3, 3, 4))
    return head


def test_heads_equal_the_originals_sizes_and_shapes(oracles: Oracles) -> None:
    expected, shapes = oracles["maskrcnn.params.r50_fpn"]["expected"], oracles["maskrcnn.shapes.1024"]["expected"]
    boxes = BoxHead(BoxHeadOptions(), num_classes=90)
    boxes.build((None, None, *shapes["box_roi"]))
    masks = MaskHead(MaskHeadOptions(), num_classes=90)
    masks.build((None, None, *shapes["mask_roi"]))
    assert (_elements(boxes), _elements(masks)) == (expected["box_head"], expected["mask_head"])
    assert abs(np.std(boxes.classes.kernel) - 0.01) < 1e-3
    assert abs(np.std(boxes.boxes.kernel) - 0.001) < 1e-4
    logits = masks(tf.zeros([1, 1, *shapes["mask_roi"]]), tf.zeros([1, 1], tf.int32))
    assert list(logits.shape[2:]) == shapes["mask_out"]


def test_no_two_layers_start_equal() -> None:
    kernels = [kernel for kernel in _mask_head().get_weights() if kernel.shape == (3, 3, 4, 4)]
    assert len(kernels) == 2
    assert (kernels[0] != kernels[1]).any()


@pytest.mark.parametrize("agnostic", [False, True])
def test_box_head_equals_products(agnostic: bool) -> None:
    head, features = _box_head(class_agnostic=agnostic), _features(3)
    outputs = head(features)
    assert outputs.box_deltas.shape == (BATCH, ROIS, 1 if agnostic else CLASSES + 1, 4)
    inner = features.numpy().reshape(BATCH, ROIS, -1)
    for layer in head.inner:
        inner = np.maximum(inner @ layer.kernel.numpy() + layer.bias.numpy(), 0.0)
    np.testing.assert_allclose(outputs.class_logits, inner @ head.classes.kernel.numpy(), atol=1e-5)
    deltas = (inner @ head.boxes.kernel.numpy()).reshape(outputs.box_deltas.shape)
    np.testing.assert_allclose(outputs.box_deltas, deltas, atol=1e-5)


def test_mask_head_gives_the_mask_of_each_class() -> None:
    """All masks come from the plain 1x1 convolution."""
    head, features = _mask_head(), _features(3)
    head.masks.bias.assign([1.0, 2.0, 3.0, 4.0])
    columns = tf.constant([[0, 1, 2, 3, 3], [2, 2, 0, 1, 3]])
    inner = tf.reshape(features, [-1, 3, 3, 4])
    for layer in (*head.inner, head.upsample, head.masks):
        inner = layer(inner)
    every = inner.numpy().reshape(BATCH, ROIS, 6, 6, CLASSES + 1)
    masks = head(features, columns)
    assert masks.shape == (BATCH, ROIS, 6, 6)
    for image, roi in np.ndindex(BATCH, ROIS):
        np.testing.assert_allclose(masks[image, roi], every[image, roi, ..., columns[image, roi]], atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_heads_compute_in_the_dtype_of_their_policy(policy: str) -> None:
    compute = keras.DTypePolicy(policy).compute_dtype
    outputs = _box_head(dtype=policy)(_features(3))
    assert {output.dtype.name for output in outputs} == {compute}
    head = MaskHead(MaskHeadOptions(filters=4), num_classes=CLASSES, dtype=policy)
    head.build((None, None, 3, 3, 4))
    assert head(_features(3), tf.zeros([BATCH, ROIS], tf.int32)).dtype.name == compute
    assert {variable.dtype for variable in head.variables} == {"float32"}


def test_any_batch_size_works_when_traced() -> None:
    boxes, masks = _box_head(), _mask_head()

    @tf.function(input_signature=[tf.TensorSpec([None, ROIS, 3, 3, 4])])
    def traced(features: tf.Tensor) -> Any:
        outputs = boxes(features)
        columns = tf.argmax(outputs.class_logits, axis=2, output_type=tf.int32)
        assert outputs.class_logits.shape[1:] == (ROIS, CLASSES + 1)
        return outputs, masks(features, columns)

    outputs, logits = traced(_features(3))
    assert (outputs.box_deltas.shape, logits.shape) == ((BATCH, ROIS, 4, 4), (BATCH, ROIS, 6, 6))


@pytest.mark.parametrize(("used", "slots"), [([0, 0], 1), ([0, 1], 1), ([3, 2], 3)])
def test_a_batch_without_a_mask_keeps_a_slot_whose_gradient_has_a_shape(used: list[int], slots: int) -> None:
    taken = used_slots(tf.sequence_mask(used, 4), 4, portable=False)
    assert int(taken) == slots
    head = MaskHead(MaskHeadOptions(filters=4, layers=1), num_classes=2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(tf.zeros([2, slots, 4, 4, 3]), tf.zeros([2, slots], tf.int32)))
    assert all(gradient is not None for gradient in tape.gradient(loss, [v.value for v in head.trainable_variables]))
