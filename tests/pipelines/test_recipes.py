"""Recipes as published: TPU Mask R-CNN's in `pipelines/configs`, the Object Detection API's in `from_od_api.md`."""

import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import yaml

from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.models.registry import build_detector, detector_config
from detection.training.build_step import schedule_from_config
from detection.training.engine.variable_selection import all_kernels, decayed_variables
from detection.training.train import next_stop
from schemas.config.config import Config
from schemas.config.config_io import from_yaml, load_config

FOLDER = Path(__file__).parents[2] / "pipelines" / "configs"
CORES = (8, 32, 128)

# batch size; steps; peak, warm-up steps; boundary -> rate; momentum; clip ratio
PUBLISHED: dict[int, tuple[Any, ...]] = {
    8: (64, 22500, 0.08, 500, {15000: 0.008, 20000: 0.0008}, 0.9, None),
    32: (128, 11250, 0.16, 1000, {7500: 0.016, 10000: 0.0016}, 0.9, 0.02),
    128: (512, 11250, 0.24, 1600, {6000: 0.024, 8000: 0.0024, 10000: 0.00024}, 0.95, 0.02),
}


def recipe(cores: int) -> Config:
    return load_config(FOLDER / f"mask_rcnn_{cores}_cores.yaml", [])


def rates(config: Config, steps: list[int]) -> list[float]:
    schedule = schedule_from_config(config.train)
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_is_a_configuration(path: Path) -> None:
    config = load_config(path, [])
    _require_same(yaml.safe_load(path.read_text()), config.model_dump(mode="json"))
    # Raises for keys that the family of detectors lacks.
    detector_config(config.model.name, overrides=config.model.overrides, postprocess=config.model.postprocess)


def _require_same(written: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Requires that the configuration has what the file says."""
    for key, value in written.items():
        if isinstance(value, dict) and value.keys() <= resolved[key].keys():
            _require_same(value, resolved[key])
        else:
            assert resolved[key] == value, key


def test_the_rates_on_8_cores_are_the_originals(oracles: dict[str, dict[str, Any]]) -> None:
    oracle = oracles["lr.maskrcnn.step"]
    assert rates(recipe(8), oracle["inputs"]["steps"]) == pytest.approx(oracle["expected"], abs=oracle["tolerance"])


@pytest.mark.parametrize("cores", CORES)
def test_a_recipe_is_the_published_one(cores: int) -> None:
    config = recipe(cores)
    train = config.train
    batch_size, steps, peak, warmup, drops, momentum, ratio = PUBLISHED[cores]
    assert (train.batch_size, train.steps, train.optimizer.momentum) == (batch_size, steps, momentum)
    halfway = 0.0067 + (peak - 0.0067) / 2
    assert rates(config, [0, warmup // 2, warmup]) == pytest.approx([0.0067, halfway, peak], abs=1e-7)
    before = [peak, *drops.values()]
    for boundary, old, new in zip(drops, before, drops.values(), strict=False):
        assert rates(config, [boundary - 1, boundary]) == pytest.approx([old, new], abs=1e-7)
    clip = train.clip
    assert (clip.norm_ratio, clip.global_norm, clip.per_variable_norm, clip.value) == (ratio, None, None, None)
    assert (clip.bias_multiplier, clip.multiply_after_clipping, clip.bias_variables) == (2.0, True, "bias_and_beta")
    assert (train.optimizer.name, train.optimizer.legacy_momentum, train.optimizer.weight_decay) == ("sgd", True, 1e-4)
    assert (train.augment.horizontal_flip, train.augment.scale_min, train.augment.scale_max) == (True, 1.0, 1.0)
    assert (train.precision, train.strategy, train.ema.enabled) == ("bfloat16", "tpu", False)


@pytest.mark.parametrize("cores", CORES)
def test_calls_of_the_loop_are_as_long_as_the_originals(cores: int) -> None:
    """2500 steps, its `iterations_per_loop`; only the last one may be shorter."""
    train, stops = recipe(cores).train, [0]
    while stops[-1] < train.fixed_steps:
        stops.append(next_stop(stops[-1], train))
    assert stops == [*range(0, train.fixed_steps, 2500), train.fixed_steps]


@pytest.mark.parametrize("cores", CORES)
def test_the_network_of_a_recipe_is_the_original(cores: int) -> None:
    """test_faster_rcnn_structure.py compares what trains and decays in this preset with the original."""
    model = recipe(cores).model
    original = FASTER_RCNNS["mask-rcnn-r50"].changed({"dialect": "tpu"})
    assert detector_config(model.name, overrides=model.overrides) == original
    assert recipe(cores).train.optimizer.weight_decay_exclude == recipe(cores).train.freeze == ()


# `train_config` of the API's published files, absent keys as the proto's defaults, and the L2 weight of their networks:
# what most of them have, and by name what differs.
USUAL: dict[str, Any] = {
    "optimizer": {"name": "sgd", "momentum": 0.9},
    "use_moving_average": False,
    "gradient_clipping_by_norm": 0.0,
    "l2": 0.0,
    "scales": (1.0, 1.0),
    "steps": [],
}
API: dict[str, dict[str, Any]] = {
    "faster_rcnn_resnet101_coco": {
        "trainer": "legacy/train.py",
        "batch_size": 1,
        "num_steps": 200_000,
        "rates": {0: 3e-4, 199_999: 3e-4, 900_000: 3e-5, 1_200_000: 3e-6},
        "gradient_clipping_by_norm": 10.0,
    },
    "ssd_mobilenet_v1_coco": {
        "trainer": "model_main.py",
        "batch_size": 24,
        "num_steps": 200_000,
        "optimizer": {"name": "rmsprop", "momentum": 0.9, "rho": 0.9, "epsilon": 1.0},
        "rates": {0: 0.004, 800_719: 0.004, 800_720: 0.0038},
        "use_moving_average": True,
        "l2": 4e-5,
        "steps": [["ssd_random_crop"]],
    },
    "ssd_efficientdet_d0_512x512_coco17_tpu-8": {
        "trainer": "model_main_tf2.py",
        "batch_size": 128,
        "num_steps": 300_000,
        "rates": {0: 0.001, 1250: 0.0405, 2500: 0.08, 151_250: 0.04, 300_000: 0.0},
        "l2": 4e-5,
        "scales": (0.1, 2.0),
    },
    "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8": {
        "trainer": "model_main_tf2.py",
        "batch_size": 64,
        "num_steps": 25_000,
        "rates": {0: 0.013333, 1000: 0.0266665, 2000: 0.04, 13_500: 0.02, 25_000: 0.0},
    },
}


@pytest.mark.parametrize("name", [name for name, one in API.items() if one["trainer"] == "model_main_tf2.py"])
def test_what_stands_above_stands_in_the_file_of_the_zoo(name: str, oracle_dir: Path) -> None:
    published = USUAL | API[name]
    text = (oracle_dir / "od_api/zoo_configs" / f"{name}.config").read_text(encoding="utf-8")
    train = text.partition("train_config")[2].partition("train_input_reader")[0]
    fields = {field: float(value) for field, value in re.findall(r"(\w+): *([\d.e-]+)", train)}
    assert (fields["batch_size"], fields["num_steps"]) == (published["batch_size"], published["num_steps"])
    assert "momentum_optimizer:" in train
    assert fields["momentum_optimizer_value"] == published["optimizer"]["momentum"]
    assert "use_moving_average: false" in train
    assert fields.get("gradient_clipping_by_norm", 0.0) == published["gradient_clipping_by_norm"]
    rates = published["rates"]
    assert "cosine_decay_learning_rate" in train
    assert (rates[0], rates[fields["warmup_steps"]]) == (fields["warmup_learning_rate"], fields["learning_rate_base"])
    assert rates[fields["total_steps"]] == 0.0
    assert (fields.get("scale_min", 1.0), fields.get("scale_max", 1.0)) == published["scales"]
    weights = re.findall(r"l2_regularizer\s*{\s*weight: *([\d.e-]+)", text)
    assert set(map(float, weights)) == {published["l2"]}


def _of_the_page() -> dict[str, tuple[str, Config]]:
    """Name of the published file -> trainer and configuration, of every recipe that names both."""
    page = (FOLDER.parents[1] / "docs" / "from_od_api.md").read_text(encoding="utf-8")
    found = re.findall(r"^`(\S+)` with `(\S+)`[^`]*```yaml\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    return {name: (trainer, from_yaml(text)) for trainer, name, text in found}


def test_every_trainer_of_the_api_has_a_recipe() -> None:
    assert {name: trainer for name, (trainer, _) in _of_the_page().items()} == {
        name: published["trainer"] for name, published in API.items()
    }


@pytest.mark.parametrize("name", API)
def test_a_recipe_of_the_api_is_its_published_configuration(name: str) -> None:
    published, (trainer, config) = USUAL | API[name], _of_the_page()[name]
    train, optimizer, clip = config.train, config.train.optimizer, config.train.clip
    assert (train.batch_size, train.steps) == (published["batch_size"], published["num_steps"])
    assert rates(config, list(published["rates"])) == pytest.approx(list(published["rates"].values()), abs=1e-8)
    values = {"name": optimizer.name} | optimizer.hyperparameters
    assert values.items() >= published["optimizer"].items()
    on_tf1 = trainer != "model_main_tf2.py"
    assert optimizer.legacy_momentum == (on_tf1 and optimizer.name == "sgd")
    assert values.get("initial_accumulator_value", on_tf1) == on_tf1
    assert optimizer.weight_decay == published["l2"]
    norm = published["gradient_clipping_by_norm"] or None
    per_variable, whole = (norm, None) if trainer == "legacy/train.py" else (None, norm)
    assert (clip.per_variable_norm, clip.global_norm, clip.norm_ratio, clip.value) == (per_variable, whole, None, None)
    assert clip.bias_multiplier == 1.0
    assert train.ema.enabled == published["use_moving_average"]
    if train.ema.enabled:
        assert (train.ema.decay, train.ema.dynamic, train.ema.include_batch_norm) == (0.9999, False, False)
        assert train.ema.exported_weights == "raw"
    augment = train.augment
    assert (augment.horizontal_flip, augment.scale_min, augment.scale_max) == ("auto", *published["scales"])
    assert [*map(list, augment.steps)] == published["steps"]


def test_the_kernels_that_decay_are_those_of_the_api() -> None:
    """Its layers: `convolutional_keras_box_predictor.py` and its heads, `bifpn_utils.py`, `efficientnet_model.py`."""
    train = _of_the_page()["ssd_efficientdet_d0_512x512_coco17_tpu-8"][1].train
    detector = build_detector("efficientdet-d0", num_classes=2, image_size=128, overrides={"neck": {"cells": 1}})
    decayed = decayed_variables(
        detector.trainable_variables, train.optimizer.weight_decay_exclude, match=train.pattern_match
    )
    expected = set()
    for path in (kernel.path for kernel in all_kernels(detector.trainable_variables)):
        part, layer, *_, kernel = path.split("/")
        if part in ("class_net", "box_net"):
            # The regularizer of a separable convolution reaches its depthwise kernel alone, and none in the last one.
            regularized = kernel == "depthwise_kernel" and not layer.endswith("predict")
        else:
            # In BiFPN it reaches both kernels; EfficientNet hands it to DepthwiseConv2D under a name without effect.
            regularized = part.startswith(("fpn_cells", "resample_")) or "depthwise" not in path
        if regularized:
            expected.add(path)
    assert {kernel.path for kernel in decayed} == expected
