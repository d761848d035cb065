"""HGNetV2 against the numbers of D-FINE's authors: parameters, and the features of weights by a rule."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.hgnet import HGNETS, HGNetV2
from detection.models.registry import build_detector

# Without and with the scales and offsets after activations; of the network without its classifier.
PARAMETERS = {
    "hgnetv2-b0": (1_850_336, 1_850_396),
    "hgnetv2-b1": (2_196_944, 2_197_004),
    "hgnetv2-b2": (6_026_544, 6_026_626),
    "hgnetv2-b3": (10_048_816, 10_048_910),
    "hgnetv2-b4": (13_553_376, 13_553_482),
    "hgnetv2-b5": (33_325_760, 33_325_930),
}
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}
_PARTS = {
    "conv.weight": ("conv2d/kernel", "depthwise_conv2d/kernel"),
    "bn.weight": ("batch_normalization/gamma",),
    "bn.bias": ("batch_normalization/beta",),
    "bn.running_mean": ("batch_normalization/moving_mean",),
    "bn.running_var": ("batch_normalization/moving_variance",),
    "lab.scale": ("scale",),
    "lab.bias": ("offset",),
}


def _backbone(name: str, **changes: Any) -> HGNetV2:
    backbone = HGNetV2(spec=HGNETS[name]._replace(**changes), batch_norm=BATCH_NORM, name=name)
    backbone.build((None, None, None, 3))
    return backbone


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_originals(name: str) -> None:
    for affine, expected in zip((False, True), PARAMETERS[name], strict=True):
        variables = _backbone(name, affine=affine).trainable_variables
        assert sum(int(np.prod(variable.shape)) for variable in variables) == expected


@pytest.fixture(scope="module")
def rule(oracle_dir: Path) -> ModuleType:
    """The program that computes the weights and the images of the oracle from names and seeds."""
    path = oracle_dir / "dfine" / "make_weights.py"
    spec = importlib.util.spec_from_file_location("make_weights", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ours(name: str) -> list[str]:
    """Paths that a variable of the authors may have here."""
    module, part = name.removeprefix("backbone.").rsplit(".", 2)[0], ".".join(name.rsplit(".", 2)[1:])
    module = re.sub(r"stem\.stem(\w+)", r"stem_\1", module)
    module = re.sub(r"stages\.(\d)\.", lambda match: f"stage_{int(match[1]) + 1}_", module)
    module = re.sub(r"blocks\.(\d)\.", lambda match: f"block_{int(match[1]) + 1}/", module)
    module = re.sub(r"layers\.(\d)", lambda match: f"layer_{int(match[1]) + 1}", module)
    module = module.replace(".conv1", "_pointwise").replace(".conv2", "_depthwise")
    module = module.replace("aggregation.0", "squeeze").replace("aggregation.1", "excite")
    return [f"hgnetv2-b0/{module}/{end}" for end in _PARTS[part]]


@pytest.mark.parametrize("case", ["n256_eval", "n192x320_eval"])
def test_features_equal_the_authors(case: str, rule: ModuleType, oracle_dir: Path) -> None:
    folder = oracle_dir / "dfine"
    backbone = _backbone("hgnetv2-b0")
    variables = {variable.path: variable for variable in backbone.variables}
    meta = json.loads((folder / "variables_n80.json").read_text())
    rows = [row for row in meta["variables"] if row[0].startswith("backbone.") and "num_batches" not in row[0]]
    assert len(rows) == len(variables)
    for name, shape, _ in rows:
        value = rule.rule(name, tuple(shape), meta)
        variable = next(variables[path] for path in _ours(name) if path in variables)
        if value.ndim == 4:
            value = value.transpose(2, 3, 0, 1) if "depthwise_conv2d" in variable.path else value.transpose(2, 3, 1, 0)
        variable.assign(value)
    with np.load(folder / f"{case}.npz") as arrays:
        of_case = json.loads(str(arrays["case"]))
        images = rule.image(*(of_case[key] for key in ("image_seed", "batch", "height", "width")))
        levels = backbone(tf.constant(images))
        for number, level in enumerate(levels[1:]):
            name = f"backbone.stages.{number}"
            step = int(arrays[f"stats/{name}"][-1])
            expected = arrays[f"sample/{name}"]
            assert len(expected) > 50
            np.testing.assert_allclose(np.reshape(level, -1)[::step], expected, atol=1e-4, rtol=1e-4)


def test_levels_halve_rounding_up_and_stages_have_all_layers() -> None:
    backbone = _backbone("hgnetv2-b0")
    levels = backbone(tf.zeros([1, 50, 33, 3]))
    assert [level.shape.as_list()[1:3] for level in levels] == [[25, 17], [13, 9], [7, 5], [4, 3], [2, 2]]
    assert [level.shape[3] for level in levels] == backbone.level_filters == [32, 64, 256, 512, 1024]
    paths = {variable.path for stage in backbone.stages for layer in stage for variable in layer.variables}
    assert paths == {variable.path for variable in backbone.variables}


@pytest.mark.parametrize("name", ["retinanet-r50", "faster-rcnn-r50"])
def test_it_is_a_backbone_of_other_detectors(name: str) -> None:
    overrides = {"backbone": {"name": "hgnetv2-b0", "frozen_stages": 2}}
    detector = build_detector(name, num_classes=2, image_size=64, overrides=overrides)
    trainable = {variable.path for variable in detector.trainable_variables if variable.path.startswith("hgnetv2-b0")}
    assert trainable
    assert not any("stem" in path or "stage_1" in path for path in trainable)
    detector(tf.zeros([1, 64, 64, 3]))
