"""The TF Object Detection API's CenterNets, imported: outputs, targets, losses, detections.

The numbers are those of the original code: `oracles/od_api/README.md`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.interop.od_api.checkpoints.centernet import CenterNetFormat
from detection.interop.od_api.configuration.pipeline_config import PIPELINE_CONFIG
from detection.interop.programs import read_config_of
from detection.models.centernet.centers import center_heatmap, centers_of
from detection.models.centernet.keypoint_targets import PointTargets
from detection.models.centernet.model import CenterNet, RawOutputs
from detection.models.detector import Detector
from detection.models.registry import build_detector, detector_config
from detection.types import ImageInfo, Labels
from detection.weights.imported_model import ImportedModel, import_model
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.interop.od_api.oracle import Oracle, import_and_build, read_oracle
from tests.detection.interop.od_api.original_centernet import OdApiCenterNet, OdApiHourglass

pytestmark = pytest.mark.slow

KEYPOINTS = "centernet_mobilenetv2_fpn_kpts"
MODELS = {
    "centernet_resnet50_v1_fpn": "centernet-r50",
    KEYPOINTS: "centernet-mobilenet-v2-kpts",
    "centernet_hourglass104": "centernet-hourglass-104",
}
# Names of the heads in the original's predictions and losses.
HEADS = {"center": "object_center", "size": "box/scale", "offset": "box/offset"} | {
    f"keypoint_{head}": f"human_pose/keypoint/{head}" for head in ("heatmap", "offset", "regression")
}


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
        labels = self.oracle.labels(weighted=True)._replace(sizes=self.oracle.image_sizes)
        if "gt_keypoints" not in self.arrays:
            return labels
        points = self.arrays["gt_keypoints"] * np.array(self.oracle.image_size, np.float32)
        visible = np.isfinite(points[..., :1])
        keypoints = np.where(visible, np.concatenate([points, 2 * np.ones_like(points[..., :1])], axis=-1), 0)
        return labels._replace(keypoints=tf.constant(np.stack([keypoints, 0 * keypoints]), tf.float32))


@pytest.fixture(
    scope="module",
    params=[
        "centernet_resnet50_v1_fpn",
        KEYPOINTS,
        pytest.param("centernet_hourglass104", marks=pytest.mark.extended),  # a checkpoint of 0.8 GB
    ],
)
def case(request: pytest.FixtureRequest, oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    oracle = read_oracle(request.param, oracle_dir, tmp_path_factory.mktemp("od_api"))
    config = load_config(None, [f"model.name={MODELS[request.param]}", f"model.image_size={oracle.image_size}"])
    label_map = oracle_dir / "od_api" / request.param / "label_map.pbtxt"
    model, detector = import_and_build(
        CenterNetFormat, oracle.checkpoint, config, label_map if label_map.exists() else None
    )
    assert model.unused == ()
    assert isinstance(detector, CenterNet)
    return Case(model, detector, detector(oracle.inputs(detector, bgr=request.param != KEYPOINTS)), oracle)


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
    assert list(case.outputs) == list(HEADS)[: 6 if case.detector.config.keypoints else 3]
    for head, outputs in case.outputs.items():
        name = HEADS[head].replace("/", "__")
        for number, output in enumerate(outputs):
            np.testing.assert_allclose(output, case.arrays[f"pred_{name}_{number}"], atol=1e-4, err_msg=head)


def test_targets(case: Case) -> None:
    config, size = case.detector.config, case.outputs["center"][0].shape[1:3]
    centers = centers_of(case.labels, stride=config.stride, size=tuple(size))
    heatmap = center_heatmap(
        centers, size=tuple(size), num_classes=case.detector.num_classes, min_iou=config.loss.min_box_overlap_iou
    )
    np.testing.assert_allclose(heatmap, case.arrays["target_center_heatmap"], atol=1e-5)
    count = len(case.oracle.notes["ground_truth"]["boxes"])
    rows = case.arrays["target_box_indices"][:count]
    np.testing.assert_array_equal(centers.cells[0], rows[:, 1:])
    for found, name in ((centers.sizes, "size"), (centers.offsets, "offset"), (centers.weights, "weights")):
        np.testing.assert_allclose(found[0], case.arrays[f"target_box_{name}"][:count], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", [KEYPOINTS], indirect=True)
def test_targets_of_keypoints(case: Case) -> None:
    keypoints, labels, notes = case.detector.keypoints, case.labels, case.oracle.notes
    assert keypoints is not None
    targets = keypoints.targets(labels, centers_of(labels, stride=keypoints.stride, size=keypoints.size))
    np.testing.assert_allclose(targets.heatmap[0], case.arrays["target_kp_heatmap_image0"], atol=1e-5)
    shape = notes["kp_valid_mask"]["shape"]
    region = np.unpackbits(case.arrays["target_kp_valid_mask_packed"])[: np.prod(shape)].reshape(shape)
    np.testing.assert_array_equal(targets.region, region)
    assert targets.counts[0] == case.arrays["target_kp_num_instances"].sum()
    _require_points(case, "offset", targets.offsets)
    numbers = np.broadcast_to(np.arange(17), targets.regressions.weights.shape)[..., np.newaxis]
    cells = np.broadcast_to(targets.regressions.cells.numpy()[:, :, np.newaxis], (*numbers.shape[:-1], 2))
    _require_points(case, "regression", targets.regressions._replace(cells=np.concatenate([cells, numbers], axis=-1)))


def _require_points(case: Case, name: str, points: PointTargets) -> None:
    """Requires the rows with a weight, in any order."""
    weights = np.asarray(points.weights)
    found = np.concatenate(
        [
            np.argwhere(weights > 0)[:, :1],
            *(np.asarray(part)[weights > 0] for part in (points.cells, points.values)),
            weights[weights > 0][:, np.newaxis],
        ],
        axis=1,
    )
    parts = [case.arrays[f"target_kp_{name}_{part}"] for part in ("indices", "values", "weights")]
    expected = np.concatenate([*parts[:2], parts[2][:, np.newaxis]], axis=1)
    assert found.shape == expected.shape
    for rows in (found, expected):
        rows[:] = rows[np.lexsort(np.round(rows, 3).T)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_losses(case: Case) -> None:
    terms = case.detector.losses(case.outputs, case.labels)
    expected = case.oracle.notes["losses"]["loss"]
    found = {f"Loss/{HEADS[name.removesuffix('_loss')]}": float(loss) for name, loss in terms.items()}
    assert found == pytest.approx(expected, rel=1e-4)


def test_detections(case: Case) -> None:
    case.oracle.require_same_detections(case.model, case.detector, case.outputs)


@pytest.mark.parametrize("case", [KEYPOINTS], indirect=True)
def test_keypoints_of_detections(case: Case) -> None:
    found = case.detector.detect(case.outputs, ImageInfo(case.oracle.image_sizes, tf.ones([2, 2])))
    assert found.keypoints is not None
    for image in range(2):
        theirs = {
            name: case.arrays[f"post_detection_{name}"][image] for name in ("scores", "keypoints", "keypoint_scores")
        }
        nearest = np.abs(found.scores[image].numpy()[:, np.newaxis] - theirs["scores"]).argmin(axis=1)
        expected = np.concatenate([theirs["keypoints"], theirs["keypoint_scores"][..., np.newaxis]], axis=-1)[nearest]
        same = np.abs(found.keypoints[image] - expected).max(axis=(1, 2)) < 1e-3
        count = case.oracle.has_area(image).sum()
        assert same[:count].sum() >= 0.97 * count > 60


@pytest.mark.extended  # `Oracle.inputs` compares how images are resized, and the tests above all outputs
def test_prediction_from_image_files(case: Case, tmp_path: Path) -> None:
    case.oracle.require_predictions(case.model, tmp_path / "model")


@pytest.mark.parametrize("case", ["centernet_resnet50_v1_fpn"], indirect=True)
def test_other_networks_are_refused(case: Case) -> None:
    deep, small = (
        load_config(None, [f"model.name=centernet-{name}", "model.image_size=64"]) for name in ("r101", "nano")
    )
    with pytest.raises(DataError, match="is of centernet-r50, not of centernet-r101"):
        import_model(CenterNetFormat, case.oracle.checkpoint, deep)
    with pytest.raises(ConfigError, match=r"with resnet-18, resnet-34, resnet-50, resnet-101, .*hourglass-104 can be"):
        import_model(CenterNetFormat, case.oracle.checkpoint, small)


def test_a_resnet_18_and_heads_of_several_layers(tmp_path: Path) -> None:
    original = OdApiCenterNet()
    config = load_config(None, ["model.name=centernet-r18", "model.image_size=[96, 64]"])
    model, detector = import_and_build(CenterNetFormat, original.write(tmp_path / "ckpt-1"), config)
    assert {name.rpartition("/")[0] for name in model.unused} == {
        "model/_feature_extractor/_base_model/layer_with_weights-45"  # of the classifier
    }
    assert model.config.model.overrides["head"]["filters"] == 32
    assert model.config.model.overrides["head"]["convs"] == {"center": [(24, 5), (16, 3)], "offset": []}
    _require_same_outputs(detector, original)


def test_a_resnet_v2_with_transposed_convolutions(tmp_path: Path) -> None:
    original = OdApiCenterNet(v2=True)
    checkpoint = original.write(tmp_path / "ckpt-1")
    config = load_config(None, ["model.name=centernet-r50-v2", "model.image_size=[96, 64]"])
    model, detector = import_and_build(CenterNetFormat, checkpoint, config)
    assert {name.rpartition("/")[0] for name in model.unused} == {
        "model/_feature_extractor/_base_model/layer_with_weights-101"  # after the features
    }
    _require_same_outputs(detector, original)


def test_a_smaller_hourglass(tmp_path: Path) -> None:
    original = OdApiHourglass()
    config = load_config(None, ["model.name=centernet-hourglass-20", "model.image_size=[96, 64]"])
    model, detector = import_and_build(CenterNetFormat, original.write(tmp_path / "ckpt-1"), config)
    assert model.unused == ()
    _require_same_outputs(detector, original)


def _require_same_outputs(detector: Detector, original: OdApiCenterNet | OdApiHourglass) -> None:
    images = tf.random.stateless_uniform([2, 96, 64, 3], [3, 4], maxval=255.0)
    found = detector(images)
    for head, expected in original.outputs(images).items():
        [output] = found[next(ours for ours, theirs in HEADS.items() if theirs == head)]
        assert 0.1 < np.std(expected) < 10.0
        np.testing.assert_allclose(output, expected, atol=1e-4, err_msg=head)


@pytest.mark.parametrize("depth", [10, 32, 52])
def test_hourglasses_are_told_by_the_numbers_of_their_layers(depth: int) -> None:
    network = build_detector(f"centernet-hourglass-{depth}", num_classes=2, image_size=64)
    ours = {variable.path: tuple(variable.shape) for variable in network.variables}
    sources = CenterNetFormat({}, "").sources(ours, network.config)
    shapes = {one.names[0]: one.shapes[0] for one in sources.values()}
    assert CenterNetFormat(shapes, "").structure() == f"hourglass-{depth}"
