"""Runs detectors on images, for evaluator, `predict` and validation during training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from detection.inference.results import OUTPUT_OF_IOU_TYPE, Results, results_from_outputs
from detection.storage.checksums import require_checksums
from detection.storage.files import exists, local_copy, read_bytes, walk_files
from detection.storage.local import require_files
from detection.storage.paths import join, literal_path
from detection.types import EncodedImage
from schemas import serving
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError
from schemas.metrics import IOU_TYPES, IouType
from schemas.quoting import one_line, printable

_REASON = 300  # characters of TensorFlow's messages
_OUTPUTS = (serving.BOXES, serving.SCORES, serving.CLASSES, serving.COUNT)
_OPTIONAL = (serving.MASKS, serving.KEYPOINTS, serving.KEYPOINT_SCORES, serving.VALID)


class SignatureDetector:
    """A detector given by its function `serving_default`.

    Args:
        signature: function from `images`, a string tensor [B] of encoded images, to the
            inputs of `results_from_outputs`.
        batch_size: images per call; smaller batches are padded, so that the shape is
            constant and detections do not depend on the batches.
    """

    def __init__(self, signature: Callable[..., Mapping[str, tf.Tensor]], *, batch_size: int) -> None:
        self._signature = signature
        self._batch_size = batch_size

    def detect(self, images: Sequence[EncodedImage], *, with_masks: bool = True) -> list[Results]:
        """Detects objects.

        Args:
            images: any number of images.
            with_masks: as for `results_from_outputs`.

        Returns:
            The results of each image.

        Raises:
            DataError: the model cannot read an image; the message names it.
        """
        results: list[Results] = []
        for start in range(0, len(images), self._batch_size):
            batch = images[start : start + self._batch_size]
            results += results_from_outputs(self._call(batch), batch, with_masks=with_masks)
        return results

    def outputs(self, images: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        """Returns the signature's outputs.

        Args:
            images: at least one image.

        Returns:
            The inputs of `results_from_outputs`; B is the number of images.

        Raises:
            DataError: the model cannot read an image; the message names it.
        """
        starts = range(0, len(images), self._batch_size)
        batches = [images[start : start + self._batch_size] for start in starts]
        outputs = [{name: value[: len(batch)] for name, value in self._call(batch).items()} for batch in batches]
        return {name: _concatenate([values[name] for values in outputs]) for name in outputs[0]}

    def _call(self, batch: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        try:
            outputs = self._run([image.encoded for image in batch])
        except tf.errors.InvalidArgumentError:  # the model has no output `valid`
            self._run([_any_picture()])  # if this fails, too, the model is at fault
            for image in batch:
                self._require_readable(image)
            raise
        for image, valid in zip(batch, outputs.pop(serving.VALID, ()), strict=False):
            if not valid:
                raise _unreadable(image, "it cannot be decoded")
        return outputs

    def _require_readable(self, image: EncodedImage) -> None:
        try:
            self._run([image.encoded])
        except tf.errors.InvalidArgumentError as error:
            raise _unreadable(image, str(error.message).strip().splitlines()[0]) from None

    def _run(self, encoded: list[bytes]) -> dict[str, npt.NDArray[Any]]:
        filled = encoded + encoded[:1] * (self._batch_size - len(encoded))
        outputs = self._signature(**{serving.IMAGES: tf.constant(filled, tf.string)})
        values = {name: outputs[name].numpy() for name in (*_OUTPUTS, *_OPTIONAL) if name in outputs}
        if serving.KEYPOINT_SCORES in values:
            scores = values.pop(serving.KEYPOINT_SCORES)[..., np.newaxis]
            values[serving.KEYPOINTS] = np.concatenate([values[serving.KEYPOINTS], scores], axis=-1)
        return values


def _any_picture() -> bytes:
    picture: bytes = tf.io.encode_png(tf.zeros([64, 64, 3], tf.uint8)).numpy()
    return picture


def _concatenate(batches: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenates batches; pasted masks, whose size differs by batch, are padded to the largest."""
    shapes = {batch.shape[1:] for batch in batches}
    if len(shapes) > 1:
        largest = np.max(list(shapes), axis=0)
        batches = [np.pad(batch, [(0, 0), *((0, most) for most in largest - batch.shape[1:])]) for batch in batches]
    return np.concatenate(batches)


class ExportedDetector(SignatureDetector):
    """A detector in files that may be damaged.

    Args:
        signature: as for `SignatureDetector`.
        batch_size: as for `SignatureDetector`.
        where: name of the model in error messages.
        damaged: returns the error for a failed call.
    """

    def __init__(
        self,
        signature: Callable[..., Mapping[str, tf.Tensor]],
        *,
        batch_size: int,
        where: str | Path,
        damaged: Callable[[Exception], DataError],
    ) -> None:
        super().__init__(signature, batch_size=batch_size)
        self._where = where
        self._damaged = damaged

    def _call(self, batch: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        try:
            outputs = super()._call(batch)
        except DataError:
            raise
        except Exception as error:
            raise self._damaged(error) from error
        _require_detections(outputs, len(batch), self._where)
        return outputs


class SavedModelDetector(ExportedDetector):
    """An exported detector with the signature `serving_default`.

    Args:
        folder: SavedModel folder; remote ones are copied first.
        batch_size: images per call, unless the model has a fixed one.

    Raises:
        DataError: `folder` is not a SavedModel, or lacks this signature or its outputs.
    """

    def __init__(self, *, folder: str | Path, batch_size: int) -> None:
        literal_path(folder)
        require_saved_model(folder)
        local = local_copy(folder, complete=SAVED_MODEL_FILE)
        require_files(join(local, name) for name in walk_files(local))
        require_checksums(folder, local)
        try:
            # The loaded object owns the signature's variables, so it is kept.
            self._model = tf.saved_model.load(str(local))
        except Exception as error:  # a damaged model may raise any type
            raise _damaged(folder, "does not load", error) from error
        signature = self._model.signatures.get(serving.ENCODED_SIGNATURE)
        if signature is None:
            raise DataError(
                f"{folder}: no signature {serving.ENCODED_SIGNATURE!r}, only {sorted(self._model.signatures)}. "
                "Export the model with Cocoflow, or with a signature of that name that takes encoded images."
            )
        lacking = sorted(set(_OUTPUTS) - set(signature.structured_outputs))
        if serving.RAW_BOXES in signature.structured_outputs:
            raise without_nms(folder)
        if lacking:
            raise DataError(f"{folder}: its signature has no output {', '.join(lacking)}. Export the model again.")
        name = next(iter(signature.structured_input_signature[1]), serving.IMAGES)  # `input_tensor` in the API's
        super().__init__(
            lambda images: signature(**{name: images}),
            batch_size=_fixed_batch_size(signature) or batch_size,
            where=folder,
            damaged=lambda error: _damaged(folder, "cannot be run", error),
        )


def _fixed_batch_size(signature: Any) -> int | None:
    """Returns the number of images that the signature takes; None: any."""
    images = next(iter(signature.structured_input_signature[1].values()), None)
    return None if images is None or images.shape.rank is None else images.shape[0]


def without_nms(model: str | Path) -> DataError:
    """Returns the error for a model that returns the boxes of all anchors instead of detections."""
    return DataError(
        f"{model}: exported without non-maximum suppression: it returns the boxes of all anchors, not detections. "
        "Export it again without --no-nms."
    )


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


def _require_detections(outputs: Mapping[str, npt.NDArray[Any]], images: int, where: str | Path) -> None:
    """Checks shapes and values of the outputs, which may be invalid in a damaged model.

    Raises:
        DataError: the outputs are not detections.
    """
    if lacking := sorted(set(_OUTPUTS) - set(outputs)):
        raise DataError(f"{where}: the model has no output {', '.join(lacking)}. Export it again.")
    boxes, scores, classes, counts = (outputs[name] for name in _OUTPUTS)
    more = {name: outputs[name] for name in (serving.MASKS, serving.KEYPOINTS) if name in outputs}
    shaped = boxes.ndim == 3 and boxes.shape[2] == 4 and scores.shape == classes.shape == boxes.shape[:2]
    shaped = shaped and all(
        values.ndim == (2 if values.dtype == object else 4) and values.shape[:2] == boxes.shape[:2]
        for values in more.values()
    )
    shaped = shaped and (serving.KEYPOINTS not in more or more[serving.KEYPOINTS].shape[3] == 3)
    if not (shaped and counts.shape == boxes.shape[:1] and len(boxes) >= images):
        shapes = ", ".join(f"{name} {list(outputs[name].shape)}" for name in (*_OUTPUTS, *more))
        raise DataError(f"{where}: the outputs of the model are not detections: {shapes}. Export it again.")
    counted = np.arange(boxes.shape[1]) < counts[:, None]
    within = bool(((counts >= 0) & (counts <= boxes.shape[1])).all())
    numbers = [boxes, scores, *(values for values in more.values() if values.dtype != object)]  # without RLE strings
    if not within or not all(np.isfinite(values[counted]).all() for values in numbers):
        raise DataError(
            f"{where}: the model returns detections that are not finite, or an invalid number of them. "
            "Its weights may be damaged: export or copy it again."
        )


def require_saved_model(folder: str | Path) -> None:
    """Requires a SavedModel, without loading it.

    Raises:
        DataError: the folder has none.
    """
    if not has_saved_model(folder):
        raise DataError(f"{folder}: not a SavedModel. Pass the folder that contains its {SAVED_MODEL_FILE}.")


def signature_iou_types(folder: str | Path) -> tuple[IouType, ...]:
    """Returns the IoU types supported by the outputs of a SavedModel, without loading it.

    Raises:
        DataError: the folder has no SavedModel, or a damaged one.
    """
    require_saved_model(folder)
    try:
        content = saved_model_pb2.SavedModel.FromString(read_bytes(join(folder, SAVED_MODEL_FILE)))
        outputs = content.meta_graphs[0].signature_def[serving.ENCODED_SIGNATURE].outputs
    except Exception as error:  # the parser of a damaged file
        raise _damaged(folder, "does not load", error) from error
    return ("bbox", *(iou_type for iou_type in IOU_TYPES[1:] if OUTPUT_OF_IOU_TYPE[iou_type] in outputs))


def has_saved_model(folder: str | Path) -> bool:
    """Returns whether a folder, local or remote, is a SavedModel."""
    return exists(join(folder, SAVED_MODEL_FILE))
