"""The configuration files in `pipelines/configs`: recipes of TPU Mask R-CNN as published."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import yaml

from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.models.registry import detector_config
from detection.training.build_step import schedule_from_config
from detection.training.train import next_stop
from schemas.config.config import Config
from schemas.config.config_io import load_config

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
    original = FASTER_RCNNS["mask-rcnn-r50"].model_copy(update={"rpn_box_loss": "level_means"})
    assert detector_config(model.name, overrides=model.overrides) == original
    assert recipe(cores).train.optimizer.weight_decay_exclude == recipe(cores).train.freeze == ()
