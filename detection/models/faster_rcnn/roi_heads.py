"""Heads on the features of regions of interest (RoIs): classes and boxes, and masks.

The first column or channel of their outputs is the background, followed by one per class.
Girshick, "Fast R-CNN", 2015; He et al., "Mask R-CNN", 2017.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from detection.models.layers.initializers import glorot_uniform, he_normal, normal
from detection.ops.roi_align import on_accelerator
from schemas.config.section import Section


class BoxHeadOutputs(NamedTuple):
    """Outputs per RoI, column 0 for the background.

    class_logits: float [B, R, C + 1], logits of a softmax.
    box_deltas: float [B, R, C + 1, 4], (ty, tx, th, tw); [B, R, 1, 4] if boxes are class-agnostic.
    """

    class_logits: tf.Tensor
    box_deltas: tf.Tensor


class BoxHeadOptions(Section):
    """The box head: its layers, its losses, and the stages of a cascade."""

    roi_size: PositiveInt = Field(7, description="RoIAlign bins per side")
    layers: PositiveInt = Field(2, description="inner layers")
    units: PositiveInt = Field(1024, description="units of each inner layer")
    cascade_ious: tuple[float, ...] = Field(
        (),
        description="IoU thresholds of the box heads of a Cascade R-CNN, such as [0.5, 0.6, 0.7]: each head refines "
        "the boxes of the previous one, and boxes are class-agnostic; the first threshold replaces roi.positive_iou; "
        "empty: one box head",
    )
    class_agnostic: bool = Field(False, description="one box per RoI, not one per class; so it is in a cascade")
    code_factors: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat] = Field(
        (10.0, 10.0, 5.0, 5.0), description="factors of the deltas (ty, tx, th, tw)"
    )
    huber_delta: PositiveFloat = Field(1.0, description="Huber delta of the box loss, in units of the scaled deltas")
    class_loss_weight: NonNegativeFloat = 1.0
    box_loss_weight: NonNegativeFloat = 1.0

    def _check_keys(self) -> None:
        ious = self.cascade_ious
        if ious and (len(ious) < 2 or list(ious) != sorted(set(ious)) or not 0.0 < ious[0] <= ious[-1] < 1.0):
            raise ValueError(f"cascade_ious = {list(ious)}: specify two or more ascending thresholds between 0 and 1")
        self.refuse(["class_agnostic"], "with cascade_ious, whose boxes are", when=bool(ious))


class MaskHeadOptions(Section):
    """The mask head."""

    roi_size: PositiveInt = Field(14, description="RoIAlign bins per side; masks have twice the size")
    layers: PositiveInt = Field(4, description="3x3 convolutions")
    filters: PositiveInt = Field(256, description="channels of the convolutions")
    object_size: PositiveInt = Field(
        112, description="side of the mask within each object's box; the targets are cropped from it"
    )
    loss_weight: NonNegativeFloat = 1.0


class BoxHead(keras.layers.Layer):
    """Fully connected layers with relu, followed by one for the classes and one for the boxes.

    Args:
        options: inner layers and outputs.
        num_classes: C.
        pools: without inner layers: the output layers take the mean over the RoI, as after conv5_x.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        options: BoxHeadOptions,
        *,
        num_classes: int,
        pools: bool = False,
        name: str = "box_head",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._units = options.units
        self.inner = [
            keras.layers.Dense(
                options.units,
                activation="relu",
                kernel_initializer=glorot_uniform(),
                name=f"fc{number}",
                dtype=self.dtype_policy,
            )
            for number in range(6, 6 + (0 if pools else options.layers))
        ]
        boxes = 1 if options.class_agnostic or options.cascade_ious else num_classes + 1
        self.classes = self._output(num_classes + 1, stddev=0.01, name="class")
        self.boxes = self._output(boxes * 4, stddev=0.001, name="box")

    def _output(self, units: int, *, stddev: float, name: str) -> Any:
        return keras.layers.Dense(units, kernel_initializer=normal(stddev), name=name, dtype=self.dtype_policy)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables; `input_shape` is the shape of the RoI features, [B, R, s, s, F]."""
        side, _, channels = input_shape[2:]
        assert side is not None
        assert channels is not None
        width = side * side * channels if self.inner else channels
        for layer in self.inner:
            layer.build((None, None, width))
            width = self._units
        for layer in (self.classes, self.boxes):
            layer.build((None, None, width))

    def call(self, rois: tf.Tensor) -> BoxHeadOutputs:
        """Maps features [B, R, s, s, F] to outputs in the compute dtype."""
        shape = tf.shape(rois)
        outputs = tf.reduce_mean(rois, axis=[2, 3])
        if self.inner:
            outputs = tf.reshape(rois, [shape[0], rois.shape[1] or shape[1], rois.shape[2] ** 2 * rois.shape[4]])
        for layer in self.inner:
            outputs = layer(outputs)
        deltas = self.boxes(outputs)
        columns = deltas.shape[2] // 4
        deltas = tf.reshape(deltas, [shape[0], rois.shape[1] or shape[1], columns, 4])
        return BoxHeadOutputs(self.classes(outputs), deltas)


class MaskHead(keras.layers.Layer):
    """3x3 convolutions and a transposed convolution of stride 2, each with relu, and a 1x1 convolution.

    Computes the mask of one class per RoI: losses and detections do not need the others.

    Args:
        options: inner layers.
        num_classes: C.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(self, options: MaskHeadOptions, *, num_classes: int, name: str = "mask_head", dtype: Any = None):
        super().__init__(name=name, dtype=dtype)
        filters = self._filters = options.filters
        self.inner = [
            keras.layers.Conv2D(
                filters, 3, padding="same", activation="relu", name=f"conv2d_{number}", **self._common()
            )
            for number in range(1, options.layers + 1)
        ]
        self.upsample = keras.layers.Conv2DTranspose(
            filters, 2, strides=2, activation="relu", name="conv2d_transpose", **self._common()
        )
        self.masks = keras.layers.Conv2D(num_classes + 1, 1, name="mask", **self._common())

    def _common(self) -> dict[str, Any]:
        return {"kernel_initializer": he_normal(), "dtype": self.dtype_policy}

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables; `input_shape` is the shape of the RoI features, [B, R, s, s, F]."""
        shape = (None, *input_shape[2:])
        for layer in (*self.inner, self.upsample):
            layer.build(shape)
            shape = (None, None, None, self._filters)
        self.masks.build(shape)

    def call(self, rois: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Returns mask logits [B, R, 2 s, 2 s] in the compute dtype.

        Args:
            rois: float [B, R, s, s, F], features.
            columns: int32 [B, R], class of each RoI's mask, plus 1; 0: background.
        """
        outputs = tf.reshape(rois, [-1, *rois.shape[2:]])
        for layer in (*self.inner, self.upsample):
            outputs = layer(outputs)
        side = outputs.shape[1]
        pixels = tf.reshape(outputs, [-1, side * side, self._filters])
        # A product, not `gather`: the gradient of a product is a product, that of `gather` a scattered sum.
        chosen = tf.one_hot(tf.reshape(columns, [-1]), self.masks.filters, dtype=pixels.dtype)
        kernels = tf.matmul(chosen, tf.cast(self.masks.kernel, pixels.dtype)[0, 0], transpose_b=True)
        biases = tf.linalg.matvec(chosen, tf.cast(self.masks.bias, pixels.dtype))
        logits = tf.linalg.matvec(pixels, kernels) + biases[:, tf.newaxis]
        shape = tf.shape(columns)
        return tf.reshape(logits, [shape[0], columns.shape[1] or shape[1], side, side])


def used_slots(used: tf.Tensor, most: int, *, portable: bool) -> tf.Tensor | int:
    """Returns the number of slots for the mask head: on CPUs, the max that an image of the batch uses, at least 1.

    The head takes most of a step's time.  Accelerators, XLA and model files get all slots, because
    their shapes must not depend on values.

    Args:
        used: bool [B, S], the used slots come first.
        most: max number of used slots.
        portable: the graph is for XLA, LiteRT or ONNX.
    """
    if portable or on_accelerator():
        return most
    # With no slot at all, as in a batch without objects, the gradients of the convolutions have no shape.
    return tf.maximum(tf.reduce_max(tf.reduce_sum(tf.cast(used, tf.int32), axis=1)), 1)
