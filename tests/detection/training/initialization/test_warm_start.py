"""What a warm start takes over, into a small EfficientDet, from checkpoints whose values are numbered by hand."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.training.initialization.initialize import InitReport
from detection.training.initialization.warm_start import WarmStart, warm_start
from detection.weights.weight_source import WeightSource
from schemas.artifacts import LABELS_JSON
from schemas.errors import ConfigError, DataError

OURS = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}, {"id": 3, "name": "cow"}]
ANCHORS = 9
CLASS_KERNEL, CLASS_BIAS = "class_net/class-predict/pointwise_kernel", "class_net/class-predict/bias"


def _detector(num_classes: int = 3, filters: int = 8) -> Detector:
    keras.utils.set_random_seed(0)
    overrides = {"neck": {"filters": filters, "cells": 1}, "head": {"layers": 1}, "min_level": 4}
    return build_detector("efficientdet-nano", num_classes=num_classes, image_size=64, overrides=overrides)


@pytest.fixture(scope="module")
def built() -> tuple[Detector, dict[str, np.ndarray]]:
    detector = _detector()
    return detector, {variable.path: variable.numpy() for variable in detector.variables}


@pytest.fixture
def detector(built: tuple[Detector, dict[str, np.ndarray]]) -> Detector:
    """With its fresh values."""
    for variable in built[0].variables:
        variable.assign(built[1][variable.path])
    return built[0]


@pytest.fixture
def fresh(built: tuple[Detector, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return built[1]


def _numbered(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Values of which no two are alike."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    numbers = np.split(np.arange(ends[-1], dtype=np.float32), ends[:-1])
    return {name: values.reshape(shape) for (name, shape), values in zip(shapes.items(), numbers, strict=True)}


@pytest.fixture
def source_values(fresh: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return _numbered({path: value.shape for path, value in fresh.items()})


Write = Callable[..., WeightSource]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(values: dict[str, np.ndarray], categories: list[dict[str, Any]] | None = None) -> WeightSource:
        model = {name: tf.Variable(value) for name, value in values.items()}
        path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt-5"))
        if categories is not None:
            (tmp_path / LABELS_JSON).write_text(json.dumps(categories))
        return WeightSource(path)

    return write


def _start(detector: Detector, source: WeightSource, fine_tune_type: Any = "full", **options: Any) -> WarmStart:
    done = warm_start(detector, source, categories=OURS, fine_tune_type=fine_tune_type, **options)
    plan = done.plan
    told = [*plan.load, *plan.skipped, *plan.mismatched, *plan.missing]
    assert sorted(told) == sorted(variable.path for variable in detector.variables), "each variable once"
    return done


def _assert_values(detector: Detector, expected: Mapping[str, np.ndarray]) -> None:
    for variable in detector.variables:
        np.testing.assert_array_equal(variable.numpy(), expected[variable.path], err_msg=variable.path)


@pytest.mark.parametrize("fine_tune_type", ["full", "detection"])
def test_of_the_same_categories_nothing_is_lost(
    detector: Detector, source_values: dict[str, np.ndarray], write: Write, fine_tune_type: str
) -> None:
    done = _start(detector, write(source_values, OURS), fine_tune_type)
    _assert_values(detector, source_values)
    assert (done.plan.unused, done.new_categories, done.ema) == ((), (), 0)


def test_rows_of_classes_follow_their_categories(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    """The source knows horse, dog, cat and bird, in this order."""
    theirs = [{"id": number, "name": name} for number, name in enumerate(["horse", "dog", "cat", "bird"])]
    shapes = {path: value.shape for path, value in fresh.items()}
    wider = {path: (*shapes[path][:-1], ANCHORS * 4) for path in (CLASS_KERNEL, CLASS_BIAS)}
    values = source_values | {name: value + 0.5 for name, value in _numbered(wider).items()}

    done = _start(detector, write(values, theirs), "detection")

    expected = dict(source_values)
    for path in wider:
        rows = fresh[path].reshape(-1, ANCHORS, 3).copy()
        there = values[path].reshape(-1, ANCHORS, 4)
        rows[..., 0], rows[..., 1] = there[..., 2], there[..., 1]
        expected[path] = rows.reshape(fresh[path].shape)
    _assert_values(detector, expected)
    assert done.new_categories == ("cow",)


def test_full_needs_the_same_categories(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    swapped = [OURS[1], OURS[0], OURS[2]]
    _start(detector, write(source_values, swapped), "full")
    bias = source_values[CLASS_BIAS].reshape(ANCHORS, 3)[:, [1, 0, 2]].ravel()
    np.testing.assert_array_equal(detector.class_net.predict.bias.numpy(), bias)

    other = write(source_values, [OURS[0], OURS[1], {"id": 3, "name": "goat"}])
    with pytest.raises(
        DataError,
        match=r"full requires equal categories; only in the data set: cow; only in the checkpoint: goat\. Set",
    ):
        _start(detector, other, "full")
    assert set(_start(detector, other, "full", skip=["class_net/class-predict"]).plan.skipped.values()) == {
        "class_net/class-predict"
    }
    assert _start(detector, other, "full", skip_mismatch=True).new_categories == ("cow",)


def test_classes_of_a_source_that_tells_no_categories(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    source = write(source_values)
    done = _start(detector, source, "detection")
    _assert_values(detector, source_values | {path: fresh[path] for path in (CLASS_KERNEL, CLASS_BIAS)})
    assert done.plan.skipped == dict.fromkeys(
        (CLASS_KERNEL, CLASS_BIAS), "fine_tune_type=detection: the source has no categories"
    )
    assert done.new_categories == ("cat", "dog", "cow")
    _start(detector, source, "full")
    _assert_values(detector, source_values)


@pytest.mark.parametrize("count", [90, 91])
def test_as_many_classes_as_coco_has_ids_are_coco_s(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write, count: int
) -> None:
    """Cat, dog and cow have the ids 17, 18 and 21; of 91 classes the first is background, of 90 it is id 1."""
    places = np.array([17, 18, 21]) - (91 - count)
    wider = {path: (*fresh[path].shape[:-1], ANCHORS * count) for path in (CLASS_KERNEL, CLASS_BIAS)}
    values = source_values | _numbered(wider)
    done = _start(detector, write(values), "detection")
    expected = dict(source_values)
    for path in wider:
        there = values[path].reshape(-1, ANCHORS, count)
        expected[path] = there[..., places].reshape(fresh[path].shape)
    _assert_values(detector, expected)
    assert done.coco_ids
    assert "assumed to be COCO's ids" in str(InitReport(None, done, ()))
    with pytest.raises(
        DataError,
        match="full requires equal categories; only in the data set: none; only in the checkpoint: person, bicyc",
    ):
        _start(detector, write(values), "full")


def test_without_a_category_in_common_class_outputs_are_fresh(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    source = write(source_values, [{"id": number, "name": f"screw {number}"} for number in (1, 2, 3)])
    done = _start(detector, source, "detection")
    _assert_values(detector, source_values | {path: fresh[path] for path in (CLASS_KERNEL, CLASS_BIAS)})
    assert set(done.plan.skipped.values()) == {"fine_tune_type=detection: no category in common"}


def test_classification_takes_the_backbone_alone(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    backbone = {path: value for path, value in source_values.items() if path.startswith("efficientnet-nano/")}
    top = {"top/kernel": np.array([1.0], np.float32)}
    done = _start(detector, write(backbone | top), "classification")
    _assert_values(detector, fresh | backbone)
    assert done.plan.load.keys() == backbone.keys()
    assert set(done.plan.skipped.values()) == {"fine_tune_type=classification"}
    assert done.plan.unused == ("top/kernel",)


def test_skipped_variables_stay_and_name_their_rule(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    done = _start(detector, write(source_values, OURS), skip=["box_net", ".*/gamma", "box_net/box-predict"])
    skipped = {path for path in fresh if path.startswith("box_net") or path.endswith("gamma")}
    _assert_values(detector, source_values | {path: fresh[path] for path in skipped})
    assert done.plan.skipped.keys() == skipped
    assert done.plan.skipped["box_net/box-predict/bias"] == "box_net"
    assert done.plan.skipped["class_net/class-0-bn-4/gamma"] == ".*/gamma"
    assert set(done.plan.unused) == skipped
    with pytest.raises(ConfigError, match=r"train\.init\.skip: 'top' matches no variable; an example of a path"):
        _start(detector, write(source_values), skip=["top"])
    with pytest.raises(ConfigError, match=r"train\.init\.skip: '_net' matches no variable from the start of its path"):
        _start(detector, write(source_values), skip=["_net"])
    anywhere = _start(detector, write(source_values), skip=["_net"], match="anywhere")
    assert anywhere.plan.skipped.keys() == {path for path in fresh if path.startswith(("box_net", "class_net"))}


def test_another_shape_is_an_error_unless_it_may_be_passed_over(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    path = "box_net/box-predict/bias"
    source = write(source_values | {path: np.zeros(7, np.float32)}, OURS)
    with pytest.raises(DataError, match=rf"1 variable\(s\) have another shape, the first is {path}: \[36\] in the"):
        _start(detector, source)
    _assert_values(detector, fresh)
    done = _start(detector, source, skip_mismatch=True)
    _assert_values(detector, source_values | {path: fresh[path]})
    assert done.plan.mismatched == {path: ((36,), (7,))}


def test_a_missing_variable_is_an_error_unless_it_may_be_passed_over(
    detector: Detector, fresh: dict[str, np.ndarray], source_values: dict[str, np.ndarray], write: Write
) -> None:
    path = "box_net/box-predict/bias"
    values = {("old/bias" if name == path else name): value for name, value in source_values.items()}
    source = write(values, OURS)
    with pytest.raises(DataError, match=rf"1 variable\(s\) are missing, the first is {path}; unused are old/bias"):
        _start(detector, source)
    done = _start(detector, source, skip_mismatch=True)
    _assert_values(detector, source_values | {path: fresh[path]})
    assert (done.plan.missing, done.plan.unused) == ((path,), ("old/bias",))


def test_loading_nothing_is_an_error(detector: Detector, fresh: dict[str, np.ndarray], write: Write) -> None:
    source = write({"elsewhere/kernel": np.array([1.0], np.float32)}, OURS)
    with pytest.raises(
        DataError, match=r"no weights would be loaded: .*like box_net/.*, the checkpoint's like elsewhere/"
    ):
        _start(detector, source, skip_mismatch=True)
    with pytest.raises(DataError, match="no weights would be loaded"):
        _start(detector, source, skip=[".*"])
    _assert_values(detector, fresh)
