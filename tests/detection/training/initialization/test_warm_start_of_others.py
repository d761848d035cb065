"""google/automl's own checkpoints of EfficientDet-D0, read by the names of their variables."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.training.initialization.warm_start import warm_start
from detection.training.initialization.weight_source import WeightSource
from schemas.config_io import from_yaml
from schemas.initialization import InitConfig

pytestmark = pytest.mark.slow

CATEGORIES = [{"id": number, "name": str(number)} for number in range(1, 91)]
PAGE = Path(__file__).parents[4] / "docs" / "initialization.md"


@pytest.fixture(scope="module")
def documented() -> InitConfig:
    """What the page says about these checkpoints."""
    [block] = re.findall(r"^```\n(train:\n.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return from_yaml(block).train.init


@pytest.fixture(scope="module")
def detector() -> Detector:
    return build_detector("efficientdet-d0", num_classes=90, image_size=128)


@pytest.mark.parametrize("kind", ["object_based/model", "name_based/model.ckpt"])
def test_the_whole_network_answers_as_the_original(
    oracle_dir: Path, detector: Detector, documented: InitConfig, kind: str
) -> None:
    for variable in detector.variables:
        variable.assign(tf.zeros_like(variable))
    source = WeightSource(oracle_dir / "efficientdet_d0" / kind, rename=documented.rename)
    done = warm_start(detector, source, categories=CATEGORIES, fine_tune_type=documented.fine_tune_type)
    assert len(done.plan.load) == len(detector.variables)
    assert done.plan.unused == ()
    with np.load(oracle_dir / "efficientdet_d0" / "outputs.npz") as expected:
        outputs = detector(tf.constant(expected["image_normalised"]))
        for level in range(3, 8):
            np.testing.assert_allclose(outputs.class_logits[level - 3], expected[f"class_p{level}"], atol=1e-5)
            np.testing.assert_allclose(outputs.box_codes[level - 3], expected[f"box_p{level}"], atol=1e-5)


def test_the_backbone_alone(oracle_dir: Path, detector: Detector, documented: InitConfig) -> None:
    for variable in detector.variables:
        variable.assign(tf.zeros_like(variable))
    folder = oracle_dir / "efficientdet_d0" / "object_based"
    source = WeightSource(folder, rename=documented.rename)
    done = warm_start(detector, source, categories=CATEGORIES, fine_tune_type="classification")
    assert len(done.plan.load) == len(detector.backbone_variables)
    reader = tf.train.load_checkpoint(str(folder))
    stem = reader.get_tensor("backbone/_stem/_conv_stem/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(detector.backbone.stem.conv.kernel.numpy(), stem)
    assert not any(variable.numpy().any() for variable in detector.fpn.variables)
