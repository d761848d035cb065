"""Exports detectors as SavedModels that load and run with TensorFlow alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from detection.images.decode import decode_rgb_or_blank
from detection.input_pipeline.network_input import fit_to_input
from detection.models.detector import Detector, variables_by_path
from detection.ops.masks import paste_masks
from detection.storage.atomic import write_text
from detection.types import Detections, ImageInfo
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON, TRAINING_JSON
from schemas.config.optimization import WeightsKind
from schemas.errors import CocoflowError, disk_refusal
from schemas.serving import (
    BOXES,
    CLASSES,
    COUNT,
    ENCODED_SIGNATURE,
    IMAGES,
    KEYPOINTS,
    MASKS,
    PIXEL_SIGNATURE,
    SCORES,
    VALID,
    WEIGHTS_PART,
)


class ExportedFrom(NamedTuple):
    """The checkpoint that a SavedModel was exported from.

    step: number of training steps.
    weights: `ema`: the EMA weights; `raw`: the weights that the optimizer updated.
    """

    step: int
    weights: WeightsKind


class ServingModule(tf.Module):
    """A detector with its signatures.

    Args:
        detector: built; its variables are saved as they are at that moment.
        category_ids: category ids of the data set, in the order of the network's classes.
    """

    def __init__(self, detector: Detector, category_ids: Sequence[int]) -> None:
        super().__init__(name="detector")
        self._detector = detector
        self._category_ids = tf.constant(category_ids, tf.int64)
        # Tracks the variables alone: Keras' own saving would trace every layer.
        setattr(self, WEIGHTS_PART, variables_by_path(detector.variables))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name=IMAGES)], autograph=False)
    def serve_encoded(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Signature `serving_default`: encoded images of any size.

        An image that cannot be decoded is False in `valid` and has no detections; it does
        not change those of the others.
        """

        def fit(encoded: tf.Tensor) -> tuple[tf.Tensor, ImageInfo, tf.Tensor]:
            image, valid = decode_rgb_or_blank(encoded)
            return (*self._fit(image), valid)

        inputs, info, valid = self._fit_each(images, fit, tf.TensorSpec([], tf.bool))
        answer = self._answer(self.detect(inputs, info), info)
        return answer | {
            SCORES: tf.where(valid[:, None], answer[SCORES], 0.0),
            COUNT: tf.where(valid, answer[COUNT], 0),
            VALID: valid,
        }

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name=IMAGES)], autograph=False)
    def serve_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Signature `serving_images`: a uint8 batch [B, H, W, 3], RGB."""
        inputs, info = self._fit_each(images, self._fit)
        return self._answer(self.detect(inputs, info), info)

    @tf.function(autograph=False)
    def detect(self, inputs: tf.Tensor, info: ImageInfo) -> Detections:
        """Runs the detector: the part of static shapes, which compiles under XLA."""
        return self._detector.detect(self._detector(inputs, training=False), info)

    def _fit(self, image: tf.Tensor) -> tuple[tf.Tensor, ImageInfo]:
        detector = self._detector
        return fit_to_input(
            image,
            image_size=detector.image_size,
            resizing=detector.resizing,
            mean=detector.pixel_mean,
            std=detector.pixel_std,
        )

    def _fit_each(self, images: tf.Tensor, fit: Any, *more: tf.TensorSpec) -> Any:
        pair = tf.TensorSpec([2], tf.float32)
        spec = (tf.TensorSpec([*self._detector.image_size, 3], tf.float32), ImageInfo(pair, pair), *more)
        return tf.map_fn(fit, images, fn_output_signature=spec)

    def _answer(self, detections: Detections, info: ImageInfo) -> dict[str, tf.Tensor]:
        answer = {
            BOXES: detections.boxes,
            SCORES: detections.scores,
            CLASSES: tf.gather(self._category_ids, detections.classes),
            COUNT: detections.num,
        }
        if detections.masks is not None:
            answer[MASKS] = self._masks(detections.masks, detections.boxes, info.original_size)
        if detections.keypoints is not None:
            answer[KEYPOINTS] = detections.keypoints
        return answer

    def _masks(self, crops: tf.Tensor, boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
        if self._detector.mask_output == "crops":
            return crops
        height, width = tf.unstack(tf.cast(tf.reduce_max(sizes, axis=0), tf.int32))
        pixels = tf.concat([sizes, sizes], axis=1)[:, tf.newaxis]
        return paste_masks(crops, boxes * pixels, height=height, width=width)


def export_saved_model(
    detector: Detector,
    folder: Path,
    *,
    categories: Sequence[Mapping[str, Any]],
    config_yaml: str,
    exported_from: ExportedFrom | None = None,
) -> None:
    """Writes a SavedModel with the signatures `serving_default` and `serving_images`.

    Its `assets.extra/` holds the configuration, the categories and the step, so that every
    copy has them.

    Args:
        detector: detector with the weights to save.
        folder: empty folder.
        categories: categories of the data set, in the order of the network's classes.
        config_yaml: configuration of the run.
        exported_from: checkpoint of these weights; None: no checkpoint.

    Raises:
        CocoflowError: the disk is full or read-only.
    """
    module = ServingModule(detector, [category["id"] for category in categories])
    signatures = {ENCODED_SIGNATURE: module.serve_encoded, PIXEL_SIGNATURE: module.serve_images}
    try:
        tf.saved_model.save(module, str(folder), signatures=signatures)
    except (OSError, tf.errors.OpError) as error:
        refusal = disk_refusal(error)
        if refusal is None:
            raise
        raise CocoflowError(
            f"the SavedModel cannot be written: {refusal}. The checkpoints are kept. Free space, or make the "
            "disk writable, and repeat the command: it exports without training again."
        ) from error
    write_text(folder / EXTRA_FILES / CONFIG_YAML, config_yaml)
    write_text(folder / EXTRA_FILES / LABELS_JSON, json.dumps(list(categories), indent=2) + "\n")
    if exported_from is not None:
        write_text(folder / EXTRA_FILES / TRAINING_JSON, json.dumps(exported_from._asdict()) + "\n")
