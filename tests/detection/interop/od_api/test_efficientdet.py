"""The Object Detection API's EfficientDets, imported: the function of the original, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import load_trained
from detection.interop.od_api.checkpoints.efficientdet import EfficientDetFormat, layer_names
from detection.models.efficientdet.model import EfficientDet
from detection.ops.boxes import decode_yxyx
from detection.weights.imported_model import ImportedModel, import_model, write_model
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.interop.automl.checkpoints import save, save_objects
from tests.detection.interop.od_api.original_efficientdet import (
    CELLS,
    CLASSES,
    FILTERS,
    LAYERS,
    SCALES,
    OdApiEfficientDet,
    anchors_of,
)
from tests.detection.interop.od_api.original_faster_rcnn import RATIOS, decoded

SIZE = (128, 256)
SMALL = f"model.overrides={{neck: {{filters: {FILTERS}, cells: {CELLS}}}, head: {{layers: {LAYERS}}}}}"


def config_of(*assignments: str, name: str = "efficientdet-d1") -> Config:
    return load_config(None, [f"model.name={name}", f"model.image_size={list(SIZE)}", SMALL, *assignments])


def pixels_of(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 255, (1, height, width, 3)).astype(np.float32)


def loaded(model: ImportedModel, folder: Path) -> EfficientDet:
    folder.mkdir()
    write_model(model, folder)
    detector = load_trained(folder).detector
    assert isinstance(detector, EfficientDet)
    return detector


def inputs_of(detector: EfficientDet, pixels: np.ndarray) -> Any:
    return tf.constant((pixels - np.array(detector.pixel_mean)) / np.array(detector.pixel_std), tf.float32)


def made(**options: Any) -> OdApiEfficientDet:
    network = OdApiEfficientDet(**options)
    network.construct()
    return network


@pytest.fixture(scope="module")
def original() -> OdApiEfficientDet:
    return made()


@pytest.fixture(scope="module")
def prefix(original: OdApiEfficientDet, tmp_path_factory: pytest.TempPathFactory) -> str:
    return original.write(tmp_path_factory.mktemp("training") / "ckpt-0")


@pytest.fixture(scope="module")
def imported(prefix: str) -> ImportedModel:
    return import_model(EfficientDetFormat, prefix, config_of())


@pytest.fixture(scope="module")
def detector(imported: ImportedModel, tmp_path_factory: pytest.TempPathFactory) -> EfficientDet:
    return loaded(imported, tmp_path_factory.mktemp("model") / "model")


def assert_same(ours: Any, theirs: Any) -> None:
    """Compares features of a level, or outputs of its cells, [1, h, w, C], that depend on the place."""
    assert np.std(theirs, axis=(1, 2)).mean() > 0.01
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [SIZE, (250, 128)])
def test_features_are_the_original_s(
    original: OdApiEfficientDet, detector: EfficientDet, size: tuple[int, int]
) -> None:
    """The original takes sides a little below a multiple of 128, too: its levels have the same sizes."""
    pixels = pixels_of(*size)
    levels = original.backbone(tf.constant(pixels))
    backbone = detector.backbone(inputs_of(detector, pixels))
    for ours, theirs in zip(backbone[2:], levels, strict=True):
        assert_same(ours, theirs)
    features = original.pyramid(levels)
    for layer, feature in zip(detector.extra_levels, features[3:], strict=True):
        backbone.append(layer(backbone[-1], size=feature.shape[1:3]))
    for ours, theirs in zip(detector.fpn(backbone[2:]), features, strict=True):
        assert_same(ours, theirs)
    combined = [value for name, value in original.variables.items() if name.endswith("bifpn_combine_weights")]
    assert any((value < 0).any() for value in combined), "some inputs have no weight"


def by_scale(values: np.ndarray, width: int) -> np.ndarray:
    """Reorders [.., anchors * width] or [N, width] of the original, by aspect ratio, to [N, width] by octave scale."""
    return values.reshape(-1, len(RATIOS), SCALES, width).swapaxes(1, 2).reshape(-1, width)


def test_logits_and_boxes_of_each_anchor_are_the_original_s(
    original: OdApiEfficientDet, detector: EfficientDet
) -> None:
    pixels = pixels_of(*SIZE)
    features = original.pyramid(original.backbone(tf.constant(pixels)))
    classes, encoded = original.heads(features)
    outputs = detector(inputs_of(detector, pixels))
    for ours, theirs in zip(outputs.class_logits, classes, strict=True):
        assert_same(ours.numpy().reshape(theirs.shape), by_scale(theirs.numpy(), CLASSES).reshape(theirs.shape))
    anchors = anchors_of(features)
    np.testing.assert_allclose(detector.anchors, by_scale(anchors, 4), rtol=1e-5, atol=1e-4)
    theirs = decoded(np.concatenate([level.numpy().reshape(-1, 4) for level in encoded]), anchors)
    deltas = np.concatenate([level.numpy().reshape(-1, 4) for level in outputs.box_deltas])
    sides = np.array([*SIZE, *SIZE])
    boxes = decode_yxyx(tf.constant(deltas), tf.constant(detector.anchors)).numpy()
    np.testing.assert_allclose(boxes / sides, by_scale(theirs, 4) / sides, rtol=0, atol=1e-5)
    assert np.abs(theirs - anchors).max() > 10.0


def test_the_settings_of_the_original(imported: ImportedModel) -> None:
    model = imported.config.model
    assert (model.overrides["backbone"], model.overrides["dialect"]) == ({"layout": "od-api"}, "od-api")
    assert model.postprocess == {"score_threshold": 1e-8}
    assert (imported.step, imported.missing, imported.differences) == (25000, (), ())
    assert imported.categories == [{"id": number, "name": str(number)} for number in (1, 2, 3)]
    unused = {name.rpartition("/")[0] for name in imported.unused}
    assert {layer.rpartition("/")[0] for layer in unused} == {"stack_6/block_1", ""}
    assert {layer for layer in unused if "/" not in layer} == {"top_conv2d", "top_bn", "logits"}


def test_scopes_sums_and_absent_biases(tmp_path: Path, original: OdApiEfficientDet, imported: ImportedModel) -> None:
    """A batch norm without a scale, and a convolution without a bias, have those of no effect."""
    absent = re.compile(r".*/(?:bifpn_combine_weights|conv2d_\d/bias|feature_2/gamma)")
    weights = {
        name if name.startswith(("stem_", "stack_")) else f"EfficientDet-D1/{name}": value
        for name, value in original.variables.items()
        if not absent.fullmatch(name)
    }
    prefix = save(tmp_path / "ckpt-5", weights)
    with pytest.raises(DataError, match=r"2 BiFPN cells of 16 filters without input weights, 2 head layers, .* has .*"):
        import_model(EfficientDetFormat, prefix, config_of())
    config = config_of("model.overrides.neck.fusion=sum", "model.postprocess.score_threshold=0.1")
    model = import_model(EfficientDetFormat, prefix, config)
    assert model.config.model.postprocess == {"score_threshold": 0.1}
    assert set(imported.raw) - set(model.raw) == {path for path in imported.raw if "/WSM" in path}
    for path, values in model.raw.items():
        if re.fullmatch(r"(class|box)_net/(class|box)-\d/bias", path):
            assert not values.any()
        elif re.fullmatch(r".*_net/.*-bn-5/gamma", path):
            assert (values == 1.0).all()
        else:
            np.testing.assert_array_equal(values, imported.raw[path])


def test_ema_weights(tmp_path: Path, original: OdApiEfficientDet, imported: ImportedModel) -> None:
    """The original averages trained variables alone, in slots of its optimizer."""
    averages = {name: value * 2 for name, value in original.variables.items() if "moving_" not in name}
    prefix = save_objects(tmp_path / "ckpt", original.variables, averages, ["momentum"])
    model = import_model(EfficientDetFormat, prefix, config_of())
    assert set(model.ema) == {path for path in model.raw if "moving_" not in path}
    for path, values in model.ema.items():
        np.testing.assert_array_equal(model.raw[path], imported.raw[path])
        np.testing.assert_allclose(values, 2 * imported.raw[path], rtol=1e-6)


@pytest.mark.parametrize("name", EfficientDetFormat.presets)
def test_each_layer_has_a_counterpart_of_its_own(name: str) -> None:
    names = layer_names(EfficientDetFormat.presets[name])
    assert len(set(names.values())) == len(names)
    blocks = {ours.split("/")[1]: theirs.rpartition("/")[0] for ours, theirs in names.items() if "/blocks_" in ours}
    stacks = VARIANTS[int(name[-1])][-1]
    assert list(blocks.values()) == [
        f"stack_{stack}/block_{n}" for stack, count in enumerate(stacks) for n in range(count)
    ]


def test_other_sides_are_told(prefix: str) -> None:
    model = import_model(EfficientDetFormat, prefix, config_of("model.image_size=[250, 128]"))
    assert model.differences == (
        "images of 250 x 128: the original has other anchors for, or refuses, sides that are not multiples of 128. "
        "Pass --set model.image_size=VALUE with the size of its image_resizer",
    )


# By the number of the variant: filters and cells of the BiFPN, layers of a head; of its backbone, filters of the stem
# and blocks of each stack.
VARIANTS = (
    (64, 3, 3, 32, (1, 2, 2, 3, 3, 4, 1)),
    (88, 4, 3, 32, (2, 3, 3, 4, 4, 5, 2)),
    (112, 5, 3, 32, (2, 3, 3, 4, 4, 5, 2)),
    (160, 6, 4, 40, (2, 3, 3, 5, 5, 6, 2)),
    (224, 7, 4, 48, (2, 4, 4, 6, 6, 8, 2)),
    (288, 7, 4, 48, (3, 5, 5, 7, 7, 9, 3)),
    (384, 8, 5, 56, (3, 6, 6, 8, 8, 11, 3)),
    (384, 8, 5, 56, (3, 6, 6, 8, 8, 11, 3)),
)


def shapes_of(variant: int) -> dict[str, tuple[int, ...]]:
    """Variables that tell a variant, some more than the command reads."""
    filters, cells, layers, stem, stacks = VARIANTS[variant]
    scope, heads = "EfficientDet/bifpn/node_00", "WeightSharedConvolutionalBoxPredictor"
    shapes: dict[str, tuple[int, ...]] = {"stem_conv2d/kernel": (3, 3, 3, stem)}
    for stack, blocks in enumerate(stacks):
        for block in range(blocks):
            shapes[f"stack_{stack}/block_{block}/se_reduce_conv2d/bias"] = (8,)
            shapes[f"stack_{stack}/block_{block}/project_bn/beta"] = (24,)
    for cell in range(1, cells + 1):
        for node in ("dn_lvl_6", "dn_lvl_5", "dn_lvl_4", "dn_lvl_3", "up_lvl_4", "up_lvl_5", "up_lvl_6", "up_lvl_7"):
            shapes[f"{scope}/{cell}_{node}/post_combine/batchnorm/beta"] = (filters,)
            if variant < 6:
                shapes[f"{scope}/{cell}_{node}/combine/bifpn_combine_weights"] = (2, 1)
    for kind, outputs in (("Box", 36), ("Class", 810)):
        for layer in range(layers):
            shapes[f"{heads}/{kind}PredictionTower/conv2d_{layer}/pointwise_kernel"] = (1, 1, filters, filters)
        last = f"{heads}/WeightSharedConvolutional{kind}Head/{kind}Predictor"
        shapes |= {f"{last}/pointwise_kernel": (1, 1, filters, outputs), f"{last}/bias": (outputs,)}
    return shapes


@pytest.mark.parametrize("variant", range(8))
def test_another_variant_is_refused_by_the_name_of_the_right_one(variant: int) -> None:
    shapes = shapes_of(variant)
    alike = [f"efficientdet-d{number}" for number in range(8) if VARIANTS[number] == VARIANTS[variant]]
    for name, config in EfficientDetFormat.presets.items():
        if name in alike:
            EfficientDetFormat(shapes, "it").require_variant(config, name)
            assert EfficientDetFormat(shapes, "it").class_count(config) == 90
        else:
            message = f"it: the checkpoint is of {' or '.join(alike)}, not of {name}. Pass --model"
            with pytest.raises(DataError, match=message):
                EfficientDetFormat(shapes, "it").require_variant(config, name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["conv1_conv/kernel", "RPNConv/kernel"],
            r"not a checkpoint of the Object Detection API's EfficientDet: stem_conv2d/kernel, ClassPredictor/bias, "
            r"BoxPredictor/bias, BoxPredictor/pointwise_kernel is missing .*: RPNConv/kernel, conv1_conv/kernel\.$",
        ),
        (
            ["model/_feature_extractor/_efficientnet/layer_with_weights-0/kernel"],
            r"These are paths of objects: the checkpoint has no variable names.* Export .* with .*exporter_main_v2\.py",
        ),
        (
            ["stem_conv2d/kernel"],
            "stem_conv2d/kernel, ClassPredictor/bias, .* is missing or has another number of axes",
        ),
    ],
)
def test_networks_that_are_no_efficientdet(tmp_path: Path, names: list[str], message: str) -> None:
    prefix = save(tmp_path / "ckpt", dict.fromkeys(names, np.zeros(3, np.float32)))
    with pytest.raises(DataError, match=f"ckpt: .*{message}"):
        import_model(EfficientDetFormat, prefix, config_of())


@pytest.mark.parametrize(
    ("assignment", "error", "message"),
    [
        ("neck.graph=qufpn", ConfigError, "graph = qufpn with .*: the Object Detection API only has bifpn"),
        ("neck.fusion=channel_attention", ConfigError, "with fusion = channel_attention: .* one weight per input"),
        (
            "neck.filters=40",
            ConfigError,
            r"neck\.filters = 40: equal to the filters of a level of efficientnet-b1\. .* 1x1 convolution",
        ),
        (
            "backbone.name=resnet-50",
            ConfigError,
            r"backbone\.name = 'resnet-50': no such backbone\. Choose from efficientnet-b0",
        ),
        (
            "anchors.num_scales=2",
            DataError,
            r"36 box outputs and 27 class outputs do not match 6 anchors per cell\. Pass",
        ),
        ("neck.separable_conv=false", DataError, r"missing: .*1_dn_lvl_6/post_combine/separable_conv/kernel"),
        ("min_level=4", DataError, r"starts at level 3, that of the configuration at 4\. Pass --set .*min_level=3"),
    ],
)
def test_overrides_that_do_not_fit(prefix: str, assignment: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        import_model(EfficientDetFormat, prefix, config_of(f"model.overrides.{assignment}"))


def test_variables_that_do_not_match_are_named(tmp_path: Path, original: OdApiEfficientDet) -> None:
    scope, norm = "bifpn/node_00", "0_up_lvl_6/input_0_up_lvl_5/1x1_pre_sample/batchnorm/moving_mean"
    bias, other = "stack_1/block_0/se_expand_conv2d/bias", "stem_bn/beta"
    weights = {name: value for name, value in original.variables.items() if name not in (f"{scope}/{norm}", bias)}
    message = (
        rf"2 missing: {bias}, {norm}; 1 with another shape: {other} "
        r"\[5\] instead of \[32\]; 25 without a counterpart: "
    )
    prefix = save(tmp_path / "ckpt", weights | {other: np.zeros(5, np.float32)})
    with pytest.raises(DataError, match=message):
        import_model(EfficientDetFormat, prefix, config_of())
