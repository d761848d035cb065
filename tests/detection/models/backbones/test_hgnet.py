"""HGNetV2 against the numbers of D-FINE's authors: parameters, and the features of weights by a rule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.hgnet import HGNETS, HGNetV2
from detection.models.registry import build_detector
from schemas.errors import ConfigError
from tests.detection.models.dfine import original

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


def _backbone(name: str, **changes: Any) -> HGNetV2:
    backbone = HGNetV2(spec=HGNETS[name]._replace(**changes), batch_norm=BATCH_NORM, name=name)
    backbone.build((None, None, None, 3))
    return backbone


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_equal_the_originals(name: str) -> None:
    for affine, expected in zip((False, True), PARAMETERS[name], strict=True):
        variables = _backbone(name, affine=affine).trainable_variables
        assert sum(int(np.prod(variable.shape)) for variable in variables) == expected


@pytest.mark.parametrize("case", ["n256_eval", "n192x320_eval"])
def test_features_equal_the_authors(case: str, oracle_dir: Path) -> None:
    backbone = _backbone("hgnetv2-b0")
    values = original.weights(oracle_dir / "dfine", "variables_n80.json")
    for variable in backbone.variables:
        variable.assign(values[variable.path])
    _, arrays, images = original.read_case(oracle_dir / "dfine", case)
    for number, level in enumerate(backbone(tf.constant(images))[1:]):
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


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"name": "hourglass-10"}, "backbone.name = 'hourglass-10': not for this detector. Choose from .*hgnetv2-b0"),
        ({"name": "hgnetv2-b0", "layout": "tpu"}, "hgnetv2-b0 has no layout = tpu"),
        ({"name": "resnet-50-v2", "layout": "tpu"}, "resnet-50-v2 has no layout = tpu"),
    ],
)
def test_options_that_a_backbone_does_not_have_are_refused(backbone: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_detector("retinanet-r50", num_classes=2, image_size=64, overrides={"backbone": backbone})
