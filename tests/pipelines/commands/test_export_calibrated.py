"""`export --calibrate` as a user calls it: the exported scores, their order, and what is refused."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detection.inference.detectors import open_detector
from detection.inference.formats.score_curves import SCORE_CURVES_FILE, calibrate_scores, read_score_curves
from detection.types import EncodedImage
from pipeline_runner import main
from schemas.artifacts import MODEL_JSON
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.export.exported_models import random_detector, write_training
from tests.detection.training.tiny_run import CATEGORIES

IMAGES = 16
SIZE = (64, 64)  # that of the input: a file suppresses boxes in the padding, which a SavedModel clips before
IDS = [category["id"] for category in CATEGORIES]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("training"), random_detector())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[EncodedImage]:
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    images = []
    for number in range(1, IMAGES + 1):
        path = folder / f"{number}.png"
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), np.uint8))
        coarse.resize(SIZE[::-1], Image.Resampling.BICUBIC).save(path)
        images.append(EncodedImage(number, path.name, path.read_bytes(), *SIZE))
    return images


@pytest.fixture(scope="module")
def plain(training: Path, images: list[EncodedImage]) -> np.ndarray:
    """The detections of the training's model."""
    return rows_of(training, images)


@pytest.fixture(scope="module")
def data(images: list[EncodedImage], plain: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in which about half of the detections are right."""
    root = tmp_path_factory.mktemp("data")
    (root / "val").mkdir()
    for image in images:
        (root / "val" / image.name).write_bytes(image.encoded)
    write_ground_truth(root, images, plain[np.random.default_rng(0).random(len(plain)) < 0.5])
    return root


def write_ground_truth(root: Path, images: Sequence[EncodedImage], rows: np.ndarray) -> None:
    annotations = [
        {
            "id": number,
            "image_id": int(image),
            "category_id": int(category),
            "bbox": [x, y, max(width, 0.5), max(height, 0.5)],
            "area": max(width, 0.5) * max(height, 0.5),
            "iscrowd": 0,
        }
        for number, (image, x, y, width, height, _, category) in enumerate(rows.tolist(), 1)
        if x < SIZE[1] - 1 and y < SIZE[0] - 1
    ]
    entries = [{"id": one.image_id, "file_name": one.name, "height": SIZE[0], "width": SIZE[1]} for one in images]
    tree = {"images": entries, "annotations": annotations, "categories": CATEGORIES}
    (root / "instances_val.json").write_text(json.dumps(tree))


def rows_of(model: Path, images: Sequence[EncodedImage]) -> np.ndarray:
    return np.concatenate([one.rows for one in open_detector(model, batch_size=8).detect(images)])


def coco_results(rows: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"image_id": int(image), "category_id": int(category), "bbox": box, "score": score}
        for image, *box, score, category in rows.tolist()
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        (),
        # Half a minute each; test_serving_module.py calibrates with the graph of such a file.
        pytest.param(("--format", "litert"), marks=pytest.mark.extended),
        pytest.param(("--od-api-outputs",), marks=pytest.mark.extended),
    ],
)
def test_the_exported_scores_are_calibrated(
    training: Path,
    data: Path,
    images: list[EncodedImage],
    plain: np.ndarray,
    tmp_path: Path,
    *,
    capfd: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
) -> None:
    folder = tmp_path / "model"
    command = ["export", "--model", str(training), "--output", str(folder), "--calibrate", str(data), *flags]
    assert main(command) == 0
    told = capfd.readouterr().out.splitlines()
    match = re.fullmatch(
        r"scores calibrated on 16 images of eval: expected calibration error (\S+) before, (\S+) after \(each half of "
        r"the images with the curves of the other half\); (the AP of each category is unchanged|APs .* at most)",
        told[1],
    )
    assert match is not None, told
    assert float(match[2]) < float(match[1])
    fitted = read_score_curves(folder)
    assert fitted is not None
    assert f"{fitted.error_before:.4f}" == match[1]
    assert (fitted.split, fitted.images) == ("eval", IMAGES)

    if "litert" in flags:
        assert json.loads((folder / MODEL_JSON).read_text())["calibrated_scores"] is True
        counterparts = next(line for line in told if line.startswith("compared with the SavedModel"))
        pairs = re.search(r"(\d+) of (\d+) detections have .*; scores differ by (\S+) on average", counterparts)
        assert pairs is not None, counterparts
        assert int(pairs[1]) > 0.95 * int(pairs[2])  # suppression may decide otherwise at its threshold
        assert float(pairs[3]) < 1e-3
        return

    # The scores of numpy, each image's best first.
    expected = plain.copy()
    expected[:, 5] = calibrate_scores(fitted.curves, plain[:, 5], [IDS.index(category) for category in plain[:, 6]])
    expected = expected[np.lexsort((-expected[:, 5], expected[:, 0]))]
    found = rows_of(folder, images)
    np.testing.assert_allclose(found[:, 5], expected[:, 5], atol=1e-5)
    ground_truth = json.loads((data / "instances_val.json").read_text())
    before, after = (pycocotools_eval(ground_truth, coco_results(rows)).eval["precision"] for rows in (plain, found))
    # Scores that are equal but for rounding may change places.
    np.testing.assert_allclose(after.mean(axis=1), before.mean(axis=1), atol=2e-3)


@pytest.mark.extended  # two exports more
def test_another_export_has_the_scores_of_the_network(
    training: Path,
    data: Path,
    images: list[EncodedImage],
    plain: np.ndarray,
    tmp_path: Path,
    *,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Curves are no weights."""
    calibrated, again = tmp_path / "model", tmp_path / "again"
    flags = ["--calibrate", str(data)]
    assert main(["export", "--model", str(training), "--output", str(calibrated), *flags]) == 0
    assert main(["export", "--model", str(calibrated), "--output", str(again)]) == 0
    assert "the scores of --model are calibrated, those of this export are not" in capfd.readouterr().out
    assert not (again / SCORE_CURVES_FILE).exists()
    np.testing.assert_allclose(rows_of(again, images), plain, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--calibrate DATA --no-nms", 2, "--calibrate with --no-nms: the scores of detections are calibrated"),
        ("--calibrate-split test", 2, "--calibrate-split: for --calibrate DIR, which is missing"),
        ("--calibrate none", 1, "none: no such file or folder"),
        ("--calibrate DATA --calibrate-split test", 1, "no annotations of the split 'test'"),
        ("--calibrate EMPTY", 1, "EMPTY, split eval: no annotations for the calibration of scores. Pass another split"),
        ("--calibrate OTHER", 1, "OTHER: categories of the model"),
        (
            "--calibrate DATA --set model.postprocess.score_threshold=1.0",
            1,
            "DATA, split eval: the model has no detections on its 16 images, so there are no scores to calibrate",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    training: Path,
    data: Path,
    images: list[EncodedImage],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    *,
    flags: str,
    code: int,
    message: str,
) -> None:
    places = {"DATA": data, "EMPTY": tmp_path / "empty", "OTHER": tmp_path / "other"}
    for name in ("EMPTY", "OTHER"):
        places[name].mkdir()
        (places[name] / "val").symlink_to(data / "val")
    write_ground_truth(places["EMPTY"], images, np.zeros((0, 7)))
    tree = json.loads((data / "instances_val.json").read_text())
    tree["categories"][0]["name"] = "another"
    (places["OTHER"] / "instances_val.json").write_text(json.dumps(tree))

    def filled(text: str) -> str:
        return re.sub("|".join(places), lambda name: str(places[name[0]]), text)

    command = ["export", "--model", str(training), "--output", str(tmp_path / "out"), *map(filled, flags.split())]
    assert main(command) == code
    assert filled(message) in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
