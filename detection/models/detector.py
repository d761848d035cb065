"""What every detector answers."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detection.types import Detections, ImageInfo, Labels

Activation = Literal["swish", "relu6", "relu"]

IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)


class Postprocess(NamedTuple):
    """From raw outputs to detections.

    score_threshold: candidates count only with a score above this.
    iou_threshold: of non-maximum suppression, within a class.
    max_detections: N, detections an image.
    pre_nms_top_k: best (anchor, class) pairs that enter suppression.
    """

    score_threshold: float = 0.001
    iou_threshold: float = 0.5
    max_detections: int = 100
    pre_nms_top_k: int = 1000


class Detector(keras.Model):
    """A network with its losses and its post-processing; it knows nothing of training loops or files.

    Args:
        image_size: (height, width) of the input in pixels.
        num_classes: C; classes are 0..C-1, there is no background class.
        pixel_mean: RGB, of 0..255 pixels; inputs are (pixel - mean) / std, padded with 0.
        pixel_std: RGB, likewise.
        postprocess: thresholds and limits.
        name: the model's name, the first part of its variables' paths.
        dtype: Keras dtype policy of all layers.

    Attributes:
        mask_size: side in pixels of the mask crops that its losses want; 0: no masks.
        takes_keypoints: its losses want keypoints.
        takes_crowds: its losses leave out what lies in `Labels.crowds`.
    """

    mask_size = 0
    takes_keypoints = False
    takes_crowds = False

    def __init__(
        self,
        *,
        image_size: tuple[int, int],
        num_classes: int,
        pixel_mean: tuple[float, float, float],
        pixel_std: tuple[float, float, float],
        postprocess: Postprocess,
        name: str,
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self.image_size = image_size
        self.num_classes = num_classes
        self.pixel_mean = pixel_mean
        self.pixel_std = pixel_std
        self.postprocess = postprocess

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """As `call`, for images of the detector's own size only: anchors and pyramid levels are made for it.

        Raises:
            ValueError: images of another size.
            tf.errors.InvalidArgumentError: images of another size, which was unknown when the function was traced.
        """
        return super().__call__(self._of_input_size(images), *args, **kwargs)

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> Any:
        """Raw outputs, float32 under any dtype policy.

        Args:
            images: float32 [B, H, W, 3], RGB, normalised; H, W are `image_size`.
            training: batch statistics, and drop-connect where there is a seed.
            seed: int32 [2], of this step; None: no drop-connect.
        """
        raise NotImplementedError

    def losses(self, outputs: Any, labels: Labels) -> dict[str, tf.Tensor]:
        """Weighted loss terms, float32 scalars, without L2.

        Their sum over terms and replicas is the loss of the global batch.
        """
        raise NotImplementedError

    def detect(self, outputs: Any, image_info: ImageInfo) -> Detections:
        """Detections in the original images' normalised coordinates."""
        raise NotImplementedError

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables, those that transfer from image classification."""
        raise NotImplementedError

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """The variables that have another shape for another number of classes, by path.

        Args:
            num_classes: of a detector that is otherwise like this one.

        Returns:
            For each element of the variable's last axis the class that it predicts,
            int64 0..num_classes-1, or -1 where it predicts none, such as background.
        """
        raise NotImplementedError

    def _of_input_size(self, images: Any) -> Any:
        """`images`, seen to have the detector's input size; what is not known of it is checked when it is."""
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
    """TensorFlow's variables behind Keras', by path.

    Raises:
        ValueError: two have the same path.
    """
    named: dict[str, tf.Variable] = {}
    for variable in variables:
        if variable.path in named:
            raise ValueError(f"two variables have the path {variable.path}")
        named[variable.path] = variable.value
    return named
