"""A trained network as a function of normalized images of any size."""

from typing import Any

import tensorflow as tf

from detection.inference.restore import TrainedDetector


class LoadedDetector:
    """The network of a trained detector without post-processing: the result of `detection.load_detector`.

    The detector itself only takes images of its input size, for which its anchors are made.  This
    class has no anchors and runs on any size.

    Args:
        trained: a trained detector.

    Attributes:
        detector: the detector, with losses and post-processing.
        categories: COCO categories in the order of the classes; `name` is null for a class
            without a category.
        config: configuration of the training.
        exported_from: training step and kind of the weights, or None.
    """

    def __init__(self, trained: TrainedDetector) -> None:
        self.detector, self.categories, self.config, self.exported_from = trained

    @property
    def pixel_mean(self) -> tuple[float, float, float]:
        """Mean of the inputs, RGB, of 0..255 pixels."""
        return self.detector.pixel_mean

    @property
    def pixel_std(self) -> tuple[float, float, float]:
        """Standard deviation of the inputs, RGB, of 0..255 pixels."""
        return self.detector.pixel_std

    def __call__(self, images: Any, training: bool = False) -> dict[str, tf.Tensor]:
        """Runs the network.

        Each pyramid level has half the height and width of the finer level, rounded up.
        Every call runs op by op; wrap repeated calls in `tf.function`.

        Args:
            images: float32 [B, H, W, 3], RGB, normalized, of any static size.
            training: use batch statistics.

        Returns:
            Outputs by name, as of `Detector.named_outputs`.

        Raises:
            ValueError: the images have another shape.
        """
        images = tf.convert_to_tensor(images, tf.float32)
        if images.shape.rank != 4 or images.shape[3] != 3 or None in images.shape[1:].as_list():
            raise ValueError(
                f"{self.detector.name} takes normalised images [B, H, W, 3] of a static size, not of shape "
                f"{images.shape}."
            )
        # The detector's own call only takes its input size.
        outputs = self.detector.call(images, training=training)
        return self.detector.named_outputs(outputs)
