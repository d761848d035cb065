"""The structure that variables tell, and the names of class outputs."""

import json
from pathlib import Path

import numpy as np
import pytest

from detection.datasets.annotations.coco_categories import COCO_CATEGORIES
from detection.datasets.importers.label_map import LabelMap
from detection.interop.automl.checkpoint import AutomlFormat, automl_name
from detection.interop.efficientdet import structure_of_config
from detection.interop.initial_weights import import_initial_weights
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector
from detection.weights.checkpoint_format import class_categories
from schemas.config.train.initialization import SourceWeights
from schemas.errors import DataError
from tests.detection.interop.automl.checkpoints import random_weights, save_named, small_config


def _oracle_shapes(oracle_dir: Path) -> dict[str, tuple[int, ...]]:
    content = json.loads((oracle_dir / "efficientdet_d0" / "variables.json").read_text())
    return {name: tuple(shape) for name, shape in content["variables"].items()}


def test_the_original_s_variables_tell_its_variant_and_its_classes(oracle_dir: Path) -> None:
    shapes, d0 = _oracle_shapes(oracle_dir), EFFICIENTDETS["efficientdet-d0"]
    assert AutomlFormat(shapes, "it").structure() == structure_of_config(d0)
    AutomlFormat(shapes, "it").require_variant(d0, "efficientdet-d0")
    assert AutomlFormat(shapes, "it").class_count(d0) == 90
    wider = d0.changed({"anchors": {"num_scales": 7}})
    with pytest.raises(DataError, match="810 class outputs do not divide evenly among 21 anchors per cell"):
        AutomlFormat(shapes, "it").class_count(wider)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientdet-nano", "efficientdet-lite0"])
def test_variables_tell_the_structure_of_their_configuration(name: str) -> None:
    detector = build_detector(name, num_classes=2)
    shapes = {automl_name(variable.path): tuple(variable.shape) for variable in detector.variables}
    assert AutomlFormat(shapes, "it").structure() == structure_of_config(EFFICIENTDETS[name])


def test_only_d6_and_d7_have_the_same_structure() -> None:
    by_structure: dict[object, list[str]] = {}
    for name, config in EFFICIENTDETS.items():
        by_structure.setdefault(structure_of_config(config), []).append(name)
    assert [names for names in by_structure.values() if len(names) > 1] == [["efficientdet-d6", "efficientdet-d7"]]


@pytest.mark.parametrize("name", [name for name in EFFICIENTDETS if name != "efficientdet-d0"])
def test_another_variant_is_refused_by_the_name_of_the_right_one(oracle_dir: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"is of efficientdet-d0, not of {name}. Pass --model efficientdet-d0"):
        AutomlFormat(_oracle_shapes(oracle_dir), "it").require_variant(EFFICIENTDETS[name], name)


def test_an_unknown_structure_is_described(oracle_dir: Path) -> None:
    shapes = _oracle_shapes(oracle_dir)
    shapes["box_net/box-predict/pointwise_kernel"] = (1, 1, 72, 36)
    with pytest.raises(DataError, match=r"no known variant: it has 16 .* 3 BiFPN cells of 72 filters .* of 64 filters"):
        AutomlFormat(shapes, "it").require_variant(EFFICIENTDETS["efficientdet-d0"], "efficientdet-d0")


def test_other_networks_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"not a checkpoint of google/automl's .* Examples of its variables: fpn/a, rpn/b"
    ):
        AutomlFormat({"rpn/b": (3,), "fpn/a": (2,)}, "it").structure()


def test_90_class_outputs_are_coco_s_ids() -> None:
    categories = class_categories(90, None)
    assert [entry["id"] for entry in categories] == list(range(1, 91))
    assert {entry["id"]: entry["name"] for entry in categories if entry["name"] is not None} == COCO_CATEGORIES


def test_other_class_outputs_have_the_names_of_the_label_map() -> None:
    assert class_categories(2, None) == [{"id": 1, "name": "1"}, {"id": 2, "name": "2"}]
    label_map = LabelMap("labels.pbtxt", [{"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}])
    assert class_categories(3, label_map) == [
        {"id": 1, "name": "dog"},
        {"id": 2, "name": None},
        {"id": 3, "name": "cat"},
    ]
    with pytest.raises(DataError, match=r"labels\.pbtxt: id 3 is outside of 1 to 2, the ids of the checkpoint's class"):
        class_categories(2, label_map)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "kind"), [("auto", "ema"), ("averaged", "ema"), ("raw", "raw")])
def test_a_training_starts_from_the_file_itself(weights: SourceWeights, kind: str, tmp_path: Path) -> None:
    values = {"raw": random_weights(3), "ema": random_weights(3, seed=1)}
    prefix = save_named(tmp_path / "model", values["raw"], values["ema"], scope="efficientdet-d0/")
    initial = import_initial_weights(prefix, small_config(), weights)
    assert initial is not None
    assert not initial.only_backbone
    for path in initial.shapes:
        np.testing.assert_array_equal(initial.read(path), values[kind][automl_name(path)], err_msg=path)
