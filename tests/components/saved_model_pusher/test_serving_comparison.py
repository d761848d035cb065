"""The program that runs a served model, called in this process, and the comparison with the evaluated one."""

import itertools
import sys
import tempfile
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as pycocotools_mask

from components.saved_model_pusher import validate
from components.saved_model_pusher.serving_comparison import Comparison, DifferenceError, match
from components.saved_model_pusher.serving_program import OnlyTensorFlow, RefusedError, run
from schemas.errors import RefusedModelError
from schemas.serving import CLASSES, COUNT, SCORES
from tests.components.saved_model_pusher.served_models import evaluated_sample, sample_of
from tests.detection.fake_detector import FakeDetector, save_fake_detector
from tests.detection.mask_keypoint_data import save_model, write_data

TOLERANCE = 0.001
REFUSED = (RefusedError, RefusedModelError)  # by the program, by the comparison


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_detector(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return evaluated_sample(tmp_path_factory.mktemp("sample"), model, images=5)


def check(model: Path, sample: Path) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        assert set(run(tf, str(model), str(sample), images=5, outputs=folder)) == {"load", "run"}
        return validate._compare(sample, folder, images=5, tolerance=TOLERANCE, name="m")


def test_the_evaluated_model_gives_the_same_detections(model: Path, sample: Path) -> None:
    found = check(model, sample)
    assert (found.images, found.unmatched) == (5, 0)
    assert found.detections > 5
    assert found.max_difference == {"detection_boxes": 0.0, "detection_scores": 0.0}


def save_with_input(folder: Path, spec: tf.TensorSpec) -> None:
    """Saves the fake detector with another input."""
    module = FakeDetector()

    def serve(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = module.serve(encoded)
        return outputs

    signature = tf.function(serve).get_concrete_function(spec)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": signature})


def test_a_fixed_batch_size_is_filled(tmp_path: Path, sample: Path) -> None:
    save_with_input(tmp_path, tf.TensorSpec([3], tf.string, "images"))
    assert check(tmp_path, sample).detections > 5


@pytest.mark.parametrize("mask_output", ["crops", "pasted", "rle"])
def test_masks_and_keypoints_of_a_detector_are_compared(tmp_path: Path, mask_output: str) -> None:
    """Evaluated in batches of images of several sizes, served one by one."""
    model = save_model(tmp_path / "model", mask_output=mask_output)
    entries = write_data(tmp_path / "data", 5)["images"]
    sample = sample_of(tmp_path / "sample.npz", model, tmp_path / "data/val", entries)
    found = check(model, sample)
    assert found.detections > 3
    assert set(found.max_difference) == {
        "detection_boxes",
        "detection_scores",
        "detection_masks",
        "detection_keypoints",
    }
    assert max(found.max_difference.values()) < 1e-5
    other = save_fake_detector(tmp_path / "other")
    with pytest.raises(REFUSED, match="the evaluator's model also gave detection_keypoints, detection_masks"):
        check(other, sample)


def test_another_model_is_refused(tmp_path: Path, sample: Path) -> None:
    save_fake_detector(tmp_path, shift=1)
    with pytest.raises(REFUSED, match=r"image \d+ \(picture.*have no counterpart within 0\.001"):
        check(tmp_path, sample)


def test_other_category_ids_are_refused(tmp_path: Path, sample: Path) -> None:
    save_fake_detector(tmp_path, category_ids=(8, 3, 91))
    with pytest.raises(REFUSED, match="have no counterpart"):
        check(tmp_path, sample)


class Wrapped(tf.Module):
    """The fake detector with changed outputs."""

    def __init__(self, change: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]) -> None:
        super().__init__()
        self.inner = FakeDetector()
        self.change = change

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self.change(self.inner.serve(images))


def failing(outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    with tf.control_dependencies([tf.debugging.Assert(False, ["no such device"])]):
        return {name: tf.identity(value) for name, value in outputs.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one | {CLASSES: tf.cast(one[CLASSES], tf.float32)}, "detection_classes is float32 .* not int64"),
        (lambda one: one | {COUNT: one[COUNT][:, None]}, r"num_detections is int32 \[1, 1\], not"),
        (lambda one: one | {SCORES: one[SCORES] * np.nan}, "detection_scores has NaN or infinity"),
        (lambda one: one | {SCORES: one[SCORES][:, :2]}, "do not fit each other"),
        (lambda one: one | {COUNT: one[COUNT] + 99}, r"num_detections is \d+, of at most 6"),
        (lambda one: one | {"valid": tf.zeros(tf.shape(one[COUNT]), tf.bool)}, "cannot decode the image"),
        (lambda one: {name: one[name] for name in (SCORES, CLASSES, COUNT)}, "lacks the output detection_boxes"),
        (lambda one: {name: tf.repeat(rows, 2, axis=0) for name, rows in one.items()}, "not a row for each of 1 image"),
        (failing, "it cannot be run: InvalidArgumentError"),
    ],
    ids=["dtype", "rank", "NaN", "shapes", "number", "invalid", "lacking", "batch", "error"],
)  # fmt: skip
def test_what_is_no_detection_is_refused(change: Any, message: str, tmp_path: Path, sample: Path) -> None:
    module = Wrapped(change)
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.serve})
    with pytest.raises(REFUSED, match=message):
        check(tmp_path, sample)


def test_what_does_not_load_is_refused(tmp_path: Path, model: Path, sample: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "bare"))
    with pytest.raises(REFUSED, match=r"no signature serving_default, only \[\]"):
        check(tmp_path / "bare", sample)
    damaged = save_fake_detector(tmp_path / "damaged")
    (damaged / "variables/variables.index").write_bytes(b"")
    with pytest.raises(REFUSED, match="it does not load: "):
        check(damaged, sample)
    save_with_input(tmp_path / "input", tf.TensorSpec([None], tf.string, "files"))
    with pytest.raises(REFUSED, match="lacks the input images"):
        check(tmp_path / "input", sample)


def outputs(scores: list[float], boxes: Any = None, classes: Any = None, **more: Any) -> dict[str, Any]:
    count = len(scores)
    default = np.tile(np.linspace(0.1, 0.6, 4, dtype=np.float32), (count, 1)) + np.arange(count)[:, None] * 0.01
    return {
        "detection_scores": np.array(scores, np.float32),
        "detection_boxes": np.array(default if boxes is None else boxes, np.float32).reshape(count, 4),
        "detection_classes": np.array([1] * count if classes is None else classes, np.int64),
        **more,
    }


def differences(evaluated: dict[str, Any], served: dict[str, Any], slots: int = 100) -> Comparison:
    count = len(served[SCORES])
    filled = {
        name: np.concatenate([rows, np.zeros((slots - count, *rows.shape[1:]), rows.dtype)])[np.newaxis]
        for name, rows in served.items()
    }
    comparison = Comparison(TOLERANCE)
    comparison.add(evaluated, filled | {COUNT: np.array([count], np.int32)}, "image 1")
    return comparison


def test_near_ties_may_swap() -> None:
    first = outputs([0.9, 0.5, 0.4999])
    order = [0, 2, 1]
    second = {name: rows[order] for name, rows in first.items()}
    second["detection_scores"] = np.array([0.9, 0.5, 0.4999], np.float32)
    assert differences(first, second).detections == 3


@pytest.mark.parametrize(
    "served",
    [
        outputs([0.9, 0.5, 0.3]),
        outputs([0.9, 0.5]),
        outputs([0.9, 0.5, 0.4, 0.4]),
        outputs([0.9, 0.5, 0.4], classes=[1, 1, 2]),
        outputs([0.9, 0.5, 0.4], boxes=np.full((3, 4), 0.3)),
        outputs([]),
    ],
    ids=["score", "fewer", "more", "class", "boxes", "none"],
)
def test_a_difference_is_refused(served: dict[str, Any]) -> None:
    with pytest.raises(DifferenceError, match="have no counterpart within"):
        differences(outputs([0.9, 0.5, 0.4]), served)


def test_two_detections_need_two_counterparts() -> None:
    same = np.tile([[0.1, 0.1, 0.5, 0.5]], (2, 1))
    with pytest.raises(DifferenceError, match="1 of 2 detections have no counterpart"):
        differences(outputs([0.5, 0.5], same), outputs([0.5, 0.9], same))


def test_only_ties_with_the_last_place_of_a_full_list_may_be_lacking() -> None:
    scores = [0.9, *[0.2] * 99]
    first = outputs(scores)
    second = outputs(scores)
    second["detection_boxes"][99] = [0.0, 0.0, 0.9, 0.9]
    assert differences(first, second).unmatched == 2
    with pytest.raises(DifferenceError, match="1 of 100"):
        differences(first, second, slots=101)  # the list is not full
    second["detection_boxes"][90:99] = [0.0, 0.0, 0.9, 0.9]
    with pytest.raises(DifferenceError, match="10 of 100"):
        differences(first, second)
    third = outputs(scores)
    third["detection_boxes"][0] = [0.0, 0.0, 0.9, 0.9]
    with pytest.raises(DifferenceError, match=r"1 of 100 .* with score 0\.9"):
        differences(first, third)


def test_keypoints_and_mask_probabilities_are_compared() -> None:
    for name, shape in (("detection_keypoints", (2, 3, 3)), ("detection_masks", (2, 28, 28))):
        values = np.random.default_rng(0).random(shape).astype(np.float32)
        first = outputs([0.9, 0.5], **{name: values})
        near, far = values.copy(), values.copy()
        near[1, 2, 1] += 0.0005
        far[1, 2, 1] += 0.01
        assert differences(first, outputs([0.9, 0.5], **{name: near})).max_difference[name] == pytest.approx(
            5e-4, rel=1e-2
        )
        with pytest.raises(DifferenceError, match=f"{name} differs from the evaluator's by 0.0"):
            differences(first, outputs([0.9, 0.5], **{name: far}))
        with pytest.raises(DifferenceError, match=rf"{name} is \[2, "):
            differences(first, outputs([0.9, 0.5], **{name: values[:, :2]}))


def test_masks_of_pixels_are_compared_by_their_union() -> None:
    pixels = np.zeros((2, 40, 50), np.uint8)
    pixels[:, 5:35, 5:45] = 1
    near, far = pixels.copy(), pixels.copy()
    near[1, 5, 5:20] = 0
    far[1, 5:8] = 0
    first = outputs([0.9, 0.5], detection_masks=pixels)
    assert differences(first, outputs([0.9, 0.5], detection_masks=near)).max_difference["detection_masks"] < 0.02
    with pytest.raises(DifferenceError, match="detection_masks differs"):
        differences(first, outputs([0.9, 0.5], detection_masks=far))
    with pytest.raises(DifferenceError, match="detection_masks are"):
        differences(first, outputs([0.9, 0.5], detection_masks=near[:, :30]))

    def encoded(masks: Any) -> Any:
        return np.array([pycocotools_mask.encode(np.asfortranarray(one))["counts"] for one in masks])

    rle = outputs([0.9, 0.5], detection_masks=encoded(pixels))
    assert differences(rle, outputs([0.9, 0.5], detection_masks=encoded(near))).max_difference["detection_masks"] < 0.02
    with pytest.raises(DifferenceError, match="detection_masks differs"):
        differences(rle, outputs([0.9, 0.5], detection_masks=encoded(far)))


def test_an_invalid_rle_is_refused() -> None:
    counts = np.array([b"00", b"~"])
    with pytest.raises(DifferenceError, match="detection_masks has an invalid RLE: invalid character"):
        differences(outputs([0.9, 0.5], detection_masks=counts), outputs([0.9, 0.5], detection_masks=counts))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_a_matching_is_as_large_as_the_largest(rows: int, columns: int, seed: int) -> None:
    near = np.random.default_rng(seed).random((rows, columns)) < 0.4
    pairs = np.stack(match(near, np.random.default_rng(seed + 1).random((rows, columns))), axis=1)
    assert all(near[row, column] for row, column in pairs)
    assert len(set(pairs[:, 0])) == len(set(pairs[:, 1])) == len(pairs)
    small, large = (near, columns) if rows <= columns else (near.T, rows)
    orders = itertools.permutations(range(large), len(small))
    best = max((sum(small[row, column] for row, column in enumerate(order)) for order in orders), default=0)
    assert len(pairs) == best


def test_neither_our_packages_nor_later_ones_can_be_imported() -> None:
    program = OnlyTensorFlow()
    guard: MetaPathFinder = program
    for name in ("detection.inference.results", "components", "schemas.serving", "tfx.v1"):
        with pytest.raises(ModuleNotFoundError, match="a server has TensorFlow only"):
            guard.find_spec(name, None)
    assert guard.find_spec("surely_absent", None) is None
    program.close()
    assert "surely_absent" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="No module named 'surely_absent"):
        guard.find_spec("surely_absent.layers", None)
    assert guard.find_spec("json.decoder", None) is None
    assert guard.find_spec("tensorflow.python", None) is None
