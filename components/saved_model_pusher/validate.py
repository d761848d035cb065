"""Validates a SavedModel before its push: a fresh process with TensorFlow alone loads and runs it.

Like TFX's InfraValidator, without Docker and a model server; the outputs are also compared with those of the
evaluator.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from components.saved_model_pusher import serving_program
from components.saved_model_pusher.serving_comparison import Comparison, DifferenceError
from detection.inference.serving_sample import read_serving_sample
from detection.storage.files import local_copy
from detection.storage.paths import absolute, literal_path
from detection.storage.processes import tied
from schemas.errors import RefusedModelError
from schemas.quoting import printable

_PROGRAM = serving_program.__file__
# Appends the folders where this process finds TensorFlow, perhaps by PYTHONPATH, which -I ignores.
_START = """import runpy, sys
sys.path += sys.argv.pop(1).split("\\n")
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
_REASON = 500  # characters of a process's last words

_LOGGER = logging.getLogger("cocoflow.pusher")


class Validation(NamedTuple):
    """The comparison of a model with its evaluation before a push.

    images: number of images.
    detections: number of detections that have a counterpart.
    unmatched: number of detections without one, whose scores are tied with the last one of a full list.
    max_difference: output -> the largest difference: of scores, of box corners as fractions of the
        image, of keypoints and mask probabilities; of masks of pixels, the differing fraction of
        their union.
    tolerance: the largest difference allowed.
    seconds: of the imports, of loading and running the model, and in total.
    """

    images: int
    detections: int
    unmatched: int
    max_difference: dict[str, float]
    tolerance: float
    seconds: dict[str, float]


def validate(
    saved_model: Path, sample: str | Path, *, images: int, tolerance: float, timeout: float, name: str
) -> Validation:
    """Loads a SavedModel in a fresh process, runs `serving_default`, and compares with the evaluator's outputs.

    The process sees no GPU: those of this machine may be in use by this one.  It ends with this one.

    Args:
        saved_model: local folder.
        sample: file of `detection.inference.serving_sample`.
        images: number of images in it to compare.
        tolerance: max difference of scores, corners as fractions of the image, and masks.
        timeout: seconds that the process may take.
        name: the model, for messages.

    Raises:
        RefusedModelError: the model does not load or run there, or gives other detections.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cocoflow-validation-") as folder:
        result = Path(folder, "result.json")
        # The process works in another folder.
        given = (absolute(literal_path(saved_model)), absolute(local_copy(sample)), images, folder, result)
        folders = "\n".join(path for path in sys.path if os.path.isabs(path))
        command = [sys.executable, "-I", "-c", _START, folders, _PROGRAM, *map(str, given)]
        try:
            ended = subprocess.run(
                tied(command),
                cwd=folder,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _refusal(name, f"it has not ended after {timeout:g} seconds (push.validation.timeout)") from None
        seconds: dict[str, float] = _answer(result, ended, name)["seconds"]
        comparison = _compare(sample, folder, images=images, tolerance=tolerance, name=name)
    _LOGGER.info(
        "validated on %d images in a separate process: %d detections as evaluated", images, comparison.detections
    )
    return Validation(
        images=comparison.images,
        detections=comparison.detections,
        unmatched=comparison.unmatched,
        max_difference=comparison.max_difference,
        tolerance=tolerance,
        seconds=seconds | {"total": round(time.monotonic() - start, 3)},
    )


def _compare(sample: str | Path, outputs: str, *, images: int, tolerance: float, name: str) -> Comparison:
    """Compares the program's outputs with the evaluator's.

    Raises:
        RefusedModelError: they differ.
    """
    comparison = Comparison(tolerance)
    for number, image in enumerate(read_serving_sample(sample)[:images]):
        with np.load(Path(outputs, f"{number}.npz"), allow_pickle=False) as served:
            try:
                comparison.add(image.outputs, dict(served), f"image {image.image_id} ({image.name})")
            except DifferenceError as difference:
                raise _refusal(name, str(difference)) from None
    return comparison


def _answer(result: Path, ended: "subprocess.CompletedProcess[bytes]", name: str) -> dict[str, Any]:
    """Returns the program's answer.

    Raises:
        RefusedModelError: it refused the model, or gave no answer.
    """
    try:
        answer: dict[str, Any] = json.loads(result.read_bytes())
    except (OSError, ValueError):
        answer = {}
    if "refused" in answer:
        raise _refusal(name, answer["refused"])
    if ended.returncode == 0 and answer:
        return answer
    words = [line for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    last = f", its last words: {words[-1][:_REASON]}" if words else ""
    raise _refusal(name, f"{_end_in_words(ended.returncode)}{last}")


def _end_in_words(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the process was killed by SIGKILL, as the kernel does if memory runs out"
    if code < 0:
        return f"the process crashed with {signal.Signals(code * -1).name}"
    return f"the process ended with exit code {code} before it answered"


def _refusal(name: str, reason: str) -> RefusedModelError:
    return RefusedModelError(
        f"{name}: not pushed, as it does not serve what was evaluated. In a fresh process with TensorFlow alone: "
        f"{printable(reason)}. Correct the model and train or export it again; push.validation has the options."
    )
