"""Program: loads a SavedModel as a server does, and compares its detections with the evaluator's.

The pusher starts it in a fresh interpreter before a push.  It imports TensorFlow and NumPy only, and keeps a
SavedModel from importing more, Cocoflow's own packages above all.

    serving_check.py SAVED_MODEL SERVING_SAMPLE IMAGES TOLERANCE RESULT

writes to RESULT a JSON object: `{"refused": reason}`, or `images`, `detections`, `unmatched`,
`max_difference` (by output) and `seconds` (`import`, `load` and `run`).
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

# Names as in `schemas.serving`, and in `detection.inference.serving_sample`.
_SIGNATURE, _IMAGES = "serving_default", "images"
_BOXES, _SCORES, _CLASSES, _COUNT = "detection_boxes", "detection_scores", "detection_classes", "num_detections"
_MASKS, _VALID = "detection_masks", "valid"
_TYPES = {_BOXES: ("float32", 3), _SCORES: ("float32", 2), _CLASSES: ("int64", 2), _COUNT: ("int32", 1)}

_EDGE_FRACTION = 0.05  # of a full list of detections that may differ: those whose scores are tied with the last one
_ROUNDING = 1e-6  # of scores
_MASK_FRACTION, _MASK_PIXELS = 0.02, 4  # pixels that may differ, of the union of two masks, and at least
_REASON = 300  # characters of TensorFlow's messages

_Outputs = dict[str, Any]  # arrays by the names of outputs


class RefusedError(Exception):
    """The model does not serve what was evaluated; the message says why."""


class OnlyTensorFlow(importlib.abc.MetaPathFinder):
    """Refuses imports: of our packages, and when closed of all that is neither loaded nor standard."""

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


def main(saved_model: str, sample: str, images: str, tolerance: str, result: str) -> None:
    """Runs the program."""
    guard = OnlyTensorFlow()
    sys.meta_path.insert(0, guard)
    start = time.monotonic()
    import tensorflow as tf

    guard.close()
    imported = round(time.monotonic() - start, 3)
    try:
        answer = compare(tf, saved_model, sample, images=int(images), tolerance=float(tolerance))
        answer["seconds"]["import"] = imported
    except RefusedError as refusal:
        answer = {"refused": str(refusal)}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(answer, file)


def compare(tf: Any, saved_model: str, sample: str, *, images: int, tolerance: float) -> dict[str, Any]:
    """Loads a SavedModel, runs it on images of a sample one by one, and compares its detections.

    Args:
        tf: TensorFlow.
        saved_model: local folder.
        sample: local file of `detection.inference.serving_sample`.
        images: number of images to compare, the first ones.
        tolerance: max difference of scores, corners as fractions of the image, and masks.

    Raises:
        RefusedError: the model does not load or run, or gives other detections.
    """
    start = time.monotonic()
    # The loaded object owns the variables of the signature.
    loaded, signature = _load(tf, saved_model)
    load = time.monotonic() - start
    comparison = Comparison(tolerance)
    with np.load(sample, allow_pickle=False) as archive:
        for number in range(images):
            _compare_image(tf, signature, _image(archive, number), comparison)
    del loaded
    run = time.monotonic() - start - load
    return comparison.result | {"seconds": {"load": round(load, 3), "run": round(run, 3)}}


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
    lacking = sorted(set(_TYPES) - set(signature.structured_outputs))
    if lacking:
        raise RefusedError(f"its signature {_SIGNATURE} lacks the output {', '.join(lacking)}")
    if _IMAGES not in signature.structured_input_signature[1]:
        raise RefusedError(f"its signature {_SIGNATURE} lacks the input {_IMAGES}")
    return loaded, signature


def _image(archive: Any, number: int) -> _Outputs:
    """The arrays of one image of the sample."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): archive[name] for name in archive.files if name.startswith(prefix)}


def _compare_image(tf: Any, signature: Any, image: _Outputs, comparison: "Comparison") -> None:
    """Runs the model on one image of the sample, and compares."""
    where = f"image {int(image.pop('id'))} ({image.pop('name').tobytes().decode()})"
    encoded = image.pop("encoded").tobytes()
    shape = signature.structured_input_signature[1][_IMAGES].shape
    batch = (shape[0] if shape.rank else None) or 1
    try:
        outputs = signature(**{_IMAGES: tf.constant([encoded] * batch, tf.string)})
        served = {name: value.numpy() for name, value in outputs.items()}
    except Exception as error:
        raise RefusedError(f"{where}: it cannot be run: {_in_a_line(error)}") from None
    count, slots = check_outputs(served, batch, where)
    missing = sorted(set(image) - set(served))
    if missing:
        raise RefusedError(f"{where}: the evaluator's model also gave {', '.join(missing)}")
    comparison.add(image, {name: served[name][0][:count] for name in image}, slots, where)


def check_outputs(served: _Outputs, batch: int, where: str) -> tuple[int, int]:
    """Requires detections of the documented types, without NaN, of the first image of a batch.

    Returns:
        The number of detections, and the most that the model gives.

    Raises:
        RefusedError: the outputs are no detections.
    """
    for name, (dtype, rank) in _TYPES.items():
        value = served[name]
        if value.dtype != dtype or value.ndim != rank or value.shape[0] != batch:
            raise RefusedError(
                f"{where}: {name} is {value.dtype} {list(value.shape)}, not {dtype} of rank {rank} for {batch} images"
            )
    slots = int(served[_BOXES].shape[1])
    shapes = {name: list(served[name].shape[1:]) for name in (_BOXES, _SCORES, _CLASSES)}
    if shapes != {_BOXES: [slots, 4], _SCORES: [slots], _CLASSES: [slots]}:
        raise RefusedError(f"{where}: the shapes of its outputs do not fit each other: {shapes}")
    count = int(served[_COUNT][0])
    if not 0 <= count <= slots:
        raise RefusedError(f"{where}: {_COUNT} is {count}, of at most {slots} detections")
    if _VALID in served and not served[_VALID][0]:
        raise RefusedError(f"{where}: it cannot decode the image, which the evaluator's model did")
    for name, value in served.items():
        if value.dtype.kind == "f" and value.ndim > 1 and not np.isfinite(value[0][:count]).all():
            raise RefusedError(f"{where}: {name} has NaN or infinity")
    return count, slots


class Comparison:
    """Differences between the evaluator's detections and the served ones.

    Args:
        tolerance: max difference of scores, of box corners, which are fractions of the image's
            sides, of keypoints and of mask probabilities.

    Attributes:
        result: numbers of images and detections compared so far, and the differences.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self.result: dict[str, Any] = {"images": 0, "detections": 0, "unmatched": 0, "max_difference": {}}

    def add(self, evaluated: _Outputs, served: _Outputs, slots: int, where: str) -> None:
        """Compares the detections of one image, whatever their order.

        Args:
            evaluated: rows of the evaluator's model by output.
            served: rows of the served model, of the same outputs.
            slots: the most detections that the model gives.
            where: the image, for messages.

        Raises:
            RefusedError: a detection without a counterpart of its class within the tolerance.
        """
        distance = _distances(evaluated, served)
        near = (distance <= self._tolerance) & (evaluated[_CLASSES][:, None] == served[_CLASSES][None, :])
        pairs = match(near, distance)
        first = {name: rows[pairs[:, 0]] for name, rows in evaluated.items()}
        second = {name: rows[pairs[:, 1]] for name, rows in served.items()}
        noise = float(np.abs(first[_SCORES] - second[_SCORES]).max(initial=0.0))
        lone = np.delete(np.arange(len(near)), pairs[:, 0]), np.delete(np.arange(near.shape[1]), pairs[:, 1])
        rounding = 2 * noise + _ROUNDING
        self._require_ties(evaluated, served, lone[0], slots=slots, rounding=rounding, where=where)
        self._require_ties(served, evaluated, lone[1], slots=slots, rounding=rounding, where=f"{where}, served")
        for name in evaluated:
            if name != _CLASSES:
                self._compare(name, first[name], second[name], where)
        self.result["images"] += 1
        self.result["detections"] += len(pairs)

    def _require_ties(
        self, own: _Outputs, other: _Outputs, alone: Any, *, slots: int, rounding: float, where: str
    ) -> None:
        """Requires that rows without a counterpart share the last place of a full list.

        A model gives its best detections only.  If the score of the last one is tied with others
        but for rounding, any of them may be missing.
        """
        if not len(alone):
            return
        scores = own[_SCORES]
        full = len(other[_SCORES]) == slots
        lowest = float(other[_SCORES].min()) + rounding if full and slots else -1.0
        best = alone[np.argmax(scores[alone])]
        if scores[best] > lowest or len(alone) > max(1, _EDGE_FRACTION * slots):
            raise RefusedError(
                f"{where}: {len(alone)} of {len(scores)} detections have no counterpart within {self._tolerance:g} "
                f"among the {len(other[_SCORES])} of the other model, such as one of class {int(own[_CLASSES][best])} "
                f"with score {float(scores[best]):.6f} at {[round(float(side), 4) for side in own[_BOXES][best]]}"
            )
        self.result["unmatched"] += len(alone)

    def _compare(self, name: str, evaluated: Any, served: Any, where: str) -> None:
        """Compares the matched rows of an output."""
        if evaluated.dtype.kind == "f":
            if evaluated.shape != served.shape:
                raise RefusedError(f"{where}: {name} is {list(served.shape)}, the evaluator's {list(evaluated.shape)}")
            difference = float(np.abs(evaluated.astype(np.float64) - served).max(initial=0.0))
            allowed = self._tolerance
        else:
            both = zip(evaluated, served, strict=True)
            difference = max((mask_difference(one, other, where) for one, other in both), default=0.0)
            allowed = _MASK_FRACTION
        if difference > allowed:
            raise RefusedError(f"{where}: {name} differs from the evaluator's by {difference:g}, more than {allowed:g}")
        differences = self.result["max_difference"]
        differences[name] = max(differences.get(name, 0.0), difference)


def _distances(evaluated: _Outputs, served: _Outputs) -> Any:
    """float64 [E, S]: the largest difference of score and corners of each pair."""
    scores = np.abs(evaluated[_SCORES][:, None].astype(np.float64) - served[_SCORES][None, :])
    corners = np.abs(evaluated[_BOXES][:, None].astype(np.float64) - served[_BOXES][None, :])
    return np.maximum(scores, corners.max(axis=2, initial=0.0))


def match(near: Any, distance: Any) -> Any:
    """Pairs as many rows as possible with columns, each at most once (augmenting paths).

    Args:
        near: bool [E, S], pairs that are allowed.
        distance: float [E, S]; nearer columns are tried first.

    Returns:
        int64 [P, 2]: row and column of each pair, by ascending row.
    """
    candidates = [
        sorted(np.flatnonzero(allowed).tolist(), key=costs.__getitem__)
        for allowed, costs in zip(near, distance, strict=True)
    ]
    row_of: dict[int, int] = {}
    for row in range(len(candidates)):
        _augment(row, candidates, row_of)
    return np.array(sorted((row, column) for column, row in row_of.items()), np.int64).reshape(-1, 2)


def _augment(start: int, candidates: list[list[int]], row_of: dict[int, int]) -> None:
    """Finds a column for a row, and moves other rows to other columns if need be."""
    reached_from: dict[int, int] = {}
    left: dict[int, int | None] = {start: None}  # row -> column that it leaves
    waiting = [start]
    while waiting:
        row = waiting.pop(0)
        for column in candidates[row]:
            if column in reached_from:
                continue
            reached_from[column] = row
            if column in row_of:
                left[row_of[column]] = column
                waiting.append(row_of[column])
                continue
            end: int | None = column
            while end is not None:
                row_of[end] = reached_from[end]
                end = left[reached_from[end]]
            return


def mask_difference(one: Any, other: Any, where: str) -> float:
    """Fraction of the union of two masks in which they differ; a few pixels count as none.

    Args:
        one: uint8 [H, W], or a compressed RLE.
        other: the same.
        where: the image, for messages.

    Raises:
        RefusedError: masks of different sizes.
    """
    first, second = (pixels_of_rle(mask) if isinstance(mask, bytes) else mask.astype(bool) for mask in (one, other))
    if first.shape != second.shape:
        raise RefusedError(f"{where}: {_MASKS} are {list(second.shape)}, the evaluator's {list(first.shape)}")
    different = int((first != second).sum())
    return different / int((first | second).sum()) if different > _MASK_PIXELS else 0.0


def pixels_of_rle(counts: bytes) -> Any:
    """Bool [H * W]: the pixels of COCO's compressed RLE, column by column."""
    runs: list[int] = []
    position = 0
    while position < len(counts):
        value, shift, more = 0, 0, True
        while more:
            byte = counts[position] - 48
            value |= (byte & 0x1F) << shift
            more = bool(byte & 0x20)
            position, shift = position + 1, shift + 5
        if byte & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def _in_a_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:_REASON]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # nothing that a model left behind delays the end
