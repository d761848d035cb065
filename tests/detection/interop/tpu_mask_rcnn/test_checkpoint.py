"""Checkpoints of TPU Mask R-CNN, imported: the function of the original, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import load_trained
from detection.interop.initial_weights import import_initial_weights
from detection.interop.tpu_mask_rcnn.checkpoint import TpuMaskRcnnFormat
from detection.models.detector import Detector
from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.heads.postprocess import MaskPostprocess
from detection.models.registry import build_detector
from detection.training.initialization.warm_start import warm_start
from detection.types import ImageInfo
from detection.weights.imported_model import ImportedModel, import_model, write_model
from detection.weights.weight_source import WeightSource
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.interop.automl.checkpoints import save
from tests.detection.interop.tpu_mask_rcnn.original import SMALL, Original, save_original

CLASSES = 3  # of the original: background and two
IMAGES = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype(np.float32)


def small_config(*assignments: str) -> Config:
    keys = ("model.name=mask-rcnn-r18", "model.image_size=64", f"model.overrides={json.dumps(SMALL)}")
    return load_config(None, [*keys, *assignments])


@pytest.fixture(scope="module")
def original() -> Original:
    network = Original(classes=CLASSES)
    network.construct()
    return network


@pytest.fixture(scope="module")
def checkpoint(original: Original, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_original(tmp_path_factory.mktemp("tf1") / "model.ckpt-22500", original.variables)


@pytest.fixture(scope="module")
def imported(checkpoint: str) -> ImportedModel:
    return import_model(TpuMaskRcnnFormat, Path(checkpoint).parent, small_config())


@pytest.fixture(scope="module")
def detector(imported: ImportedModel, tmp_path_factory: pytest.TempPathFactory) -> FasterRcnn:
    folder = tmp_path_factory.mktemp("model")
    write_model(imported, folder)
    trained = load_trained(folder)
    assert isinstance(trained.detector, FasterRcnn)
    assert trained.exported_from is not None
    assert trained.exported_from.weights == "raw"
    return trained.detector


def test_the_imported_model_has_all_variables_and_the_settings_of_the_original(
    imported: ImportedModel, original: Original, checkpoint: str
) -> None:
    assert (imported.prefix, imported.step, imported.ema) == (checkpoint, 22500, {})
    assert (imported.unused, imported.missing) == ((), ())
    assert len(imported.raw) == len(original.variables)
    assert imported.categories == [{"id": 1, "name": "1"}, {"id": 2, "name": "2"}]
    model = imported.config.model
    mean, std = ([channel * 255 for channel in rgb] for rgb in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert model.overrides == {
        **SMALL,
        "dialect": "tpu",
        "backbone": {"layout": "tpu"},
        "pixel_mean": mean,
        "pixel_std": std,
    }
    assert model.postprocess == {"score_threshold": 0.05, "pre_nms_top_k": 1000}
    postprocess = MaskPostprocess.model_validate(model.postprocess)
    assert (postprocess.nms, postprocess.iou_threshold, postprocess.class_agnostic) == ("hard", 0.5, False)
    assert postprocess.max_detections == 100


def test_raw_outputs_are_the_original_s(detector: FasterRcnn, original: Original) -> None:
    outputs = detector(tf.constant(IMAGES))
    expected = original(tf.constant(IMAGES))
    for ours, theirs in zip((outputs.features, outputs.rpn.logits, outputs.rpn.deltas), expected, strict=True):
        assert len(ours) == len(theirs) == 5
        for level, (values, wanted) in enumerate(zip(ours, theirs, strict=True), 2):
            np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-4, err_msg=f"level {level}")


def test_the_heads_outputs_are_the_original_s(detector: FasterRcnn, original: Original) -> None:
    random = np.random.default_rng(1)
    rois = random.normal(size=(5, 7, 7, SMALL["neck"]["filters"])).astype(np.float32)
    classes, boxes = original.box_head(tf.constant(rois))
    ours = detector.box_head(rois[np.newaxis])
    np.testing.assert_allclose(ours.class_logits[0], classes, atol=1e-5)
    np.testing.assert_allclose(ours.box_deltas[0], boxes, atol=1e-5)
    rois = random.normal(size=(3, 14, 14, SMALL["neck"]["filters"])).astype(np.float32)
    masks = original.mask_head(tf.constant(rois)).numpy()
    columns = np.array([1, 2, 0], np.int32)
    assert detector.mask_head is not None
    chosen = detector.mask_head(rois[np.newaxis], columns[np.newaxis])[0]
    for roi, column in enumerate(columns):
        np.testing.assert_allclose(chosen[roi], masks[roi, :, :, column], atol=1e-5)


def test_detections_are_those_of_a_detector_with_the_original_s_settings(detector: FasterRcnn) -> None:
    overrides = {**SMALL, "dialect": "tpu", "backbone": {"layout": "tpu"}}
    options = {"score_threshold": 0.05, "pre_nms_top_k": 1000}
    same = build_detector("mask-rcnn-r18", num_classes=2, image_size=64, overrides=overrides, postprocess=options)
    for variable, other in zip(same.variables, detector.variables, strict=True):
        variable.assign(other)
    info = ImageInfo(original_size=tf.fill([2, 2], 64.0), scale=tf.ones([2, 2]))

    def detect(one: Detector) -> list[np.ndarray]:
        return [part.numpy() for part in one.detect(one(tf.constant(IMAGES)), info) if part is not None]

    detections = detect(detector)
    assert detections[3].min() > 0, "there is something to compare"
    for ours, wanted in zip(detections, detect(same), strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_settings_of_the_call_win(checkpoint: str) -> None:
    keys = ("model.overrides.dialect=standard", "model.postprocess.score_threshold=0.2")
    model = import_model(TpuMaskRcnnFormat, checkpoint, small_config(*keys)).config.model
    assert (model.overrides["dialect"], model.overrides["backbone"]) == ("standard", {"layout": "tpu"})
    assert model.postprocess == {"score_threshold": 0.2, "pre_nms_top_k": 1000}


def shapes_of(depth: int, *, masks: bool = True, outputs: int = 91) -> dict[str, tuple[int, ...]]:
    """Shapes that tell a variant: a ResNet's depth counts its last layer, but not its four projections."""
    scope, width = f"resnet{depth}", 256 if depth >= 50 else 64
    names = [f"{scope}/conv2d_{number}/kernel" for number in range(1, depth + 3)]
    shapes: dict[str, tuple[int, ...]] = {f"{scope}/conv2d/kernel": (7, 7, 3, 64), **dict.fromkeys(names, (1, 1, 9, 9))}
    shapes[names[0]] = (1, 1, 64, width)
    shapes["box_head/class-predict/bias"] = (outputs,)
    return shapes | ({"mask_head/mask-conv-l0/bias": (256,)} if masks else {})


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_another_variant_is_refused_by_the_name_of_the_right_one(depth: int, *, masks: bool) -> None:
    shapes = shapes_of(depth, masks=masks)
    right = f"{'mask' if masks else 'faster'}-rcnn-r{depth}"
    for name, config in TpuMaskRcnnFormat.presets.items():
        if name == right:
            TpuMaskRcnnFormat(shapes, "it").require_variant(config, name)
        else:
            with pytest.raises(DataError, match=f"it: the checkpoint is of {right}, not of {name}. Pass --model"):
                TpuMaskRcnnFormat(shapes, "it").require_variant(config, name)


def test_variants_without_a_preset() -> None:
    deep = shapes_of(200)
    assert TpuMaskRcnnFormat(deep, "it").structure().backbone == "resnet-200"
    preset = FASTER_RCNNS["mask-rcnn-r50"]
    with pytest.raises(DataError, match=r"no known variant: it has resnet-200 with boxes and masks; mine has resnet"):
        TpuMaskRcnnFormat(deep, "it").require_variant(preset, "mine")
    TpuMaskRcnnFormat(deep, "it").require_variant(preset.changed({"backbone": {"name": "resnet-200"}}), "mine")
    with pytest.raises(DataError, match="it has a ResNet of 62 convolutions with boxes"):
        TpuMaskRcnnFormat(shapes_of(59, masks=False), "it").require_variant(preset, "mine")
    wide = shapes_of(34) | {"resnet34/conv2d_1/kernel": (1, 1, 64, 256)}
    assert TpuMaskRcnnFormat(wide, "it").structure().backbone == "a ResNet of 37 convolutions"


def test_networks_that_cannot_be_imported_are_refused_with_the_reason() -> None:
    preset = FASTER_RCNNS["mask-rcnn-r50"]
    with pytest.raises(ConfigError, match=r"max_level = 7: TPU Mask R-CNN computes levels above 6 without the act"):
        TpuMaskRcnnFormat.structures(preset.model_copy(update={"max_level": 7}))
    with pytest.raises(
        ConfigError, match=r"backbone\.name = efficientnet-nano: of TPU Mask R-CNN's backbones, only ResNets"
    ):
        TpuMaskRcnnFormat.structures(FASTER_RCNNS["mask-rcnn-nano"])
    more = shapes_of(50) | {"fpn/p6/kernel": (3, 3, 256, 256), "fpn/p7/kernel": (3, 3, 256, 256)}
    with pytest.raises(DataError, match="it: fpn/p6/kernel, fpn/p7/kernel: it has levels above 6"):
        TpuMaskRcnnFormat(more, "it").structure()
    with pytest.raises(DataError, match="it: the backbone is mnasnet-a1; of TPU Mask R-CNN's backbones"):
        TpuMaskRcnnFormat({"mnasnet-a1/mnas_stem/conv2d/kernel": (3, 3, 3, 32)}, "it").structure()
    with pytest.raises(DataError, match=r"not a checkpoint of TPU Mask R-CNN: .* variables: class_net/a"):
        TpuMaskRcnnFormat({"class_net/a": (3,)}, "it").structure()


def test_classes_have_the_names_of_a_label_map(tmp_path: Path, checkpoint: str) -> None:
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("item { id: 2 name: 'cat' }")
    categories = import_model(TpuMaskRcnnFormat, checkpoint, small_config(), label_map=labels).categories
    assert categories == [{"id": 1, "name": None}, {"id": 2, "name": "cat"}]
    labels.write_text("item { id: 3 name: 'cat' }")
    with pytest.raises(DataError, match="id 3 is outside of 1 to 2"):
        import_model(TpuMaskRcnnFormat, checkpoint, small_config(), label_map=labels)


def test_variables_that_do_not_match_are_named(tmp_path: Path, original: Original) -> None:
    lost, other, more = "fpn/l3/bias", "resnet18/batch_normalization_20/beta", "attributes/kernel"
    changed = {name: value for name, value in original.variables.items() if name != lost}
    changed |= {other: np.zeros(5, np.float32), more: np.zeros(3, np.float32)}
    with pytest.raises(
        DataError,
        match=rf"do not match: 1 missing: {lost}; 1 with another shape: {other} \[5\] instead of \[512\]; "
        rf"1 without a counterpart: {more}",
    ):
        import_model(TpuMaskRcnnFormat, save(tmp_path / "changed", changed), small_config())
    with pytest.raises(DataError, match=r"has no EMA weights\. Set --weights=raw or auto"):
        import_model(TpuMaskRcnnFormat, save(tmp_path / "whole", original.variables), small_config(), weights="ema")


def test_a_resnet_for_classification_starts_a_backbone(tmp_path: Path) -> None:
    """A bottleneck network; its variables are in no scope, and the classifier is not used."""
    network = Original(scope="", repeats=(3, 4, 6, 3), bottleneck=True)
    images = tf.constant(IMAGES[:1])
    expected = network.backbone(images)
    classifier = {"dense/kernel": np.zeros([2048, 5], np.float32)}
    prefix = save(tmp_path / "model.ckpt-112603", network.variables | classifier)
    model = import_model(TpuMaskRcnnFormat, prefix, small_config("model.name=faster-rcnn-r50"))
    assert model.categories is None
    assert model.unused == ("dense/kernel",)
    assert len(model.raw) == len(network.variables) == 53 * 5
    assert {path.partition("/")[0] for path in model.missing} == {"fpn", "rpn", "box_head"}
    initial = import_initial_weights(prefix, small_config("model.name=faster-rcnn-r50"), "auto")
    assert initial is not None
    assert (initial.only_backbone, initial.shapes) == (True, {path: value.shape for path, value in model.raw.items()})

    folder = tmp_path / "model"
    folder.mkdir()
    write_model(model, folder)
    with pytest.raises(DataError, match=r"there is no categories\.json beside its weights"):
        load_trained(folder)
    detector = build_detector("faster-rcnn-r50", num_classes=2, image_size=64, overrides=model.config.model.overrides)
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    source = WeightSource(folder)
    started = warm_start(detector, source, categories=categories, fine_tune_type="classification")
    assert len(started.plan.load) == 53 * 5
    assert isinstance(detector, FasterRcnn)
    for ours, theirs in zip(detector.backbone(images)[1:], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
