"""RetinaNet: the parameters of the original, and the place of its pyramid's batch norms.

`tests/detection/interop/od_api/test_models.py` compares the other layout with the original's outputs.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.registry import build_detector
from detection.models.retinanet.model import RetinaNet

Oracles = dict[str, dict[str, Any]]


def _elements(variables: Iterable[Any]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


@pytest.mark.parametrize("name", ["r50", pytest.param("r101", marks=pytest.mark.extended)])
def test_parameters_are_the_originals(name: str, oracles: Oracles) -> None:
    expected = dict(oracles["retinanet.params"]["expected"][name])
    detector = build_detector(f"retinanet-{name}", num_classes=90)
    assert _elements(detector.trainable_variables) == expected.pop("trainable")
    assert _elements(detector.variables) == expected.pop("total")
    for part, count in expected.items():
        assert _elements(getattr(detector, part).trainable_variables) == count, part


@pytest.mark.parametrize("max_level", [5, 6, 7])
def test_batch_norm_is_last(max_level: int) -> None:
    """Moving statistics turn a level of the pyramid into an affine function of what it is without them."""
    overrides = {"max_level": max_level, "neck": {"filters": 8}, "head": {"layers": 1}}
    detector = build_detector("retinanet-nano", num_classes=3, overrides=overrides)
    assert isinstance(detector, RetinaNet)
    fpn = detector.fpn
    random = np.random.default_rng(0)
    features = [
        tf.constant(random.normal(size=(1, 2**side, 2**side, width)), tf.float32)
        for side, width in zip((4, 3, 2), detector.backbone.level_filters[2:], strict=True)
    ]
    plain = [level.numpy() * np.sqrt(1.0 + fpn.norms[0].epsilon) for level in fpn(features)]
    assert len(plain) == len(fpn.norms) == max_level - 2
    for norm in fpn.norms:
        for variable in norm.variables:
            variable.assign(random.uniform(0.5, 2.0, variable.shape))
    for norm, level, inputs in zip(fpn.norms, fpn(features), plain, strict=True):
        mean, variance = norm.moving_mean.numpy(), norm.moving_variance.numpy()
        expected = norm.gamma.numpy() * (inputs - mean) / np.sqrt(variance + norm.epsilon) + norm.beta.numpy()
        np.testing.assert_allclose(level, expected, rtol=1e-4, atol=1e-4)
        assert (level.numpy() < 0).any(), "no activation"
