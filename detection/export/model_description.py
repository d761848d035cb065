"""Writes model files with `model.json`, which says how to run them, and with the client that does so."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from detection.export import client
from detection.inference.formats.model_files import FILE_NAMES, ModelDescription
from detection.storage.atomic import write_bytes, write_json
from detection.storage.paths import join
from detection.types import ResizeMode
from schemas import serving
from schemas.artifacts import CLIENT_PY, EXTRA_FILES, LABELS_JSON, MODEL_JSON, SCORE_CURVES_JSON

_SIZE_RULES: dict[ResizeMode, str] = {
    "fit": "resized side = max(1, floor(side * scale + 0.001)), scale = min(size / side) over both axes, in float32",
    "stretch": "resized side = max(1, floor(side * scale + 0.001)), scale = size / side of each axis, in float32",
    "short_side": "resized side = max(1, round(side * scale)), a half to the even number, scale = min(short_side / "
    "shorter side, long_side / longer side, size / side over both axes), in float32",
}
_SAMPLES = {
    True: "resize: bilinear, half-pixel centers, no antialiasing (tf.image.resize; not Pillow's resize)",
    False: "resize: bilinear, row y samples at y * old height / new height, and so across, no antialiasing "
    "(tf.compat.v1.image.resize_bilinear)",
}
_MASK_RULES = [
    "a mask fills its box as it was before clipping: stretch the m x m cells over it",
    "value of a pixel = bilinear interpolation of the cells' centers at the pixel's center, (x + 0.5, y + 0.5), with 0 "
    "around the cells: cell coordinate = (pixel center - box start) * m / box side - 0.5",
    "a pixel is inside from 0.5 on; pixels outside the image are dropped",
]


def write_model_file(folder: Path, content: bytes, description: ModelDescription) -> None:
    """Writes a model file, its description with the checksum, and for detections the reference client.

    Args:
        folder: destination.
        content: content of the model file.
        description: description of the model.
    """
    description = dataclasses.replace(description, sha256=hashlib.sha256(content).hexdigest())
    write_json(folder / MODEL_JSON, description_json(description))
    if description.nms and description.delegate is None:
        write_bytes(folder / CLIENT_PY, Path(client.__file__).read_bytes())
    write_bytes(folder / FILE_NAMES[description.format], content)


def description_json(description: ModelDescription) -> dict[str, Any]:
    """Returns the content of the file beside the model."""
    return {
        "format": description.format,
        "file": FILE_NAMES[description.format],
        "sha256": description.sha256,
        "precision": description.precision,
        **({} if description.delegate is None else {"delegate": description.delegate}),
        "input": {
            "name": serving.IMAGES,
            "dtype": description.dtype,
            "shape": list(description.shape),
            "resize": description.resizing._asdict(),
            "padding": list(description.padding),
        },
        "preprocessing": _preprocessing(description),
        "non_maximum_suppression": description.nms,
        "calibrated_scores": description.calibrated,
        "outputs": _outputs(description),
        "postprocessing": _postprocessing(description),
    }


def _preprocessing(description: ModelDescription) -> list[str]:
    """Returns the steps from an image file to the input, as implemented in `client`."""
    steps = [
        "decode to RGB, 8 bits per channel (the upper 8 of 16), pixels as stored: EXIF orientation is not applied, "
        "alpha is dropped",
        _SIZE_RULES[description.resizing.mode],
        _SAMPLES[description.resizing.half_pixel_centers],
        "the resized image is at the top left of the input; the rest has the color `padding`",
    ]
    if description.dtype == "uint8":
        steps.append("round to the nearest integer, a half to the even one")
    return [*steps, f"values are {description.dtype}, 0 to 255: the model normalizes them"]


def _outputs(description: ModelDescription) -> dict[str, str]:
    labels = join(EXTRA_FILES, LABELS_JSON)
    if description.delegate == "gpu":
        return {
            serving.BOX_DELTAS: "float32 [1, A, 4]: ty, tx, th, tw of the anchors in the metadata",
            serving.CLASS_LOGITS: "float32 [1, A, C]: logits, in the order of the labels in the file",
        }
    boxes = "ymin, xmin, ymax, xmax; 0 to 1 is the input, padding included"
    if not description.nms:
        return {
            serving.RAW_BOXES: f"float32 [B, A, 4]: {boxes}",
            serving.RAW_SCORES: f"float32 [B, A, C]: probabilities, in the order of {labels}",
        }
    calibrated = f"calibrated in the model by the curves in {join(EXTRA_FILES, SCORE_CURVES_JSON)}"
    outputs = {
        serving.BOXES: f"float32 [B, N, 4]: {boxes}",
        serving.SCORES: "float32 [B, N], best first" + (f"; {calibrated}" if description.calibrated else ""),
        serving.CLASSES: f"{'int32' if description.format == 'litert' else 'int64'} [B, N]: ids in {labels}",
        serving.COUNT: "int32 [B]: valid rows",
    }
    if description.delegate is not None:
        outputs[serving.CLASSES] = "float32 [1, N]: lines of the labels in the file, from 0"
        outputs[serving.COUNT] = "float32 [1]: valid rows"
    if description.masks:
        outputs[serving.MASKS] = "float32 [B, N, m, m]: probabilities within each box"
    if description.keypoints:
        outputs[serving.KEYPOINTS] = "float32 [B, N, K, 3]: y, x, score; 0 to 1 is the input, padding included"
    return outputs


def _postprocessing(description: ModelDescription) -> list[str]:
    """Returns the steps from the outputs to pixels of the image."""
    if description.delegate is not None:
        return ["MediaPipe Tasks' ObjectDetector does all steps, and truncates x, y, width and height to integers"]
    pixels = "pixels of the image = box * input side / resized side * image side, per axis"
    if not description.nms:
        return [
            pixels,
            "boxes may extend beyond the image: after non-maximum suppression, clip them, and drop those outside",
        ]
    steps = [
        f"use the first {serving.COUNT} rows",
        pixels,
        "clip boxes to the image, and drop those outside of it: they may extend into the padding, or lie in it",
    ]
    return steps + (_MASK_RULES if description.masks else [])
