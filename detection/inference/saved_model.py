"""Images through a detector to COCO results: one way for evaluator, `predict` and validation while training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.datasets.entries import Rows
from detection.storage.literal_paths import literal_path
from detection.types import EncodedImage
from schemas import serving
from schemas.errors import DataError
from schemas.quoting import one_line, printable

_REASON = 300  # characters of TensorFlow's messages
_OUTPUTS = (serving.BOXES, serving.SCORES, serving.CLASSES, serving.COUNT)


class SignatureDetector:
    """A detector by its function `serving_default`.

    Args:
        signature: from `images`, encoded images as a string tensor [B], to the outputs
            that `rows_from_outputs` takes.
        batch_size: images a call; a smaller batch is filled up, so that the model
            sees one shape and answers the same however images are grouped.
    """

    def __init__(self, signature: Callable[..., Mapping[str, tf.Tensor]], *, batch_size: int) -> None:
        self._signature = signature
        self._batch_size = batch_size

    def detect(self, images: Sequence[EncodedImage]) -> list[Rows]:
        """Finds objects.

        Args:
            images: any number.

        Returns:
            For each image its detections, best first, as `rows_from_outputs` gives them.

        Raises:
            DataError: an image that the model cannot read; it is named.
        """
        found: list[Rows] = []
        for start in range(0, len(images), self._batch_size):
            batch = images[start : start + self._batch_size]
            found += rows_from_outputs(self._call(batch), batch)
        return found

    def outputs(self, images: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        """The signature's outputs themselves.

        Args:
            images: any number, at least one.

        Returns:
            What `rows_from_outputs` takes, B being the number of images.

        Raises:
            DataError: an image that the model cannot read; it is named.
        """
        starts = range(0, len(images), self._batch_size)
        batches = [images[start : start + self._batch_size] for start in starts]
        found = [{name: value[: len(batch)] for name, value in self._call(batch).items()} for batch in batches]
        return {name: np.concatenate([values[name] for values in found]) for name in _OUTPUTS}

    def _call(self, batch: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        try:
            outputs = self._run([image.encoded for image in batch])
        except tf.errors.InvalidArgumentError:  # of a model without the output `valid`
            for image in batch:
                self._require_readable(image)
            raise
        for image, valid in zip(batch, outputs.pop(serving.VALID, ()), strict=False):
            if not valid:
                raise _unreadable(image, "it does not decode")
        return outputs

    def _require_readable(self, image: EncodedImage) -> None:
        try:
            self._run([image.encoded])
        except tf.errors.InvalidArgumentError as error:
            raise _unreadable(image, str(error.message).strip().splitlines()[0]) from None

    def _run(self, encoded: list[bytes]) -> dict[str, npt.NDArray[Any]]:
        filled = encoded + encoded[:1] * (self._batch_size - len(encoded))
        outputs = self._signature(**{serving.IMAGES: tf.constant(filled, tf.string)})
        return {name: outputs[name].numpy() for name in (*_OUTPUTS, serving.VALID) if name in outputs}


class SavedModelDetector(SignatureDetector):
    """An exported detector; its signature `serving_default` is called.

    Args:
        folder: the SavedModel.
        batch_size: images a call.

    Raises:
        DataError: `folder` is no SavedModel, or one without that signature.
    """

    def __init__(self, *, folder: str | Path, batch_size: int) -> None:
        require_saved_model(folder)
        try:
            # The loaded object owns the signature's variables, so it is kept.
            self._model = tf.saved_model.load(literal_path(folder))
        except Exception as error:  # a damaged one makes TensorFlow raise whatever it stumbles over
            raise _damaged(folder, "does not load", error) from error
        signature = self._model.signatures.get(serving.ENCODED_SIGNATURE)
        if signature is None:
            raise DataError(
                f"{folder}: no signature {serving.ENCODED_SIGNATURE!r}, only {sorted(self._model.signatures)}. "
                "Export the model with Cocoflow, or with a signature of that name that takes encoded images."
            )
        lacking = sorted(set(_OUTPUTS) - set(signature.structured_outputs))
        if lacking:
            raise DataError(f"{folder}: its signature lacks the output {', '.join(lacking)}. Export the model again.")
        super().__init__(signature, batch_size=batch_size)
        self._folder = folder

    def _call(self, batch: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        try:
            outputs = super()._call(batch)
        except DataError:
            raise
        except Exception as error:
            raise _damaged(self._folder, "cannot be run", error) from error
        _require_detections(outputs, len(batch), self._folder)
        return outputs


def _unreadable(image: EncodedImage, reason: str) -> DataError:
    return DataError(
        f"{one_line(image.name)}: the model cannot read the image (id {image.image_id}): {reason}. "
        "Copy the file again, or convert it to JPEG or PNG."
    )


def _damaged(folder: str | Path, what: str, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [""])[0][:_REASON]
    return DataError(
        f"{folder}: the SavedModel {what}: {type(error).__name__}: {printable(reason)}. It may be damaged: export or "
        "copy it again."
    )


def _require_detections(outputs: Mapping[str, npt.NDArray[Any]], images: int, folder: str | Path) -> None:
    """Checks shapes and values of the outputs, which a damaged model may break.

    Raises:
        DataError: they are no detections.
    """
    boxes, scores, classes, counts = (outputs[name] for name in _OUTPUTS)
    shaped = boxes.ndim == 3 and boxes.shape[2] == 4 and scores.shape == classes.shape == boxes.shape[:2]
    if not (shaped and counts.shape == boxes.shape[:1] and len(boxes) >= images):
        shapes = ", ".join(f"{name} {list(outputs[name].shape)}" for name in _OUTPUTS)
        raise DataError(f"{folder}: the SavedModel gives no detections: {shapes}. Export it again.")
    counted = np.arange(boxes.shape[1]) < counts[:, None]
    within = bool(((counts >= 0) & (counts <= boxes.shape[1])).all())
    if not within or not (np.isfinite(boxes[counted]).all() and np.isfinite(scores[counted]).all()):
        raise DataError(
            f"{folder}: the SavedModel gives detections of NaN or infinity, or of an impossible number. "
            "Its weights may be damaged: export or copy it again."
        )


def require_saved_model(folder: str | Path) -> None:
    """Sees, without loading it, that there is a SavedModel.

    Raises:
        DataError: there is none.
    """
    if not tf.saved_model.contains_saved_model(str(folder)):
        raise DataError(f"{folder}: no SavedModel here. Give the folder that holds its saved_model.pb.")


def rows_from_outputs(outputs: Mapping[str, npt.NDArray[Any]], images: Sequence[EncodedImage]) -> list[Rows]:
    """Turns a signature's outputs into rows in pixels of each image.

    Args:
        outputs: `detection_boxes` [B, N, 4] (ymin, xmin, ymax, xmax), normalised,
            `detection_scores` [B, N], `detection_classes` [B, N], `num_detections`
            [B]; B may be greater than the number of images.
        images: the images, in the order of the batch.

    Returns:
        For each image float64 [n, 7]: image_id, x, y, width, height (pixels), score,
        category_id.
    """
    found = []
    for position, image in enumerate(images):
        count = int(outputs[serving.COUNT][position])
        rows = np.empty((count, 7))
        rows[:, 0] = image.image_id
        rows[:, 1:5] = xywh_pixels_from_normalised_yxyx(
            outputs[serving.BOXES][position, :count], height=image.height, width=image.width
        )
        rows[:, 5] = outputs[serving.SCORES][position, :count]
        rows[:, 6] = outputs[serving.CLASSES][position, :count]
        found.append(rows)
    return found


def xywh_pixels_from_normalised_yxyx(boxes: npt.NDArray[Any], *, height: int, width: int) -> Rows:
    """COCO boxes of an image, computed in float64.

    Args:
        boxes: [N, 4] (ymin, xmin, ymax, xmax), 0 <= min <= max <= 1.
        height: of the image, pixels.
        width: of the image, pixels.

    Returns:
        float64 [N, 4]: x, y, width, height in pixels.
    """
    ymin, xmin, ymax, xmax = np.asarray(boxes, np.float64).reshape(-1, 4).T
    return np.stack([xmin * width, ymin * height, (xmax - xmin) * width, (ymax - ymin) * height], axis=1)
