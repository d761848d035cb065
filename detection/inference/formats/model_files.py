"""Detectors in LiteRT, ONNX and MediaPipe files: the description of such a file, and detection with it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf
from pydantic import AfterValidator, AliasPath, BeforeValidator, Field, TypeAdapter

from detection.images.decode import decode_rgb_or_blank
from detection.inference.formats.file_runtimes import Array, Delegate, FileFormat, damaged_file, load_network
from detection.inference.formats.saved_model import ExportedDetector, without_nms
from detection.inference.formats.score_curves import read_score_curves
from detection.inference.restore import read_model_categories
from detection.input_pipeline.network_input import fit_pixels
from detection.storage.checksums import changed_file
from detection.storage.files import is_file, read_bytes
from detection.storage.json_files import not_of_this_version, parse_file
from detection.storage.paths import join, name_of, parent
from detection.types import ImageInfo, Resizing
from schemas import serving
from schemas.artifacts import LITERT_FILE, MODEL_JSON, ONNX_FILE
from schemas.errors import DataError

FILE_NAMES: dict[FileFormat, str] = {"litert": LITERT_FILE, "onnx": ONNX_FILE, "mediapipe": LITERT_FILE}

_Side = Annotated[int, Field(ge=1)]
_MAX_SIDE = 1 << 31


def _require_all_keys(resize: Any) -> Any:
    if not isinstance(resize, dict) or not resize.keys() >= {"size", "mode", "short_side", "long_side"}:
        raise ValueError("a rule needs size, mode, short_side and long_side")
    return resize


def _require_limits(resizing: Resizing) -> Resizing:
    if min(resizing.size) < 1 or not all(0 <= side < _MAX_SIDE for side in (resizing.short_side, resizing.long_side)):
        raise ValueError("a side is negative or too large")
    return resizing


def _in_input(key: str) -> Any:
    return Field(validation_alias=AliasPath("input", key))


def _has_output(name: str) -> Any:
    def is_listed(outputs: Any) -> bool:
        if not isinstance(outputs, dict):
            raise ValueError("not an object")
        return name in outputs

    return BeforeValidator(is_listed)


@dataclass(frozen=True)
class ModelDescription:
    """The information that a program needs to run a model file, parsed from `model.json`.

    `detection.export.model_description` writes it.

    format: kind of the file.
    precision: precision of the network: float32, float16 or int8.
    shape: shape of the input, [B, H, W, 3], RGB, 0 to 255; B, images per call, is None for any number.
    resizing: rule by which an image is resized to the input.
    dtype: dtype of the input.
    padding: RGB color right of and below the resized image.
    nms: False: the outputs are boxes and scores of all anchors.
    masks, keypoints: the outputs include them.
    sha256: checksum of the file; None: unknown, as for a model exported by another program.
    delegate: hardware of a file for MediaPipe.
    calibrated: the scores are calibrated, as in `detection.inference.formats.score_curves`.
    """

    format: FileFormat
    precision: str
    shape: Annotated[tuple[_Side | None, _Side, _Side, Literal[3]], _in_input("shape")]
    resizing: Annotated[
        Resizing, _in_input("resize"), BeforeValidator(_require_all_keys), AfterValidator(_require_limits)
    ]
    dtype: Annotated[Literal["float32", "uint8"], _in_input("dtype")]
    padding: Annotated[tuple[float, float, float], _in_input("padding")]
    nms: Annotated[bool, Field(validation_alias="non_maximum_suppression")]
    masks: Annotated[bool, Field(validation_alias="outputs"), _has_output(serving.MASKS)]
    keypoints: Annotated[bool, Field(validation_alias="outputs"), _has_output(serving.KEYPOINTS)]
    sha256: str | None = None
    delegate: Delegate | None = None
    calibrated: Annotated[bool, Field(validation_alias="calibrated_scores")] = False

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the input, pixels."""
        return self.shape[1:3]


_FORMAT = TypeAdapter(ModelDescription)
_WHAT, _REMEDY = "the description of an exported model", "Export or copy the model again."


def model_folder(path: str | Path) -> str:
    """Returns the folder of an exported model: `path` itself, or the folder of a file."""
    return parent(path) if name_of(path) in FILE_NAMES.values() and is_file(path) else str(path)


def has_model_file(folder: str | Path) -> bool:
    """Returns whether a folder has a LiteRT or ONNX file, or its description."""
    return any(is_file(join(folder, name)) for name in (MODEL_JSON, *FILE_NAMES.values()))


def read_description(folder: str | Path) -> ModelDescription | None:
    """Reads the description of a model file.

    Args:
        folder: folder of an exported model.

    Returns:
        None: there is no description, as in a SavedModel.

    Raises:
        DataError: the file is damaged.
    """
    path = join(folder, MODEL_JSON)
    if not is_file(path):
        return None
    description = parse_file(_FORMAT, path, what=_WHAT, remedy=_REMEDY)
    if any(side > limit for side, limit in zip(description.resizing.size, description.image_size, strict=True)):
        raise not_of_this_version(path, _WHAT, "input.resize.size: larger than the input", _REMEDY)
    return description


class FileDetector(ExportedDetector):
    """A detector in a LiteRT, ONNX or MediaPipe file; decodes and resizes the images itself.

    Args:
        folder: folder of the file and its description.
        batch_size: images per call, if the file supports any number.
        as_mediapipe: resize images and round boxes as MediaPipe's ObjectDetector does on CPUs.

    Raises:
        DataError: the file is missing or unreadable, or does not return detections.
        ConfigError: the runtime of ONNX is not installed.
    """

    def __init__(self, *, folder: str | Path, batch_size: int, as_mediapipe: bool = False) -> None:
        description = read_description(folder)
        if description is None:
            raise DataError(
                f"{folder}: no {MODEL_JSON}, the description of a model file. Export or copy the model again."
            )
        if not description.nms:
            raise without_nms(folder)
        self._description = description
        path = join(folder, FILE_NAMES[description.format])
        content = read_bytes(path)
        if description.sha256 not in (None, hashlib.sha256(content).hexdigest()):
            raise changed_file(path, join(folder, MODEL_JSON))
        self._as_mediapipe = as_mediapipe
        mediapipe = description.format == "mediapipe"  # these steps are done by the application
        self._network, shape = load_network(
            description.format,
            content,
            where=path,
            categories=(read_model_categories(folder) or []) if mediapipe else [],
            curves=read_score_curves(folder) if mediapipe else None,
        )
        if shape != list(description.shape):
            reason = f"input.shape: the model has {shape}"
            raise not_of_this_version(join(folder, MODEL_JSON), f"the description of {path}", reason, _REMEDY)
        super().__init__(
            self._detect, batch_size=description.shape[0] or batch_size, where=path, damaged=partial(damaged_file, path)
        )

    def _detect(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels, info, valid = self._fit(images)
        if self._description.dtype == "uint8":
            pixels = tf.cast(tf.round(pixels), tf.uint8)
        outputs = self._network(pixels.numpy())
        scale = np.array(self._description.image_size, np.float32) / (info.original_size * info.scale).numpy()
        boxes = outputs[serving.BOXES] * np.tile(scale, 2)[:, np.newaxis]
        clipped = np.clip(boxes, 0.0, 1.0)
        if not self._description.masks:  # the crop of a mask covers its complete box, including padding
            boxes = clipped
        if self._as_mediapipe:
            boxes = _truncate_to_pixels(boxes, info.original_size.numpy())
        count = np.where(valid, outputs[serving.COUNT], 0)
        changed = {serving.BOXES: boxes, serving.COUNT: count}
        if self._description.keypoints:
            factors = np.append(scale, np.ones((len(scale), 1), np.float32), axis=1)
            changed[serving.KEYPOINTS] = outputs[serving.KEYPOINTS] * factors[:, np.newaxis, np.newaxis]
        kept = _drop_outside({**outputs, **changed}, (clipped[..., 2:] > clipped[..., :2]).all(axis=-1))
        return {name: tf.convert_to_tensor(value) for name, value in {**kept, serving.VALID: valid}.items()}

    @tf.function(autograph=False)
    def _fit(self, images: tf.Tensor) -> tuple[tf.Tensor, ImageInfo, tf.Tensor]:
        description = self._description

        def fit(encoded: tf.Tensor) -> tuple[tf.Tensor, ImageInfo, tf.Tensor]:
            image, valid = decode_rgb_or_blank(encoded)
            if self._as_mediapipe:
                return (*_stretch(image, description.image_size), valid)
            pixels, info = fit_pixels(
                image, image_size=description.image_size, resizing=description.resizing, padding=description.padding
            )
            return pixels, info, valid

        pair = tf.TensorSpec([2], tf.float32)
        spec = (
            tf.TensorSpec([*description.image_size, 3], tf.float32),
            ImageInfo(pair, pair),
            tf.TensorSpec([], tf.bool),
        )
        return tf.map_fn(fit, images, fn_output_signature=spec)


def _stretch(image: tf.Tensor, image_size: tuple[int, int]) -> tuple[tf.Tensor, ImageInfo]:
    """Resizes an image as MediaPipe does on CPUs: bilinear without half-pixel centers, to integers."""
    pixels = tf.raw_ops.ResizeBilinear(images=image[tf.newaxis], size=image_size, half_pixel_centers=False)[0]
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    return tf.round(pixels), ImageInfo(original_size=size, scale=tf.constant(image_size, tf.float32) / size)


def _drop_outside(outputs: Mapping[str, Array], in_image: Array) -> dict[str, Array]:
    """Drops rows outside of the image, bool [B, N]: a file, which knows its input only, detects in the padding, too."""
    slots = np.arange(in_image.shape[1])
    kept = in_image & (slots < outputs[serving.COUNT][:, np.newaxis])
    count = kept.sum(axis=1).astype(np.int32)
    order, valid = np.argsort(~kept, axis=1, kind="stable"), slots < count[:, np.newaxis]

    def select(rows: Array) -> Array:
        moved = np.take_along_axis(rows, order.reshape(*order.shape, *[1] * (rows.ndim - 2)), axis=1)
        return np.where(valid.reshape(*valid.shape, *[1] * (rows.ndim - 2)), moved, np.zeros((), rows.dtype))

    return {name: count if name == serving.COUNT else select(rows) for name, rows in outputs.items()}


def _truncate_to_pixels(boxes: Array, sizes: Array) -> Array:
    """Truncates x, y, width and height of boxes [B, N, 4], fractions of images of sizes [B, 2], to integer pixels."""
    scale = sizes[:, np.newaxis]
    starts, sides = np.floor(boxes[..., :2] * scale), np.floor((boxes[..., 2:] - boxes[..., :2]) * scale)
    return np.concatenate([starts / scale, (starts + sides) / scale], axis=-1)
