"""`model.image_size: auto`, against NumPy on the boxes themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.datasets.statistics import SplitSummary, total
from detection.training.auto.input_size import size_fact, with_image_size
from detection.training.resolve import fixed_image_size
from pipelines import load_config
from schemas.artifacts import CONFIG_YAML
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from tests.detection.training import tiny_detector
from tests.detection.training.evaluation_records import CATEGORIES, write_coco_shards

SIDES = (256, 384, 512)  # of EfficientDet-Lite0: four fifths of 320, 1 and 1.25 times, 1.6 times


def _config(*assignments: str) -> Config:
    return load_config("default", assignments)


def _summary(sizes: Any, *, width: int = 1000, height: int = 1000) -> SplitSummary:
    summary = SplitSummary()
    boxes = [{"category_id": 1, "bbox": [0, 0, side, side]} for side in sizes]
    summary.add(boxes, width=width, height=height, image_format="jpeg", color_mode="RGB")
    return summary


@pytest.mark.parametrize("seed", range(8))
def test_the_smallest_input_that_shows_95_of_100_objects(seed: int) -> None:
    sizes = np.random.default_rng(seed).lognormal(np.log(20 + 15 * seed), 0.4, 500)
    shares = {side: np.mean(sizes * side / 1000 < 8) for side in SIDES}
    # The bins of sizes are 9 % wide; at the limit either size is right.
    right = [side for side, share in shares.items() if share <= 0.05] or [SIDES[-1]]
    near = [side for side in SIDES if 0.03 < np.mean(sizes * side / 1000 < 8 * 1.05) < 0.08]
    assert with_image_size(_config(), _summary(sizes)).model.image_size in {
        (right[0],) * 2,
        *((one,) * 2 for one in near),
    }


@pytest.mark.parametrize(
    ("sizes", "assignments", "expected"),
    [
        ([100] * 9, [], (256, 256)),
        ([20] * 9, [], (512, 512)),
        ([2] * 9, [], (512, 512)),  # none of the sizes shows them
        ([20] * 9, ["model.image_size=300"], 300),
        ([20] * 9, ["model.image_size=null"], None),
        ([], [], None),
        ([20] * 9, ["model.overrides.image_size=[192, 320]"], None),
        ([20] * 9, ["model.resize.mode=short_side"], None),
        ([100] * 9, ["model.name=efficientdet-d0"], (512, 512)),
        ([8] * 9, ["model.name=efficientdet-d0"], (896, 896)),
        ([100] * 9, ["model.name=efficientdet-nano"], (128, 128)),
    ],
)
def test_what_auto_becomes(sizes: list[int], assignments: list[str], expected: Any) -> None:
    assert with_image_size(_config(*assignments), _summary(sizes)).model.image_size == expected


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([(600, 800, 100)], (256, 192)),
        ([(640, 480, 100)], (192, 256)),
        ([(600, 800, 70), (800, 600, 30)], (256, 192)),
        ([(600, 800, 55), (800, 600, 45)], (256, 256)),
        ([(900, 800, 100)], (256, 256)),
        ([(1600, 400, 100)], (192, 256)),
    ],
)
def test_the_input_has_the_shape_of_most_images(shares: list[tuple[int, int, int]], expected: tuple[int, int]) -> None:
    parts = [_summary([200] * count, width=width, height=height) for width, height, count in shares]
    assert with_image_size(_config(), total(parts)).model.image_size == expected
    stretched = with_image_size(_config("model.resize.mode=stretch"), total(parts)).model.image_size
    assert stretched == (256, 256), "nothing is padded"


def test_a_line_says_which_why_and_what_it_costs() -> None:
    assert size_fact(_summary([]), _config()) is None
    few, most, all_ = (size_fact(_summary(sizes), _config()) for sizes in ([100] * 50, [20] * 49 + [100], [6] * 50))
    assert few == ("model.image_size = auto: 256 x 256, objects smaller than 8 x 8 pixels: 0 of 50", "")
    assert most == (
        "model.image_size = auto: 512 x 512, objects smaller than 8 x 8 pixels: 0 of 50; at 256 x 256: 49 of 50 (98 "
        "%), with 1/4 of the work per step",
        "",
    )
    assert all_ is not None
    assert all_[1] == "Most of them will be missed. Use a larger input: --set model.image_size=1536"


@pytest.mark.slow
def test_a_training_says_its_size_and_exports_no_detector_built_before_it_was_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from detection.models.registry import detector_from_config
    from detection.training.train import train

    tiny_detector.register()
    shards, _ = write_coco_shards(tmp_path, 4)
    config = load_config("default", ["model.name=tiny", "model.weights=none", "train.steps=1", "train.batch_size=2"])
    caplog.set_level("INFO", "cocoflow.trainer")
    train(
        config,
        shards=shards,
        datasets=[{"categories": CATEGORIES, "splits": {"train": {"statistics": _summary([100] * 9).as_dict()}}}],
        categories=CATEGORIES,
        output=tmp_path / "out",
        detector=detector_from_config(config.model, CATEGORIES),
    )
    assert load_config(str(tmp_path / "out" / CONFIG_YAML), []).model.image_size == (128, 128)
    assert (tmp_path / "out/saved_model/saved_model.pb").exists()
    assert "model.image_size = auto: 128 x 128, objects smaller than 8 x 8 pixels: 0 of 9" in caplog.text


def test_a_resumed_run_keeps_its_size(tmp_path: Path) -> None:
    large, small = ({"train": _summary([side] * 9)} for side in (100, 20))
    assert fixed_image_size(_config(), large, output=tmp_path).model.image_size == (256, 256)
    started = fixed_image_size(_config(), small, output=tmp_path)
    (tmp_path / CONFIG_YAML).write_text(to_yaml(started))
    assert fixed_image_size(_config(), large, output=tmp_path).model.image_size == (256, 256)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/ckpt-3.index").touch()
    assert fixed_image_size(_config(), large, output=tmp_path).model.image_size == (512, 512)
