"""SavedModels that load and run with TensorFlow alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from detection.images.decode import decode_rgb_or_blank
from detection.input_pipeline.network_input import fit_to_input
from detection.models.detector import Detector, variables_by_path
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
    PIXEL_SIGNATURE,
    SCORES,
    VALID,
    WEIGHTS_PART,
)


class ExportedFrom(NamedTuple):
    """The checkpoint that a SavedModel was exported from.

    step: training steps done.
    weights: `ema`: the EMA weights; `raw`: the weights that the optimizer updated.
    """

    step: int
    weights: WeightsKind


class ServingModule(tf.Module):
    """A detector with its signatures.

    Args:
        detector: built; its variables are saved as they are at that moment.
        category_ids: the data set's category ids in the order of the network's classes.
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

        An image that cannot be decoded is marked in `valid` and has no detections; the
        others of the batch are answered as without it.
        """

        def fit(encoded: tf.Tensor) -> tuple[tf.Tensor, ImageInfo, tf.Tensor]:
            image, valid = decode_rgb_or_blank(encoded)
            return (*self._fit(image), valid)

        inputs, info, valid = self._fit_each(images, fit, tf.TensorSpec([], tf.bool))
        answer = self._answer(self.detect(inputs, info))
        return answer | {
            SCORES: tf.where(valid[:, None], answer[SCORES], 0.0),
            COUNT: tf.where(valid, answer[COUNT], 0),
            VALID: valid,
        }

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name=IMAGES)], autograph=False)
    def serve_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Signature `serving_images`: a uint8 batch [B, H, W, 3], RGB."""
        inputs, info = self._fit_each(images, self._fit)
        return self._answer(self.detect(inputs, info))

    @tf.function(autograph=False)
    def detect(self, inputs: tf.Tensor, info: ImageInfo) -> Detections:
        """Network input to detections: the part of static shapes that compiles under XLA."""
        return self._detector.detect(self._detector(inputs, training=False), info)

    def _fit(self, image: tf.Tensor) -> tuple[tf.Tensor, ImageInfo]:
        detector = self._detector
        return fit_to_input(image, image_size=detector.image_size, mean=detector.pixel_mean, std=detector.pixel_std)

    def _fit_each(self, images: tf.Tensor, fit: Any, *more: tf.TensorSpec) -> Any:
        pair = tf.TensorSpec([2], tf.float32)
        spec = (tf.TensorSpec([*self._detector.image_size, 3], tf.float32), ImageInfo(pair, pair), *more)
        return tf.map_fn(fit, images, fn_output_signature=spec)

    def _answer(self, detections: Detections) -> dict[str, tf.Tensor]:
        return {
            BOXES: detections.boxes,
            SCORES: detections.scores,
            CLASSES: tf.gather(self._category_ids, detections.classes),
            COUNT: detections.num,
        }


def export_saved_model(
    detector: Detector,
    folder: Path,
    *,
    categories: Sequence[Mapping[str, Any]],
    config_yaml: str,
    exported_from: ExportedFrom | None = None,
) -> None:
    """Writes a SavedModel with the signatures `serving_default` and `serving_images`.

    The configuration, the categories and the step lie in its `assets.extra/`, so that
    they travel with every copy of it.

    Args:
        detector: with the weights to save.
        folder: empty.
        categories: the data set's, in the order of the network's classes.
        config_yaml: the run's configuration.
        exported_from: the checkpoint of these weights; None: not from a checkpoint.

    Raises:
        CocoflowError: the disk does not take it.
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
            f"the SavedModel cannot be written: {refusal}. The checkpoints are kept. Make room, or see that the disk "
            "may be written, and give the same command again: it exports without training again."
        ) from error
    write_text(folder / EXTRA_FILES / CONFIG_YAML, config_yaml)
    write_text(folder / EXTRA_FILES / LABELS_JSON, json.dumps(list(categories), indent=2) + "\n")
    if exported_from is not None:
        write_text(folder / EXTRA_FILES / TRAINING_JSON, json.dumps(exported_from._asdict()) + "\n")
