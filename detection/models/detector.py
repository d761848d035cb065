"""The contract of all detectors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import keras
import numpy as np
import tensorflow as tf
from pydantic import Field

from detection.types import AnchorOutputs, Detections, ImageInfo, Labels, RawDetections, Resizing
from schemas.errors import ConfigError
from schemas.metrics import IOU_TYPES, IouType

Activation = Literal["swish", "hswish", "mish", "relu6", "relu", "identity"]
MaskOutput = Literal["crops", "pasted", "rle"]
NmsGraph = Literal["windows", "loop", "op"]
Padding = Annotated[
    Literal["mean", "black"],
    Field(description="fills the rest of the input; black: pixels of 0, as in the TF Object Detection API"),
]

IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)

_VARIABLE_BYTES = 4


@dataclass(frozen=True)  # not a tuple: Keras tracks the elements of tuples
class Capabilities:
    """What a detector needs and gives.

    mask_size: side in pixels of the mask crops that the losses need; 0: no masks.
    mask_output: format of an exported model's masks: `crops`, `pasted` or `rle`, as in `MaskPostprocess`.
    keypoints: the losses need keypoints.
    crowds: the losses ignore anchors in `Labels.crowds`.
    weights: the losses weight each object by `Labels.weights`.
    count_shape: shape of the result of `Detector.count_positives`.
    suppresses: boxes suppress others in `Detector.detect`; False: none does, as each object has one.
    detects_by_device: `Detector.detect` traced on a CPU does not compile under XLA unless `Detector.portable`.
    """

    mask_size: int = 0
    mask_output: MaskOutput = "crops"
    keypoints: bool = False
    crowds: bool = False
    weights: bool = False
    count_shape: tuple[int, ...] = ()
    suppresses: bool = True
    detects_by_device: bool = False


class Detector(keras.Model):
    """A network with its losses and post-processing, independent of training loops and files.

    Args:
        config: configuration of the family, with
            image_size: (height, width) of the input in pixels;
            pixel_mean: RGB mean of 0..255 pixels; inputs are (pixel - mean) / std, padded with 0;
            pixel_std: RGB standard deviation of 0..255 pixels;
            padding: black: inputs are pixels, padded with 0, and `call` normalises them by `normalized`;
            postprocess: options of `detect`;
            FUNCTION_FIELDS: dotted names of the fields that change the network's function, but not its variables.
        num_classes: C; classes are 0..C-1, there is no background class.
        name: the model's name, the first part of its variables' paths.
        dtype: Keras dtype policy of all layers.

    Attributes:
        resizing: how images are scaled into the input; by default, they fit into `image_size`.
        capabilities: what the detector needs and gives.
        nms_graph: how `detect` suppresses boxes; the results are the same.  `windows` tries the best candidates
            first, which saves time, and branches (`tf.cond`); `loop` takes all candidates at once, without a
            branch; `op` takes all at once with TensorFlow's own op, without a loop (linear NMS has no such op).
        portable: `detect` uses only ops and shapes that XLA, LiteRT and ONNX have.
        names_anchors: `detect` returns `anchors` and `class_scores`, if the detector has one stage and anchors.
    """

    capabilities = Capabilities()
    nms_graph: NmsGraph = "windows"
    portable = False
    names_anchors = False

    def __init__(self, *, config: Any, num_classes: int, name: str, dtype: Any = None):
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.image_size: tuple[int, int] = config.image_size
        self.resizing = Resizing(self.image_size)
        self.num_classes = num_classes
        is_black = config.padding == "black"
        self.pixel_mean = (0.0, 0.0, 0.0) if is_black else config.pixel_mean
        self.pixel_std = (1.0, 1.0, 1.0) if is_black else config.pixel_std
        self._own_mean_std = (config.pixel_mean, config.pixel_std) if is_black else None

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs `call` on images of the input size, the only size that the anchors and pyramid levels fit.

        Raises:
            ValueError: images of another size.
            tf.errors.InvalidArgumentError: images of another size, if the size was unknown at tracing.
        """
        return super().__call__(self._of_input_size(images), *args, **kwargs)

    def normalized(self, images: tf.Tensor) -> tf.Tensor:
        """Returns the images [B, H, W, 3] for the backbone: normalised here, with black padding."""
        if self._own_mean_std is None:
            return images
        mean, std = self._own_mean_std
        return (images - mean) / std

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> Any:
        """Raw outputs; those of `named_outputs` are float32 under any dtype policy.

        Args:
            images: float32 [B, H, W, 3], RGB, normalised; H, W are `image_size`.
            training: use batch statistics, and drop-connect if there is a seed.
            seed: int32 [2], seed of this step, for drop-connect and the samples of the losses; None: no drop-connect.
        """
        raise NotImplementedError

    def encode(self, images: tf.Tensor) -> Any:
        """The part of `call` in inference that a file of 8-bit integers computes in them; by default all of it."""
        return self(images, training=False)

    def decode(self, encoded: Any) -> Any:
        """Returns the outputs of `call` for the result of `encode`: what such a file computes in float32."""
        return encoded

    def named_outputs(self, outputs: Any) -> dict[str, tf.Tensor]:
        """Returns the raw outputs by name, for other programs."""
        raise NotImplementedError

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """Counts the divisors of `losses` in the labels of one replica: float32 of `Capabilities.count_shape`.

        For example, the number of positive anchors, objects or images.
        """
        raise NotImplementedError

    def num_positives(self, labels: Labels) -> tf.Tensor:
        """Counts the positive anchors of one replica, or the objects of a network without anchors: float32 scalar."""
        return tf.reshape(self.count_positives(labels), [-1])[0]

    def losses(
        self, outputs: Any, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """Returns the weighted loss terms, float32 scalars, without L2.

        Their sum over terms, replicas and micro-batches is the loss of the update's batch.  A mean over
        samples that depend on the outputs is taken per micro-batch, weighted by its share of the images.

        Args:
            outputs: raw outputs of `call`.
            labels: ground truth of the same images.
            positives: sum of `count_positives` over the update's batch; None: the labels of all
                replicas are the complete batch.
            training: update the `loss_statistics`, and use them instead of the batch's statistics.
        """
        raise NotImplementedError

    @property
    def loss_statistics(self) -> list[keras.Variable]:
        """Variables that `losses` updates in training.

        They belong to a training run, not to the network: checkpoints contain them, but the
        model's `variables`, and so warm starts and exports, do not.
        """
        return []

    def detect(self, outputs: Any, image_info: ImageInfo) -> Detections:
        """Returns detections in normalised coordinates of the original images."""
        raise NotImplementedError

    def raw_detections(self, outputs: Any, image_info: ImageInfo) -> RawDetections:
        """Returns the boxes and scores of all anchors, before non-maximum suppression.

        Raises:
            ConfigError: the detector has no boxes per anchor.
        """
        raise ConfigError(f"{self.name}: has no boxes before non-maximum suppression. Export it with NMS.")

    def anchor_outputs(self, outputs: Any) -> AnchorOutputs:
        """Returns the box deltas and class logits of all anchors, before decoding and suppression.

        Raises:
            ConfigError: the detector has no outputs per anchor.
        """
        raise ConfigError(f"{self.name}: has no outputs per anchor. Export it with NMS.")

    @property
    def iou_types(self) -> tuple[IouType, ...]:
        """IoU types for which the detections can be evaluated."""
        has = {"bbox": True, "segm": bool(self.capabilities.mask_size), "keypoints": self.capabilities.keypoints}
        return tuple(iou_type for iou_type in IOU_TYPES if has[iou_type])

    @property
    def backbone_variables(self) -> list[Any]:
        """The variables that image classification can pretrain."""
        raise NotImplementedError

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """Maps the paths of the variables whose shape depends on the number of classes to their classes.

        Args:
            num_classes: number of classes of a detector that is otherwise equal to this one.

        Returns:
            For each variable, the class that each element of its last axis predicts: int64
            0..num_classes-1, or -1 for none, such as background.
        """
        raise NotImplementedError

    def _of_input_size(self, images: Any) -> Any:
        """Checks that `images` have the detector's input size; a size unknown at tracing is checked at run time."""
        given, needed = tf.TensorShape(images.shape), tf.TensorShape([None, *self.image_size, 3])
        if not given.is_compatible_with(needed):
            raise ValueError(
                f"{self.name} takes images of {_size_text(needed)}, not of {_size_text(given)}. Resize and pad "
                "them (detection.input_pipeline.network_input.fit_to_input), or build the detector with that "
                "model.image_size."
            )
        return images if given[1:].is_fully_defined() else tf.ensure_shape(images, needed)


def _size_text(shape: tf.TensorShape) -> str:
    if shape.rank != 4:
        return f"shape {shape}"
    _, height, width, channels = shape
    return f"{height} x {width} pixels (height x width) and {channels} channels"


def variables_by_path(variables: Iterable[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns the TensorFlow variables of Keras variables, by path.

    Raises:
        ValueError: two variables have the same path.
    """
    named: dict[str, tf.Variable] = {}
    for variable in variables:
        if variable.path in named:
            raise ValueError(f"two variables have the path {variable.path}")
        named[variable.path] = variable.value
    return named


def variable_bytes(variables: Iterable[Any]) -> int:
    """Returns the bytes of variables of Keras or TensorFlow, which are float32, also with mixed precision."""
    return sum(_VARIABLE_BYTES * math.prod(variable.shape) for variable in variables)
