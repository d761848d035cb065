"""The TF Object Detection API's Faster R-CNN without an FPN, imported: outputs, proposals, losses, detections.

The numbers are those of the original code: `oracles/od_api/README.md`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.models.faster_rcnn import model as faster_rcnn
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.faster_rcnn.model import FasterRcnn, RawOutputs
from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.roi_targets import RoiTargets, relabel_rois
from detection.models.faster_rcnn.rpn import Proposals
from detection.types import Labels
from detection.weights.imported_model import ImportedModel, import_model
from schemas.config.config_io import load_config
from tests.detection.interop.od_api.oracle import BOX_SCALES, Oracle, import_and_build, read_oracle

pytestmark = pytest.mark.slow

PROPOSALS = 60  # of the oracle's configuration


class Case(NamedTuple):
    """The imported model, its outputs on the oracle's images, and its proposals."""

    model: ImportedModel
    detector: FasterRcnn
    outputs: RawOutputs
    proposals: Proposals
    oracle: Oracle

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.oracle.arrays

    def box_outputs(self) -> BoxHeadOutputs:
        """Of the original's proposals, padding included."""
        boxes = tf.constant(self.arrays["proposal_boxes"])
        return self.detector._box_outputs(self.detector._box_features(self.outputs, boxes), 0)


@pytest.fixture(scope="module")
def case(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    oracle = read_oracle("faster_rcnn_resnet50_v1", oracle_dir, tmp_path_factory.mktemp("od_api"))
    settings = [f"image_size={oracle.image_size}", f"overrides.rpn.test.post_nms_top_k={PROPOSALS}"]
    config = load_config(None, ["model.name=faster-rcnn-r50-c4", *(f"model.{setting}" for setting in settings)])
    model, detector = import_and_build(FasterRcnnFormat, oracle.checkpoint, config)
    assert model.unused == ()
    assert isinstance(detector, FasterRcnn)
    outputs = detector(oracle.inputs(detector))
    return Case(model, detector, outputs, detector._propose(outputs, oracle.image_sizes, training=False), oracle)


def test_raw_predictions(case: Case) -> None:
    [logits], [deltas] = case.outputs.rpn
    np.testing.assert_allclose(case.detector.anchors, case.arrays["anchors"], atol=1e-4)
    encoded = tf.reshape(deltas, [2, -1, 4]) * BOX_SCALES
    np.testing.assert_allclose(encoded, case.arrays["rpn_box_encodings"], atol=1e-4)
    background, score = np.moveaxis(case.arrays["rpn_objectness_predictions_with_background"], -1, 0)
    np.testing.assert_allclose(tf.reshape(logits, [2, -1]), score - background, atol=1e-4)
    outputs = case.box_outputs()
    classes = tf.reshape(outputs.class_logits, [2 * PROPOSALS, -1])
    np.testing.assert_allclose(classes, case.arrays["class_predictions_with_background"], atol=1e-4)
    boxes = tf.reshape(outputs.box_deltas, [2 * PROPOSALS, 1, 4])  # one for all classes
    np.testing.assert_allclose(boxes, case.arrays["refined_box_encodings"], atol=1e-4)


def test_proposals(case: Case) -> None:
    counts = case.arrays["num_proposals"]
    assert (counts < PROPOSALS).all(), "some are dropped, as they are outside of the image"
    for image, count in enumerate(counts):
        boxes = case.proposals.boxes[image].numpy()[case.proposals.valid[image]]
        np.testing.assert_allclose(boxes, case.arrays["proposal_boxes"][image, :count], atol=1e-3)


def test_losses(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original computed them without its samplers, and without objects among the proposals."""

    def all_proposals(config: FasterRcnnConfig, _: Proposals, labels: Labels, *, seed: tf.Tensor) -> RoiTargets:
        return relabel_rois(
            case.proposals.boxes,
            case.proposals.valid,
            labels,
            positive_threshold=config.roi.positive_iou,
            scale_factors=config.box_head.code_factors,
        )

    monkeypatch.setattr(faster_rcnn, "roi_targets", all_proposals)
    config = case.detector.config.changed({"rpn": {"sampling": {"count": len(case.detector.anchors)}}})
    monkeypatch.setattr(case.detector, "config", config)
    terms = case.detector.losses(case.outputs, case.oracle.labels(weighted=True))
    expected = case.oracle.notes["losses"]["loss"]
    names = {
        "rpn_box_loss": "Loss/RPNLoss/localization_loss",
        "rpn_score_loss": "Loss/RPNLoss/objectness_loss",
        "box_loss": "Loss/BoxClassifierLoss/localization_loss",
        "class_loss": "Loss/BoxClassifierLoss/classification_loss",
    }
    assert terms.keys() == names.keys()
    for name, value in terms.items():
        assert float(value) == pytest.approx(expected[names[name]], rel=1e-5), name


def test_detections(case: Case) -> None:
    case.oracle.require_same_detections(case.model, case.detector, case.outputs)


@pytest.mark.extended  # `Oracle.inputs` compares how images are resized, and the tests above all outputs
def test_prediction_from_image_files(case: Case, tmp_path: Path) -> None:
    case.oracle.require_predictions(case.model, tmp_path / "model")


def test_a_detector_with_an_fpn_gets_the_resnet_alone(case: Case) -> None:
    config = load_config(None, ["model.name=faster-rcnn-r50", "model.image_size=64"])
    model = import_model(FasterRcnnFormat, case.oracle.checkpoint, config)
    assert model.categories is None
    assert "Pass --model faster-rcnn-r50-c4" in model.differences[0]
    assert "architecture" not in model.config.model.overrides
    assert set(model.raw) == {path for path in case.model.raw if path.startswith("resnet-50/")}
