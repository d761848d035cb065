"""The original's weights in our network give the original's outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.automl.checkpoint import automl_name
from detection.models.dense.detector import RawOutputs
from detection.models.efficientdet.model import EfficientDet
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.registry import build_detector
from detection.types import ImageInfo

SIDE = 128
IMAGE_SCALE = 1.5  # original pixel = input pixel * 1.5


@pytest.fixture(scope="module")
def expected(oracle_dir: Path) -> dict[str, np.ndarray]:
    with np.load(oracle_dir / "efficientdet_d0" / "outputs.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def detector(oracle_dir: Path) -> EfficientDet:
    reader = tf.train.load_checkpoint(str(oracle_dir / "efficientdet_d0" / "name_based" / "model.ckpt"))
    detector = build_detector("efficientdet-d0", num_classes=90, image_size=SIDE)
    for variable in detector.variables:
        variable.assign(reader.get_tensor(automl_name(variable.path) + "/ExponentialMovingAverage"))
    assert isinstance(detector, EfficientDet)
    return detector


@pytest.fixture(scope="module")
def outputs(detector: EfficientDet, expected: dict[str, np.ndarray]) -> RawOutputs:
    return detector(tf.constant(expected["image_normalised"]))


@pytest.mark.parametrize("level", range(3, 8))
def test_raw_outputs(outputs: RawOutputs, expected: dict[str, np.ndarray], level: int) -> None:
    np.testing.assert_allclose(outputs.class_logits[level - 3], expected[f"class_p{level}"], atol=1e-5)
    np.testing.assert_allclose(outputs.box_deltas[level - 3], expected[f"box_p{level}"], atol=1e-5)


@pytest.mark.parametrize("nms", ["hard", "gaussian"])
@pytest.mark.parametrize("scope", ["perclass", "global"])
def test_detections(
    detector: EfficientDet, outputs: RawOutputs, expected: dict[str, np.ndarray], nms: Any, scope: str
) -> None:
    options = BoxPostprocess(
        nms=nms,
        class_agnostic=scope == "global",
        one_class_per_anchor=True,  # the original's inference keeps all anchors, each with its best class
        pre_nms_top_k=20_000,
        score_threshold=0.05,
    )
    side = SIDE * IMAGE_SCALE
    detector.config = detector.config.model_copy(update={"postprocess": options})
    image_info = ImageInfo(original_size=tf.fill([1, 2], side), scale=tf.fill([1, 2], 1 / IMAGE_SCALE))
    detections = tf.function(detector.detect, autograph=False)(outputs, image_info)
    # The original's boxes reach beyond the image where classes compete apart; ours are cut, and dropped outside.
    cut = np.clip(expected[f"{scope}_{nms}_boxes"], 0, side)
    kept = (cut[..., 2:] > cut[..., :2]).all(axis=-1)
    count = int(kept.sum())
    assert 90 < count <= int(detections.num[0]) == expected[f"{scope}_{nms}_num"]
    np.testing.assert_allclose(detections.scores[:, :count], expected[f"{scope}_{nms}_scores"][kept][None], atol=1e-5)
    np.testing.assert_array_equal(detections.classes[:, :count] + 1, expected[f"{scope}_{nms}_classes"][kept][None])
    np.testing.assert_allclose(detections.boxes[:, :count] * side, cut[kept][None], atol=1e-3)
