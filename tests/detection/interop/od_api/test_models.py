"""Whole models of the TF Object Detection API, imported from checkpoints as in its zoo: outputs, losses, detections.

The numbers are those of the original code: `oracles/od_api/README.md`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.import_checkpoint import import_checkpoint
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat
from detection.interop.od_api.checkpoints.retinanet import RetinaNetFormat
from detection.interop.od_api.checkpoints.ssd import SsdFormat
from detection.interop.od_api.configuration.pipeline_config import PIPELINE_CONFIG
from detection.interop.programs import read_config_of
from detection.models.config import PyramidConfig
from detection.models.dense.detector import DenseDetector
from detection.models.efficientdet.config import EfficientDetConfig
from detection.models.heads.dense_losses import DenseLosses
from detection.models.heads.hard_examples import HardExampleMiner
from detection.models.registry import detector_config
from detection.ops.boxes import encode_yxyx
from detection.training.engine.variable_selection import decayed_variables
from detection.weights.checkpoint_format import CheckpointFormat
from detection.weights.imported_model import ImportedModel
from schemas.artifacts import CONFIG_YAML, LABELS_JSON
from schemas.config.config_io import load_config
from schemas.errors import ConfigError
from tests.detection.interop.od_api.oracle import BOX_SCALES, Oracle, import_and_build, read_oracle

pytestmark = pytest.mark.slow

# Folders of the oracle: our name and the reader of the checkpoint.
MODELS: dict[str, tuple[str, type[CheckpointFormat]]] = {
    "ssd_resnet50_v1_fpn": ("retinanet-r50", RetinaNetFormat),
    "ssd_mobilenet_v1_fpn": ("ssd-mobilenet-v1-fpn", RetinaNetFormat),
    "ssd_mobilenet_v2_fpnlite": ("ssd-mobilenet-v2-fpnlite", RetinaNetFormat),
    "ssd_mobilenet_v2": ("ssd-mobilenet-v2", SsdFormat),
    "ssd_efficientdet_d0": ("efficientdet-d0", EfficientDetFormat),
}


class Case(NamedTuple):
    """An imported model, and its outputs on the oracle's images."""

    model: ImportedModel
    detector: DenseDetector
    outputs: Any
    oracle: Oracle

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.oracle.arrays

    def by_anchor(self, values: np.ndarray) -> np.ndarray:
        """Reorders [B, A, ...] to the original's anchors of a cell: aspect ratio first."""
        config: Any = self.detector.config
        if not isinstance(config, PyramidConfig):
            return values
        order = np.arange(config.anchors.per_cell).reshape(config.anchors.num_scales, -1).T.ravel()
        return values.reshape(len(values), -1, len(order), *values.shape[2:])[:, :, order].reshape(values.shape)


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, program = MODELS[request.param]
    oracle = read_oracle(request.param, oracle_dir, tmp_path_factory.mktemp("od_api"))
    config = load_config(None, [f"model.name={name}", f"model.image_size={oracle.image_size}"])
    model, detector = import_and_build(program, oracle.checkpoint, config)
    assert isinstance(detector, DenseDetector)
    return Case(model, detector, detector(oracle.inputs(detector)), oracle)


def test_the_pipeline_config_gives_the_same_network(case: Case) -> None:
    path = Path(case.model.prefix).parents[1] / PIPELINE_CONFIG
    converted = read_config_of("od-api", str(path)).config(str(path))
    configs = [
        detector_config(
            model.name,
            image_size=model.image_size,
            resize=model.resize,
            overrides=model.overrides,
            postprocess=model.postprocess,
        )
        for model in (converted.model, case.model.config.model)
    ]
    networks = [config.model_dump() for config in configs]
    for network in networks:
        del network["batch_norm"]["momentum"]  # not the checkpoint's
    assert networks[0] == networks[1]
    assert converted.model.resize == case.model.config.model.resize
    np.testing.assert_array_equal(configs[0].anchors_yxyx(), case.detector.anchors)


def test_the_pipeline_config_regularises_as_many_kernels(case: Case) -> None:
    path = Path(case.model.prefix).parents[1] / PIPELINE_CONFIG
    train = read_config_of("od-api", str(path)).config(str(path)).train
    decayed = decayed_variables(
        case.detector.trainable_variables, train.optimizer.weight_decay_exclude, match=train.pattern_match
    )
    if not isinstance(case.detector.config, EfficientDetConfig):  # whose backbone has other kernels: update_rules.md
        assert len(decayed) == case.oracle.notes["losses"]["regularization_terms"]


@pytest.mark.parametrize("case", ["ssd_mobilenet_v2"], indirect=True)
def test_an_archive_is_imported_with_the_settings_of_its_pipeline_config(case: Case, tmp_path: Path) -> None:
    archive = Path(case.model.prefix).parents[1]
    flags = ["model.postprocess.max_detections=7"]
    import_checkpoint(
        program="od-api", checkpoint=str(archive), model=None, output=str(tmp_path / "model"), assignments=flags
    )
    model = load_config(tmp_path / "model" / CONFIG_YAML).model
    assert (model.name, model.image_size) == ("ssd-mobilenet-v2", (300, 300))
    expected = {"max_detections": 7, "score_threshold": 1e-8, "iou_threshold": 0.6}
    assert {key: model.postprocess[key] for key in expected} == expected
    assert len(json.loads((tmp_path / "model" / LABELS_JSON).read_text())) == 20


def test_raw_predictions(case: Case) -> None:
    step = case.oracle.notes.get("anchor_step", 1)
    named = ("box_encodings", "class_predictions_with_background")
    names = ("box_encodings_strided", "class_predictions_strided") if step > 1 else named
    their_boxes, their_logits = (case.arrays[name] for name in names)
    raw = case.detector.anchor_outputs(case.outputs)
    boxes = case.by_anchor(raw.deltas.numpy()) * BOX_SCALES
    np.testing.assert_allclose(boxes[:, ::step], their_boxes, atol=1e-4)
    logits = case.by_anchor(raw.logits.numpy())
    first = int(case.detector.config.loss.background_class)
    np.testing.assert_allclose(logits[:, ::step], their_logits[..., first:], atol=1e-4)
    [anchors] = case.by_anchor(case.detector.anchors[np.newaxis])
    np.testing.assert_allclose(anchors / np.tile(case.detector.image_size, 2), case.arrays["anchors"], atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_targets(*, case: Case, weighted: bool) -> None:
    suffix = "" if weighted else "_unweighted"
    targets = case.detector._dense_losses.assign(case.oracle.labels(weighted=weighted))
    positive = case.by_anchor(targets.positive.numpy())
    places = case.arrays[f"match_index{suffix}"]
    np.testing.assert_array_equal(np.argwhere(positive), places)
    rows = tuple(places.T)
    encoded = encode_yxyx(targets.boxes, tf.constant(case.detector.anchors)).numpy()
    found = case.by_anchor(encoded)[rows] * BOX_SCALES
    np.testing.assert_allclose(found, case.arrays[f"reg_targets{suffix}"], atol=1e-5)
    classes: np.ndarray = case.arrays[f"cls_targets{suffix}"] - case.detector.config.loss.background_class
    np.testing.assert_array_equal(case.by_anchor(targets.classes.numpy())[rows], classes)
    if weighted:
        assert targets.weights is not None
        weights = case.by_anchor(targets.weights.numpy())[rows]
        np.testing.assert_allclose(weights, case.arrays["reg_weights"])


@pytest.mark.parametrize(("weighted", "name"), [(True, "loss"), (False, "loss_unweighted")])
def test_losses(*, case: Case, weighted: bool, name: str) -> None:
    terms = case.detector.losses(case.outputs, case.oracle.labels(weighted=weighted))
    expected = case.oracle.notes["losses"][name]
    assert float(terms["box_loss"]) == pytest.approx(expected["Loss/localization_loss"], rel=1e-4)
    assert float(terms["class_loss"]) == pytest.approx(expected["Loss/classification_loss"], rel=1e-4)


SIGMOID = {"focal_alpha": None, "focal_gamma": 0.0}
# Variants of the losses in the notes, which replace messages of `loss`, as fields of `model.overrides.loss`.
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"class_loss": "softmax"},
    "sigmoid": SIGMOID,
    "sigmoid_miner_cls": SIGMOID
    | {
        "hard_example_miner": HardExampleMiner(
            num_hard_examples=3000,
            iou_threshold=0.99,
            loss_type="classification",
            max_negatives_per_positive=3,
            min_negatives_per_image=3,
        )
    },
    "sigmoid_miner_both": SIGMOID
    | {
        "class_loss_weight": 0.7,
        "box_loss_weight": 1.5,
        "hard_example_miner": HardExampleMiner(
            num_hard_examples=60, iou_threshold=0.7, max_negatives_per_positive=2, min_negatives_per_image=5
        ),
    },
    "loc_l2": {"box_loss": "l2"},
    "loc_smooth_l1_delta_0.1": {"huber_delta": 0.1},
    "focal_g1_no_alpha": {"focal_gamma": 1.0, "focal_alpha": None},
    "bootstrapped_soft": {"class_loss": "bootstrapped_sigmoid", "bootstrap_alpha": 0.8},
    "bootstrapped_hard": {"class_loss": "hard_bootstrapped_sigmoid", "bootstrap_alpha": 0.8},
    "softmax_against_logits": {"class_loss": "logits_softmax", "logit_scale": 2.0},
    "loc_iou": {"box_loss": "code_iou"},
    "loc_giou": {"box_loss": "code_giou"},
}


def test_other_losses(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = case.detector
    for name, expected in case.oracle.notes["losses"].items():
        if not name.startswith("variant_"):
            continue
        options = detector.config.loss.model_copy(update=VARIANTS[name.removeprefix("variant_")])
        matcher, anchors = detector.config.matcher, detector.anchors
        losses = DenseLosses(options, matcher, anchors=anchors, num_classes=detector.num_classes)
        monkeypatch.setattr(detector, "_dense_losses", losses)
        terms = detector.losses(case.outputs, case.oracle.labels(weighted=True))
        found = {"Loss/localization_loss": terms["box_loss"], "Loss/classification_loss": terms["class_loss"]}
        assert {key: float(value) for key, value in found.items()} == pytest.approx(expected["loss"], rel=1e-4), name


def test_detections(case: Case) -> None:
    case.oracle.require_same_detections(case.model, case.detector, case.outputs)


@pytest.mark.extended  # `Oracle.inputs` compares how images are resized, and the tests above all outputs
def test_prediction_from_image_files(case: Case, tmp_path: Path) -> None:
    case.oracle.require_predictions(case.model, tmp_path / "model")


def test_a_pyramid_of_another_layout_is_told_the_layout_not_its_own_name() -> None:
    config = detector_config("retinanet-r50")
    with pytest.raises(ConfigError, match=r"Pass --set model\.overrides\.dialect=od-api") as told:
        RetinaNetFormat.structures(config)
    assert "retinanet-r50" not in str(told.value)
    with pytest.raises(ConfigError, match=r"backbone\.name = resnet-18: .*Pass --model retinanet-r50"):
        RetinaNetFormat.structures(config.changed({"backbone": {"name": "resnet-18"}, "dialect": "od-api"}))
