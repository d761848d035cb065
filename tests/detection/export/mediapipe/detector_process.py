"""MediaPipe's ObjectDetector in a process of its own: it hangs when it is closed after an error.

python -m tests.detection.export.mediapipe.detector_process MODEL IMAGES.npz OPTIONS.json > DETECTIONS.json
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[4]
TIMEOUT = 120.0  # seconds, of which loading MediaPipe takes 2 on a quiet machine
_RESULT = "DETECTIONS "
_LIBRARIES = ("libEGL.so.1", "libGLESv2.so.2")


class Category(NamedTuple):
    """A class of a detection.

    class_index: MediaPipe has None for a class with a label.
    name: label of the class; MediaPipe has None for an empty or missing one.
    score: of the detection.
    """

    class_index: int | None
    name: str | None
    score: float


class Detection(NamedTuple):
    """A detection of MediaPipe; equal boxes of several classes are one.

    x: left side, whole pixels of the image.
    y: top side.
    width: of the box.
    height: of the box.
    categories: classes.
    """

    x: int
    y: int
    width: int
    height: int
    categories: tuple[Category, ...]


Detect = Callable[..., list[list[Detection]]]  # `detect`, as the fixture `mediapipe_detect` gives it


class DetectorError(Exception):
    """The message of MediaPipe, or how its process ended."""


def missing_library() -> str | None:
    """A library of the system that MediaPipe loads, and that is not there."""
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            return name
    return None


def detect(
    model: bytes | Path, images: Sequence[np.ndarray[Any, Any]], *, timeout: float = TIMEOUT, **options: Any
) -> list[list[Detection]]:
    """Runs MediaPipe's ObjectDetector on images.

    Args:
        model: LiteRT file, or its path.
        images: uint8 [H, W, 3], RGB.
        timeout: seconds after which the process is killed.
        options: of `ObjectDetectorOptions`, such as `score_threshold`.

    Returns:
        Detections of each image, in MediaPipe's order.

    Raises:
        DetectorError: MediaPipe refuses the model, its process crashes or hangs.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = model if isinstance(model, Path) else Path(folder, "model.tflite")
        if not isinstance(model, Path):
            path.write_bytes(model)
        np.savez(Path(folder, "images.npz"), *images)
        arguments = [str(path), f"{folder}/images.npz", json.dumps(options)]
        try:
            process = subprocess.run(
                [sys.executable, "-m", __name__, *arguments],
                cwd=ROOT,
                timeout=timeout,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DetectorError(f"no answer in {timeout:g} s") from None
    lines = [line for line in process.stdout.splitlines() if line.startswith(_RESULT)]
    if not lines:
        raise DetectorError(f"exit code {process.returncode}: {process.stderr[-2000:]}")
    answer = json.loads(lines[-1].removeprefix(_RESULT))
    if isinstance(answer, str):
        raise DetectorError(answer)
    return [
        [
            Detection(x, y, width, height, tuple(Category(*category) for category in categories))
            for (x, y, width, height), categories in image
        ]
        for image in answer
    ]


def _answer(model: str, images: str, options: str) -> list[Any] | str:
    # MediaPipe imports it for decorators of its documentation, and does without; it would take 15 seconds.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    import mediapipe
    from mediapipe.tasks.python import vision
    from mediapipe.tasks.python.core.base_options import BaseOptions

    try:
        detector = vision.ObjectDetector.create_from_options(
            vision.ObjectDetectorOptions(base_options=BaseOptions(model_asset_path=model), **json.loads(options))
        )
        with np.load(images) as arrays:
            found = [
                detector.detect(mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=arrays[name]))
                for name in arrays.files
            ]
    except (RuntimeError, ValueError) as error:
        return str(error)
    return [
        [
            (
                (box.origin_x, box.origin_y, box.width, box.height),
                [(category.index, category.category_name, category.score) for category in one.categories],
            )
            for one in result.detections
            for box in [one.bounding_box]
        ]
        for result in found
    ]


if __name__ == "__main__":
    print(_RESULT + json.dumps(_answer(*sys.argv[1:])), flush=True)
    os._exit(0)  # without closing the detector
