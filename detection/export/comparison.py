"""Compares an exported file with the SavedModel of its detector, and int8 calibration images with the training's."""

import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image
from pycocotools import mask

from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.results import Results
from detection.models.detector import Detector
from detection.models.layers.batch_norm import BatchNormalization, observed_inputs
from detection.types import EncodedImage

_IOU = 0.5  # min IoU of a matched pair
_GROWTH = 0.01  # pixels
# Measured with detectors of digits and of raccoons: 0.07 to 0.16 on 5 to 100 of their own images, 0.12 to 0.15 on other
# photographs for the raccoons, 0.22 to 0.32 on the other kind of images, 0.5 and more on noise and blank images.
_MAX_SHIFT = 0.2


class Comparison(NamedTuple):
    """Differences between the detections of a file and those of its SavedModel.

    images: number of images.
    detections: number of the SavedModel's detections with a score of at least `min_score`.
    min_score: threshold of `compare_with_saved_model`.
    scores: float64 [n], absolute differences of the n matched detections.
    boxes: float64 [n], max differences of x, y, width and height, pixels of the image.
    mask_ious: float64 [n], IoUs of the masks; None: the model has no masks.
    keypoints: float64 [n], max differences of x and y, pixels of the image; None: the model has no keypoints.
    """

    images: int
    detections: int
    min_score: float
    scores: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float64]
    mask_ious: npt.NDArray[np.float64] | None
    keypoints: npt.NDArray[np.float64] | None

    def __str__(self) -> str:
        text = f"compared with the SavedModel on {self.images} images: "
        limit = f" of scores from {self.min_score:g}" if self.min_score else ""
        if not self.detections:
            return f"{text}it detects nothing{limit} on them. Pass other images with --sample-images."
        text += f"{len(self.scores)} of {self.detections} detections{limit} have a counterpart (category, IoU {_IOU})"
        if not len(self.scores):
            return text
        in_pixels = {"boxes in pixels": self.boxes, "keypoints in pixels": self.keypoints}
        for name, differences in {"scores": self.scores, **in_pixels}.items():
            if differences is None:
                continue
            text += f"; {name} differ by {differences.mean():.2g} on average, {differences.max():.2g} at most"
        if self.mask_ious is not None:
            text += f"; IoU of masks {self.mask_ious.mean():.3f} on average, {self.mask_ious.min():.3f} at least"
        return text


def compare_with_saved_model(
    file: SignatureDetector, saved_model: SignatureDetector, images: Sequence[EncodedImage], *, min_score: float = 0.0
) -> Comparison:
    """Runs both on images, and pairs their detections: best first, each with the nearest of its category.

    Args:
        file: the exported file.
        saved_model: `serving_default` of the same detector.
        images: at least one image.
        min_score: only the SavedModel's detections of at least this score are compared.
    """
    count, scores, boxes, ious, points = 0, [], [], [], []
    for expected, found in zip(saved_model.detect(images), file.detect(images), strict=True):
        compared = expected.rows[:, 5] >= min_score
        count += int(compared.sum())
        for one, other in _pairs(expected, found):
            if not compared[one]:
                continue
            scores.append(abs(expected.rows[one, 5] - found.rows[other, 5]))
            boxes.append(np.abs(expected.rows[one, 1:5] - found.rows[other, 1:5]).max())
            if expected.masks is not None and found.masks is not None:
                ious.append(float(mask.iou([expected.masks[one]], [found.masks[other]], [0])[0, 0]))
            if expected.keypoints is not None and found.keypoints is not None:
                points.append(np.abs(expected.keypoints[one] - found.keypoints[other])[:, :2].max())
    return Comparison(
        len(images),
        count,
        min_score,
        np.array(scores),
        np.array(boxes),
        np.array(ious) if ious else None,
        np.array(points) if points else None,
    )


def _pairs(expected: Results, found: Results) -> Iterable[tuple[int, int]]:
    """Yields pairs of indices: a detection and its counterpart."""
    if not len(expected) or not len(found):
        return
    # A box at the border may have no area, so that its IoU would be 0 even with itself.
    grown, others = (results.rows[:, 1:5] + [0.0, 0.0, _GROWTH, _GROWTH] for results in (expected, found))
    ious = np.asarray(mask.iou(grown, others, [0] * len(found)))
    ious[expected.rows[:, 6, np.newaxis] != found.rows[:, 6]] = 0.0
    # Soft suppression leaves overlapping boxes, which differ in their scores.
    likeness = ious - np.abs(expected.rows[:, 5, np.newaxis] - found.rows[:, 5])
    for one in range(len(expected)):
        other = int(np.where(ious[one] >= _IOU, likeness[one], -1.0).argmax())
        if ious[one, other] >= _IOU:
            yield one, other
            ious[:, other] = 0.0


def draw_images(image_size: tuple[int, int]) -> list[EncodedImage]:
    """Draws images of smooth random colors: in the size of the input, wide, tall, and larger.

    Args:
        image_size: (height, width) of the input, pixels.
    """
    random = np.random.default_rng(0)
    height, width = image_size
    images = []
    for number, (rows, columns) in enumerate(((1.0, 1.0), (0.5, 1.0), (1.0, 0.4), (1.7, 2.0))):
        size = (round(width * columns), round(height * rows))
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize(size, Image.Resampling.BICUBIC).save(file, "PNG")
        images.append(EncodedImage(number, f"drawn image {number}", file.getvalue(), size[1], size[0]))
    return images


def compare_with_training(detector: Detector, batches: Iterable[npt.NDArray[Any]]) -> list[str]:
    """Compares activations on calibration images with the statistics that batch norm kept from the training.

    The mean of each channel before a batch norm is compared with its moving mean, in moving standard
    deviations, and averaged over channels and layers.  Source of the idea: Li et al., "Revisiting
    Batch Normalization For Practical Domain Adaptation", 2016.

    Args:
        detector: trained detector, whose batch norms are not frozen.
        batches: [B, H, W, 3], 0 to 255, of the detector's input size, padded with its `pixel_mean`.

    Returns:
        A warning if the images are unlike the training's; empty if they are not, or without batch norms.
    """
    mean, std = (np.array(values, np.float32) for values in (detector.pixel_mean, detector.pixel_std))
    means: dict[BatchNormalization, list[npt.NDArray[Any]]] = {}
    for pixels in batches:
        inputs = (pixels - mean) / std
        with observed_inputs() as observed:
            detector(inputs, training=False)
        for layer, values in observed:
            means.setdefault(layer, []).append(tf.reduce_mean(tf.cast(values, tf.float32), [0, 1, 2]).numpy())
    shifts = [
        np.abs(np.mean(values, axis=0) - layer.moving_mean) / np.sqrt(layer.moving_variance + layer.epsilon)
        for layer, values in means.items()
    ]
    shift = float(np.mean([layer_shifts.mean() for layer_shifts in shifts])) if shifts else 0.0
    if shift <= _MAX_SHIFT:
        return []
    return [
        f"the calibration images look unlike the training's: activations on them are shifted by {shift:.2f} standard "
        f"deviations on average (at most {_MAX_SHIFT:g} on images like them). The ranges of int8 may not fit the "
        "images of the deployment: pass such images, or the training split, with --calibration-data."
    ]
