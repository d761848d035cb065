"""COCO AP of exported files, in their own runtimes, of a lite detector that learned real handwriting."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detection.datasets.demo_data import make_demo_data
from pipeline_runner import main
from schemas.artifacts import METRICS_JSON

pytestmark = [pytest.mark.extended, pytest.mark.slow]  # trains for minutes

# As the lite variants of google/automl are: relu6, inputs from -1 to 1, sums instead of weighted fusion.
LITE = (
    "model.name=efficientdet-lite0",
    "model.image_size=128",
    "model.overrides={backbone: {name: efficientnet-nano}, max_level: 5, neck: {filters: 48, cells: 2}, "
    "head: {layers: 2}, anchors: {scale: 2.0}}",
    "train.steps=1200",
    "train.checkpoint_every=1200",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "data"
    make_demo_data(folder)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("training")
    keys = [argument for key in LITE for argument in ("--set", key)]
    config = str(Path(__file__).parents[2] / "pipelines" / "configs" / "demo.yaml")
    assert main(["train", "--config", config, "--data", str(data), "--output", str(output), *keys]) == 0
    return output


def average_precision(model: Path, data: Path, output: Path) -> float:
    """As `evaluate` measures it."""
    flags = ["--set", "evaluate.analysis.replicates=0", "--set", "evaluate.losses=false"]
    assert main(["evaluate", "--model", str(model), "--examples", str(data), "--output", str(output), *flags]) == 0
    return float(json.loads((output / METRICS_JSON).read_text())["stats"][0])


def test_each_format_keeps_the_ap(trained: Path, data: Path, tmp_path: Path) -> None:
    calibration = ("--calibration-data", str(data))
    formats = {
        "float16": ("litert", "--precision", "float16"),
        "int8": ("litert", "--precision", "int8", *calibration),
        "onnx": ("onnx",),
    }
    expected = average_precision(trained / "saved_model", data, tmp_path / "evaluation")
    print(f"SavedModel: AP {expected:.4f}")
    assert expected > 0.3
    for name, flags in formats.items():
        assert main(["export", "--model", str(trained), "--output", str(tmp_path / name), "--format", *flags]) == 0
        found = average_precision(tmp_path / name, data, tmp_path / f"evaluation-{name}")
        print(f"{name}: AP {found:.4f}")
        assert found == pytest.approx(expected, abs=0.001 if name == "onnx" else 0.01)


def test_int8_calibrated_on_images_unlike_the_trainings_is_told(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = shutil.copytree(data, tmp_path / "noise")
    random = np.random.default_rng(0)
    for path in [*noise.rglob("*.png"), *noise.rglob("*.jpg")]:
        with Image.open(path) as image:
            size = image.size
        Image.fromarray(random.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path)
    for calibration, unlike in ((data, False), (noise, True)):
        output = tmp_path / f"int8-{unlike}"
        flags = ("--format", "litert", "--precision", "int8", "--calibration-data", str(calibration))
        assert main(["export", "--model", str(trained), "--output", str(output), *flags]) == 0
        told = capfd.readouterr().out
        assert "compared with the SavedModel on 8 images" in told
        assert ("calibration images look unlike the training's" in told) == unlike
