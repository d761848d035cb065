"""google/automl's own checkpoints of EfficientDet-D0, imported, and read by the names of their variables."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.datasets.annotations.coco_categories import COCO_CATEGORIES
from detection.interop.automl.checkpoint import AutomlFormat
from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.training.initialization.warm_start import warm_start
from detection.weights.imported_model import import_model, write_model
from detection.weights.weight_source import WeightSource
from schemas.config.config_io import from_yaml, load_config
from schemas.config.train.initialization import InitConfig
from schemas.errors import DataError

pytestmark = pytest.mark.slow

CATEGORIES = [{"id": number, "name": str(number)} for number in range(1, 91)]
PAGE = Path(__file__).parents[4] / "docs" / "initialization.md"


@pytest.fixture(scope="module")
def documented() -> InitConfig:
    """What the page says about these checkpoints."""
    [block] = re.findall(r"^```\n(train:\n.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return from_yaml(block).train.init


@pytest.fixture(scope="module")
def imported(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder that the page recommends, of the TF1 checkpoint."""
    folder = tmp_path_factory.mktemp("imported")
    config = load_config(None, ["model.name=efficientdet-d0", "model.image_size=128"])
    write_model(import_model(AutomlFormat, oracle_dir / "efficientdet_d0" / "name_based", config), folder)
    return folder


@pytest.fixture(scope="module")
def coco_detector() -> Detector:
    return build_detector("efficientdet-d0", num_classes=80, image_size=128)


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
            np.testing.assert_allclose(outputs.box_deltas[level - 3], expected[f"box_p{level}"], atol=1e-5)


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


def _coco(shared_data: Path) -> list[dict[str, Any]]:
    """COCO's 80 categories from its own file: the reference of the built-in list."""
    return list(json.loads((shared_data / "coco2017_ccby" / "instances_train.json").read_text())["categories"])


def test_the_built_in_list_is_that_of_coco_s_own_file(shared_data: Path) -> None:
    assert {category["id"]: category["name"] for category in _coco(shared_data)} == COCO_CATEGORIES
    assert list(COCO_CATEGORIES) == sorted(COCO_CATEGORIES)


def _rows(reader: Any, name: str) -> np.ndarray:
    """The checkpoint's class outputs as [..., anchors, category id - 1], the averaged weights."""
    values = reader.get_tensor(f"class_net/class-predict/{name}/ExponentialMovingAverage")
    return values.reshape(*values.shape[:-1], 9, 90)


@pytest.mark.parametrize("kind", ["imported", "object_based/model"])
@pytest.mark.parametrize("fine_tune_type", ["full", "detection"])
def test_the_recipe_on_coco_s_80_categories(
    oracle_dir: Path,
    shared_data: Path,
    documented: InitConfig,
    imported: Path,
    coco_detector: Detector,
    *,
    kind: str,
    fine_tune_type: Any,
) -> None:
    """In another order than the file's, since rows follow names."""
    coco = _coco(shared_data)[::-1]
    reader = tf.train.load_checkpoint(str(oracle_dir / "efficientdet_d0" / "name_based" / "model.ckpt"))
    detector = coco_detector
    for variable in detector.variables:
        variable.assign(tf.zeros_like(variable))
    if kind == "imported":
        source = WeightSource(imported)
    else:
        source = WeightSource(oracle_dir / "efficientdet_d0" / kind, rename=documented.rename)
    done = warm_start(detector, source, categories=coco, fine_tune_type=fine_tune_type)
    assert (len(done.plan.load), done.new_categories) == (len(detector.variables), ())
    assert done.coco_ids == (kind != "imported"), "an imported model has its categories with it"
    predict = detector.class_net.predict
    for variable, name in ((predict.pointwise_kernel, "pointwise_kernel"), (predict.bias, "bias")):
        ours = variable.numpy().reshape(*variable.shape[:-1], 9, 80)
        for place, category in enumerate(coco):
            np.testing.assert_array_equal(ours[..., place], _rows(reader, name)[..., category["id"] - 1])


@pytest.mark.parametrize("kind", ["imported", "name_based"])
def test_categories_of_one_s_own_take_the_rows_of_coco_s_names(
    oracle_dir: Path, documented: InitConfig, imported: Path, kind: str
) -> None:
    own = [{"id": 1, "name": "dog"}, {"id": 2, "name": "screw"}, {"id": 3, "name": "person"}]
    detector = build_detector("efficientdet-d0", num_classes=3, image_size=128)
    fresh = detector.class_net.predict.bias.numpy().reshape(9, 3)
    folder = oracle_dir / "efficientdet_d0" / "name_based"
    source = WeightSource(imported) if kind == "imported" else WeightSource(folder, rename=documented.rename)
    done = warm_start(detector, source, categories=own, fine_tune_type="detection")
    rows = _rows(tf.train.load_checkpoint(str(folder / "model.ckpt")), "bias")
    ours = detector.class_net.predict.bias.numpy().reshape(9, 3)
    np.testing.assert_array_equal(ours, np.stack([rows[:, 17], fresh[:, 1], rows[:, 0]], axis=-1))
    assert done.new_categories == ("screw",)
    with pytest.raises(
        DataError,
        match="full requires equal categories; only in the data set: screw; only in the checkpoint: bicycle, car",
    ):
        warm_start(detector, source, categories=own, fine_tune_type="full")
