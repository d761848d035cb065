"""Program: loads a SavedModel as a server does, and runs it on the images of a serving sample.

`validate` starts it in a fresh interpreter before a push.  It imports TensorFlow and NumPy only, and keeps a
SavedModel from importing more, Cocoflow's own packages above all.

    serving_program.py SAVED_MODEL SERVING_SAMPLE IMAGES OUTPUTS RESULT

writes the outputs for image n, counted from 0, to `OUTPUTS/n.npz`, each with a batch dimension of 1, and to RESULT a
JSON object: `{"refused": reason}`, or `seconds` (`load`, `run` and `import`).
"""

import importlib.abc
import json
import os
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np

_OUR_PACKAGES = {"detection", "components", "pipelines", "schemas", "pipeline_runner", "tfx"}
_SIGNATURE, _IMAGES = "serving_default", "images"  # as in `schemas.serving`
_REASON = 300  # characters of TensorFlow's messages


class RefusedError(Exception):
    """The model does not serve; the message says why."""


class OnlyTensorFlow(importlib.abc.MetaPathFinder):
    """Refuses imports of our packages, and once closed, of all packages that are neither loaded nor standard."""

    def __init__(self) -> None:
        self._allowed: set[str] | None = None

    def close(self) -> None:
        """Allows no further packages than those that are loaded."""
        self._allowed = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Raises an error for a refused module, as if it was not installed."""
        package = name.partition(".")[0]
        if package in _OUR_PACKAGES or (self._allowed is not None and package not in self._allowed):
            raise ModuleNotFoundError(f"No module named {name!r}: a server has TensorFlow only", name=name)
        return None


def main(saved_model: str, sample: str, images: str, outputs: str, result: str) -> None:
    """Runs the program."""
    guard = OnlyTensorFlow()
    sys.meta_path.insert(0, guard)
    start = time.monotonic()
    import tensorflow as tf

    guard.close()
    imported = round(time.monotonic() - start, 3)
    answer: dict[str, Any]
    try:
        answer = {"seconds": run(tf, saved_model, sample, images=int(images), outputs=outputs) | {"import": imported}}
    except RefusedError as refusal:
        answer = {"refused": str(refusal)}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def run(tf: Any, saved_model: str, sample: str, *, images: int, outputs: str) -> dict[str, float]:
    """Loads a SavedModel, runs it on images of a sample one by one, and writes its outputs.

    Args:
        tf: TensorFlow.
        saved_model: local folder.
        sample: local file of `detection.inference.serving_sample`.
        images: number of images to run, the first ones.
        outputs: local folder for the files of the outputs.

    Returns:
        Seconds of loading and running.

    Raises:
        RefusedError: the model does not load or run.
    """
    start = time.monotonic()
    # The loaded object owns the variables of the signature.
    loaded, signature = _load(tf, saved_model)
    load = time.monotonic() - start
    with np.load(sample, allow_pickle=False) as archive:
        for number in range(images):
            where = f"image {int(archive[f'{number}/id'])} ({archive[f'{number}/name'].tobytes().decode()})"
            served = _outputs(tf, signature, archive[f"{number}/encoded"].tobytes(), where)
            np.savez_compressed(os.path.join(outputs, f"{number}.npz"), **served)
    del loaded
    return {"load": round(load, 3), "run": round(time.monotonic() - start - load, 3)}


def _load(tf: Any, folder: str) -> tuple[Any, Any]:
    """Returns the loaded object and its signature."""
    try:
        loaded = tf.saved_model.load(folder)
        signatures = loaded.signatures
    except Exception as error:
        raise RefusedError(f"it does not load: {_in_a_line(error)}") from None
    if _SIGNATURE not in signatures:
        raise RefusedError(f"it has no signature {_SIGNATURE}, only {sorted(signatures)}")
    signature = signatures[_SIGNATURE]
    if _IMAGES not in signature.structured_input_signature[1]:
        raise RefusedError(f"its signature {_SIGNATURE} lacks the input {_IMAGES}")
    return loaded, signature


def _outputs(tf: Any, signature: Any, encoded: bytes, where: str) -> dict[str, Any]:
    """Runs the model on one image; strings become bytes."""
    shape = signature.structured_input_signature[1][_IMAGES].shape
    batch = (shape[0] if shape.rank else None) or 1
    try:
        outputs = signature(**{_IMAGES: tf.constant([encoded] * batch, tf.string)})
        served = {name: value.numpy() for name, value in outputs.items()}
    except Exception as error:
        raise RefusedError(f"{where}: it cannot be run: {_in_a_line(error)}") from None
    for name, value in served.items():
        if value.shape[:1] != (batch,):
            raise RefusedError(f"{where}: {name} is {list(value.shape)}, not a row for each of {batch} images")
    rows = {name: value[:1] for name, value in served.items()}
    return {name: value.astype(np.bytes_) if value.dtype == object else value for name, value in rows.items()}


def _in_a_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:_REASON]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # nothing that a model left behind delays the end
