"""A trained detector with random weights, small and quick to export, and images for it."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorflow.lite.tools import flatbuffer_utils

from detection.export.model_description import write_model_file
from detection.images.files import EXIF_ORIENTATION
from detection.inference.formats.model_files import FileFormat, ModelDescription, read_description
from detection.models.detector import Detector, variables_by_path
from detection.models.registry import detector_from_config
from detection.types import EncodedImage
from schemas.artifacts import CHECKPOINTS, CLIENT_PY, CONFIG_YAML, EMA_PART, LABELS_JSON, MODEL_PART, STEP_PART
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from tests.detection import tiny_dense
from tests.detection.training.tiny_run import CATEGORIES, tiny_config

STEP = 7
SIZES = [(64, 64), (40, 80), (90, 33), (64, 50)]  # of the images: that of the input, wide, tall, smaller

CUSTOM = 32  # BuiltinOperator.CUSTOM; TensorFlow's ops (flex) are custom ones, too


def export_config(*assignments: str) -> Config:
    """The configuration of `random_detector`, with some keys changed."""
    return tiny_config(*tiny_dense.KEYS, *assignments)


def random_detector() -> Detector:
    """A detector whose scores differ by much more than the rounding of any runtime, with boxes as large as anchors."""
    keras.utils.set_random_seed(0)
    detector = detector_from_config(export_config().model, CATEGORIES)
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "kernel" in variable.path:
            spread = {"class_net": 1.0, "box_net": 0.1}.get(variable.path.split("/")[0], 0.05)
            variable.assign(variable.numpy() + random.normal(0, spread, variable.shape))
    return detector


def write_training(folder: Path, detector: Detector) -> Path:
    """Writes a folder as `train` leaves it."""
    write_checkpoint(folder, detector, step=STEP)
    (folder / CONFIG_YAML).write_text(to_yaml(export_config()))
    (folder / LABELS_JSON).write_text(json.dumps(CATEGORIES))
    return folder


def write_checkpoint(run: Path, detector: Detector, *, step: int) -> None:
    """Writes a checkpoint of a run: EMA weights are the detector's, the raw ones differ in one variable."""
    raw = variables_by_path(detector.variables)
    stem = detector.backbone.stem.conv.kernel
    ema = {stem.path: tf.Variable(stem.value)}
    raw[stem.path] = tf.Variable(stem.value * 0.5)
    parts = {MODEL_PART: raw, EMA_PART: ema, STEP_PART: tf.Variable(step, dtype=tf.int64)}
    tf.train.Checkpoint(**parts).write(str(run / CHECKPOINTS / f"ckpt-{step}"))


def write_file(
    folder: Path,
    content: bytes,
    detector: Detector,
    *,
    file_format: FileFormat,
    precision: str = "float32",
    batch_size: int | None = 1,
) -> Path:
    """Writes a model file with its description into a folder, as `export` does; returns the folder."""
    description = ModelDescription(
        format=file_format,
        precision=precision,
        shape=(batch_size, *detector.image_size, 3),
        resizing=detector.resizing,
        dtype="uint8" if precision == "int8" else "float32",
        padding=detector.pixel_mean,
        nms=True,
        masks=detector.capabilities.mask_size > 0,
        keypoints=detector.capabilities.keypoints,
    )
    write_model_file(folder, content, description)
    written = read_description(folder)
    assert written is not None
    assert dataclasses.replace(written, sha256=None) == description
    return folder


def random_images() -> list[EncodedImage]:
    """PNGs of smooth content in `SIZES`."""
    random = np.random.default_rng(1)
    images = []
    for number, (height, width) in enumerate(SIZES):
        coarse = random.integers(0, 256, (6, 6, 3)).astype(np.float32)
        pixels = tf.cast(tf.clip_by_value(tf.image.resize(coarse, (height, width), "bicubic"), 0, 255), tf.uint8)
        images.append(EncodedImage(number, f"{number}.png", tf.io.encode_png(pixels).numpy(), height, width))
    return images


def client_results(folder: Path, images: Iterable[Path], *, runtime: str) -> list[dict[str, Any]]:
    """Runs the exported client in a process that can import neither Cocoflow nor, where avoidable, TensorFlow."""
    blocked = ["detection", "schemas", "components", "pipelines", "pipeline_runner", "onnx"]
    if importlib.util.find_spec(runtime) is not None:
        blocked.append("tensorflow")
    start = "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(), None)); del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", start, " ".join(blocked), str(folder / CLIENT_PY), *map(str, images)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout))


def write_images(folder: Path) -> list[Path]:
    """Writes `random_images`, and a small JPEG with an EXIF orientation, as a camera turned by 90 degrees writes it."""
    folder.mkdir()
    paths = []
    for image in random_images():
        paths.append(folder / image.name)
        paths[-1].write_bytes(image.encoded)
    with Image.open(paths[1]) as turned:
        exif = turned.getexif()
        exif[EXIF_ORIENTATION] = 6
        paths.append(folder / "turned.jpg")
        turned.convert("L").resize((30, 20)).save(paths[-1], exif=exif)
    return paths


def assert_same_results(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """Compares COCO results: masks exactly, scores and boxes but for rounding."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert (one["image_id"], one["category_id"]) == (other["image_id"], other["category_id"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
        np.testing.assert_allclose(one["bbox"], other["bbox"], atol=1e-3)
        assert one.get("segmentation") == other.get("segmentation")


def built_in_ops(content: bytes) -> dict[str, list[Any]]:
    """Operators of the main graph of a LiteRT file by name; fails if the file has any op that is not built in."""
    model = flatbuffer_utils.convert_bytearray_to_object(bytearray(content))
    for code in model.operatorCodes:
        assert code.customCode is None
        assert code.builtinCode != CUSTOM
    operators: dict[str, list[Any]] = {}
    tensors = model.subgraphs[0].tensors
    for operator in model.subgraphs[0].operators:
        name = flatbuffer_utils.opcode_to_name(model, operator.opcodeIndex)
        operators.setdefault(name, []).append([tensors[index].type for index in operator.inputs])
    return operators
