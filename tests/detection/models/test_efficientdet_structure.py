"""Parameter counts, names and shapes of the whole family."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.automl.checkpoint import automl_name
from detection.models.efficientdet.model import EfficientDet
from detection.models.registry import build_detector, detector_names

Oracles = dict[str, dict[str, Any]]

FAST = ["d0", "lite0"]
SLOW = ["d1", "d2", "d3", "d4", "d5", "d6", "d7", "d7x", "lite1", "lite2", "lite3", "lite3x", "lite4"]


def _elements(variables: list[Any]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


@pytest.fixture(scope="module")
def d0() -> EfficientDet:
    detector = build_detector("efficientdet-d0", num_classes=90)
    assert isinstance(detector, EfficientDet)
    return detector


def test_frozen_stages_neither_train_nor_follow_the_statistics() -> None:
    detector = build_detector(
        "efficientdet-nano",
        num_classes=3,
        image_size=64,
        overrides={"backbone": {"frozen_stages": 2}, "batch_norm": {"momentum": 0.5}},
    )
    assert isinstance(detector, EfficientDet)
    before = {variable.path: variable.numpy() for variable in detector.variables}
    frozen = {
        variable.path for stage in detector.backbone.stages[:2] for layer in stage for variable in layer.variables
    }
    assert not frozen & {variable.path for variable in detector.trainable_variables}
    detector(tf.random.stateless_uniform([2, 64, 64, 3], [1, 2], maxval=9.0), training=True)
    changed = {variable.path for variable in detector.variables if (variable.numpy() != before[variable.path]).any()}
    assert len(frozen) > 10
    assert not changed & frozen
    assert any("efficientnet-nano" in path for path in changed), "later stages do"


@pytest.mark.parametrize("size", FAST + [pytest.param(size, marks=pytest.mark.extended) for size in SLOW])
def test_parameter_counts(oracles: Oracles, size: str) -> None:
    expected = oracles[f"effdet.params.{size}"]["expected"]
    detector = build_detector(f"efficientdet-{size}", num_classes=90)
    assert isinstance(detector, EfficientDet)
    assert _elements(detector.trainable_variables) == expected["trainable"]
    assert _elements(detector.non_trainable_variables) == expected["non_trainable"]
    assert _elements(detector.backbone.trainable_variables) == expected["backbone_trainable"]
    extra = sum(_elements(layer.trainable_variables) for layer in detector.extra_levels)
    assert extra == expected["extra_levels_p6_up"]
    assert _elements(detector.fpn.trainable_variables) == expected["fpn_cells"]
    assert _elements(detector.fpn.cells[0].trainable_variables) == expected["fpn_first_cell"]
    assert _elements(detector.fpn.cells[1].trainable_variables) == expected["fpn_each_later_cell"]
    assert _elements(detector.class_net.trainable_variables) == expected["class_net"]
    assert _elements(detector.box_net.trainable_variables) == expected["box_net"]
    assert len(detector.backbone_variables) == len(detector.backbone.variables)


def test_the_lists_above_cover_the_family() -> None:
    sizes = {name.removeprefix("efficientdet-") for name in detector_names() if name.startswith("efficientdet-")}
    assert sizes == {*FAST, *SLOW, "nano"}


def test_other_class_counts(oracles: Oracles) -> None:
    oracle = oracles["effdet.params.d0_21_classes"]
    detector = build_detector("efficientdet-d0", num_classes=21)
    assert _elements(detector.trainable_variables) == oracle["expected"]["trainable"]


def test_names_and_shapes_are_the_originals(d0: EfficientDet, oracle_dir: Path) -> None:
    expected = json.loads((oracle_dir / "efficientdet_d0" / "variables.json").read_text())["variables"]
    assert {automl_name(variable.path): list(variable.shape) for variable in d0.variables} == expected


def test_variables_and_weight_decay_rule(d0: EfficientDet, oracles: Oracles) -> None:
    expected = oracles["effdet.vars.d0"]["expected"]
    decayed = [variable for variable in d0.trainable_variables if variable.path.endswith("kernel")]
    assert len(d0.variables) == expected["variables"]
    assert len(d0.trainable_variables) == expected["trainable"]
    assert len(decayed) == expected["l2_tensors"]
    assert _elements(decayed) == expected["l2_elements"]


def test_the_originals_freezing_patterns_fit(d0: EfficientDet, oracles: Oracles) -> None:
    oracle = oracles["effdet.freeze.d0"]
    for number, pattern in enumerate(oracle["inputs"]["patterns"]):
        left = [variable for variable in d0.trainable_variables if not re.match(pattern, variable.path)]
        assert len(left) == oracle["expected"]["remaining_tensors"][number]
        assert _elements(left) == oracle["expected"]["remaining_elements"][number]


def test_output_shapes(d0: EfficientDet, oracles: Oracles) -> None:
    expected = oracles["effdet.shapes.d0_512"]["expected"]
    outputs = d0(tf.zeros([1, 512, 512, 3]))
    assert [output.shape.as_list() for output in outputs.class_logits] == expected["class_outputs"]
    assert [output.shape.as_list() for output in outputs.box_deltas] == expected["box_outputs"]
    levels = d0.backbone(tf.zeros([1, 512, 512, 3]))
    features = oracles["effdet.backbone_feats.b0_512"]["expected"]
    assert [level.shape.as_list()[1:] for level in levels[2:]] == [features[name] for name in ("P3", "P4", "P5")]


def test_an_untrained_network_finds_every_class_unlikely(d0: EfficientDet, oracles: Oracles) -> None:
    bias = oracles["head.class_bias"]["expected"]["bias"]
    np.testing.assert_allclose(d0.class_net.predict.bias.numpy(), bias, rtol=1e-5)
    np.testing.assert_array_equal(d0.box_net.predict.bias.numpy(), 0.0)
