"""The TF Object Detection API's CenterNets, imported: outputs, targets, losses, detections.

The numbers are those of the original code: `oracles/od_api/README.md`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.conversion.od_api import PIPELINE_CONFIG
from detection.conversion.programs import read_config_of
from detection.models.centernet.model import CenterNet, RawOutputs
from detection.models.centernet.targets import center_heatmap, centers_of
from detection.models.registry import detector_config
from detection.types import Labels
from detection.weights.imported_model import ImportedModel, import_model
from detection.weights.od_api_centernet import OD_API_CENTERNET
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.weights.od_api_oracle import Oracle, built, read_oracle

pytestmark = pytest.mark.slow

MODELS = {"centernet_resnet50_v1_fpn": "centernet-r50", "centernet_hourglass104": "centernet-hourglass-104"}
# Names of the heads in the original's predictions and losses.
HEADS = {"center": "object_center", "size": "box/scale", "offset": "box/offset"}


class Case(NamedTuple):
    """The imported model, and its outputs on the oracle's images."""

    model: ImportedModel
    detector: CenterNet
    outputs: RawOutputs
    oracle: Oracle

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.oracle.arrays

    @property
    def labels(self) -> Labels:
        return self.oracle.labels(weighted=True)._replace(sizes=self.oracle.image_sizes)


@pytest.fixture(
    scope="module",
    params=[
        "centernet_resnet50_v1_fpn",
        pytest.param("centernet_hourglass104", marks=pytest.mark.extended),  # a checkpoint of 0.8 GB
    ],
)
def case(request: pytest.FixtureRequest, oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    oracle = read_oracle(request.param, oracle_dir, tmp_path_factory.mktemp("od_api"))
    config = load_config(None, [f"model.name={MODELS[request.param]}", f"model.image_size={oracle.image_size}"])
    model = import_model(OD_API_CENTERNET, oracle.checkpoint, config)
    assert model.unused == ()
    detector = built(model)
    assert isinstance(detector, CenterNet)
    inputs = oracle.padded_pixels
    normalised = (inputs - np.array(detector.config.pixel_mean)) / np.array(detector.config.pixel_std)
    sample = oracle.arrays["preprocessed_sample"][..., ::-1]  # BGR
    np.testing.assert_allclose(normalised[:, ::16, ::16], sample, atol=1e-4)
    return Case(model, detector, detector(inputs), oracle)


def test_the_pipeline_config_gives_the_same_network(case: Case) -> None:
    path = Path(case.model.prefix).parents[1] / PIPELINE_CONFIG
    converted = read_config_of("od-api", str(path)).config(str(path)).model
    networks = [
        detector_config(
            model.name, image_size=model.image_size, overrides=model.overrides, postprocess=model.postprocess
        ).model_dump()
        for model in (converted, case.model.config.model)
    ]
    for network in networks:
        network["pixel_mean"], network["pixel_std"] = (
            np.round(network["pixel_mean"], 4),
            np.round(network["pixel_std"], 4),
        )
    np.testing.assert_equal(networks[0], networks[1])


def test_raw_predictions(case: Case) -> None:
    assert case.outputs.keys() == HEADS.keys()
    for head, outputs in case.outputs.items():
        name = HEADS[head].replace("/", "__")
        for number, output in enumerate(outputs):
            np.testing.assert_allclose(output, case.arrays[f"pred_{name}_{number}"], atol=1e-4, err_msg=head)


def test_targets(case: Case) -> None:
    config, size = case.detector.config, case.outputs["center"][0].shape[1:3]
    centers = centers_of(case.labels, stride=config.stride, size=tuple(size))
    heatmap = center_heatmap(
        centers, size=tuple(size), num_classes=case.detector.num_classes, min_iou=config.min_box_overlap_iou
    )
    np.testing.assert_allclose(heatmap, case.arrays["target_center_heatmap"], atol=1e-5)
    count = len(case.oracle.notes["ground_truth"]["boxes"])
    rows = case.arrays["target_box_indices"][:count]
    np.testing.assert_array_equal(centers.cells[0], rows[:, 1:])
    for found, name in ((centers.sizes, "size"), (centers.offsets, "offset"), (centers.weights, "weights")):
        np.testing.assert_allclose(found[0], case.arrays[f"target_box_{name}"][:count], atol=1e-5, err_msg=name)


def test_losses(case: Case) -> None:
    terms = case.detector.losses(case.outputs, case.labels)
    expected = case.oracle.notes["losses"]["loss"]
    assert {f"Loss/{HEADS[head]}": float(terms[f"{head}_loss"]) for head in HEADS} == pytest.approx(expected, rel=1e-4)


def test_detections(case: Case) -> None:
    case.oracle.require_same_detections(case.model, case.detector, case.outputs)


def test_prediction_from_image_files(case: Case, tmp_path: Path) -> None:
    case.oracle.require_predictions(case.model, tmp_path / "model")


@pytest.mark.parametrize("case", ["centernet_resnet50_v1_fpn"], indirect=True)
def test_other_networks_are_refused(case: Case, tmp_path: Path) -> None:
    deep, mobile = (
        load_config(None, [f"model.name=centernet-{name}", "model.image_size=64"]) for name in ("r101", "mobilenet-v2")
    )
    with pytest.raises(DataError, match="is of centernet-r50, not of centernet-r101"):
        import_model(OD_API_CENTERNET, case.oracle.checkpoint, deep)
    with pytest.raises(ConfigError, match="with resnet-50, resnet-101 or hourglass-104 can be imported"):
        import_model(OD_API_CENTERNET, case.oracle.checkpoint, mobile)
    layer = tf.train.Checkpoint(kernel=tf.Variable([1.0]))
    other = tf.train.Checkpoint(model=tf.train.Checkpoint(layer=layer)).write(str(tmp_path / "other"))
    with pytest.raises(DataError, match="not a checkpoint of a CenterNet with a ResNet v1 and an FPN or"):
        import_model(OD_API_CENTERNET, other, deep)
