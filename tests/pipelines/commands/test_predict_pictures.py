"""Scores and pictures of `predict` as a user calls it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from detection.images.drawing import draw_detections
from detection.images.files import EXIF_ORIENTATION
from detection.storage.files import read_bytes, walk_files
from pipeline_runner import main
from tests.detection.fake_detector import save_fake_detector, write_images
from tests.storage_emulator.fixture import Bucket


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_detector(tmp_path_factory.mktemp("model"))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 6)
    return tmp_path / "images"


def predict(model: Path, *flags: str | Path, output: Path) -> int:
    return main(["predict", "--model", str(model), "--output", str(output), *map(str, flags)])


def drawn_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def expected_picture(image: Image.Image, results: list[dict[str, Any]], *, min_score: float) -> np.ndarray:
    """The model names no categories."""
    return draw_detections(
        np.asarray(image),
        [result["bbox"] for result in results],
        [str(result["category_id"]) for result in results],
        [result["score"] for result in results],
        category_ids=[result["category_id"] for result in results],
        min_score=min_score,
    )


@pytest.mark.parametrize(("name", "kind"), [("sheet.png", "PNG"), ("sheet.jpg", "JPEG")])
def test_a_file_is_a_sheet_of_the_first_images(tmp_path: Path, model: Path, images: Path, name: str, kind: str) -> None:
    assert predict(model, "--images", images, "--draw", tmp_path / name, output=tmp_path / "f.json") == 0
    with Image.open(tmp_path / name) as sheet:
        assert sheet.format == kind
        assert sheet.width > 4 * 300


def test_a_folder_has_each_image_in_its_own_size(
    tmp_path: Path, model: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, drawn = tmp_path / "f.json", tmp_path / "drawn"
    assert predict(model, "--images", images, "--draw", drawn, output=out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(drawn)
    assert drawn_files(drawn) == sorted(path.name for path in images.iterdir())
    results = json.loads(out.read_text())
    changed = 0
    for number, path in enumerate(sorted(images.iterdir()), 1):
        own = [result for result in results if result["image_id"] == number]
        with Image.open(path) as image, Image.open(drawn / path.name) as picture:
            assert picture.size == image.size
            np.testing.assert_array_equal(np.asarray(picture), expected_picture(image, own, min_score=0.3))
            changed += picture.tobytes() != image.tobytes()
    assert changed > 3


def test_equal_names_in_several_folders_stay_apart(tmp_path: Path, model: Path) -> None:
    for folder in ("a/x", "a/y", "b"):
        write_images(tmp_path / "in" / folder, 1)
    (tmp_path / "drawn").mkdir()
    flags = ("--draw", tmp_path / "drawn", "--images", tmp_path / "in" / "a", tmp_path / "in" / "b" / "picture_00.png")
    assert predict(model, *flags, output=tmp_path / "f.json") == 0
    assert drawn_files(tmp_path / "drawn") == [f"{folder}/picture_00.png" for folder in ("a/x", "a/y", "b")]


def test_formats_are_kept_and_others_become_png(tmp_path: Path, model: Path, images: Path) -> None:
    with Image.open(images / "picture_00.png") as image:
        for name, kind in [("a.JPG", "JPEG"), ("b.gif", "GIF"), ("c.bmp", "BMP"), ("d.orig", "PNG")]:
            image.save(images / name, kind)
    flags = ("--images", images, images / "d.orig", "--draw", tmp_path / "drawn")
    assert predict(model, *flags, output=tmp_path / "f.json") == 0
    for name, kind in [("a.JPG", "JPEG"), ("b.gif", "GIF"), ("c.bmp", "BMP"), ("d.orig.png", "PNG")]:
        with Image.open(tmp_path / "drawn" / name) as picture:
            assert (picture.format, picture.size) == (kind, image.size)


def test_pictures_are_upright_and_so_are_their_tags(tmp_path: Path, model: Path) -> None:
    """Orientation 6: the top of the stored pixels is the right side of the upright image."""
    (tmp_path / "in").mkdir()
    pixels = np.random.default_rng(11).integers(0, 256, (60, 90, 3), np.uint8)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    Image.fromarray(pixels).save(tmp_path / "in" / "turned.png", exif=exif)
    out = tmp_path / "f.json"
    flags = ("--images", tmp_path / "in", "--draw", tmp_path / "drawn", "--score", "0.1")
    assert predict(model, *flags, output=out) == 0
    results = json.loads(out.read_text())
    assert results
    for result in results:  # COCO's boxes belong to the stored pixels
        x, y, width, height = result["bbox"]
        result["bbox"] = [60 - y - height, x, height, width]
    with Image.open(tmp_path / "in" / "turned.png") as image, Image.open(tmp_path / "drawn" / "turned.png") as picture:
        assert picture.size == (60, 90)
        assert EXIF_ORIENTATION not in picture.getexif()
        upright = ImageOps.exif_transpose(image)
        np.testing.assert_array_equal(np.asarray(picture), expected_picture(upright, results, min_score=0.1))


def test_detections_of_lower_scores_are_neither_written_nor_drawn(tmp_path: Path, model: Path, images: Path) -> None:
    written = {}
    for score in (None, "0.75", "0"):
        flags = () if score is None else ("--score", score, "--draw", tmp_path / f"drawn-{score}")
        assert predict(model, "--images", images, *flags, output=tmp_path / "f.json") == 0
        written[score] = json.loads((tmp_path / "f.json").read_text())
    assert written["0"] == written[None]
    assert written["0.75"] == [result for result in written[None] if result["score"] >= 0.75]
    assert 0 < len(written["0.75"]) < len(written[None])
    for score in ("0.75", "0"):
        for number, path in enumerate(sorted(images.iterdir()), 1):
            own = [result for result in written[score] if result["image_id"] == number]
            with Image.open(path) as image, Image.open(tmp_path / f"drawn-{score}" / path.name) as picture:
                np.testing.assert_array_equal(np.asarray(picture), expected_picture(image, own, min_score=0.0))


def test_says_so_if_no_detection_is_drawn(
    tmp_path: Path, model: Path, images: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first image has detections of low scores only."""
    flags = ("--images", min(images.iterdir()), "--draw", tmp_path / "drawn")
    assert predict(model, *flags, output=tmp_path / "f.json") == 0
    highest = max(result["score"] for result in json.loads((tmp_path / "f.json").read_text()))
    assert 0.1 < highest < 0.3
    note = "nothing to draw: there is no score of at least"
    assert f"{note} 0.3, the highest is {highest:g}; see --score\n" in capfd.readouterr().err
    assert predict(model, *flags, "--score", "0.9", output=tmp_path / "f.json") == 0
    assert f"{note} 0.9; see --score\n" in capfd.readouterr().err
    assert predict(model, *flags, "--score", "0.1", output=tmp_path / "f.json") == 0
    assert note not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--score", "1.5"], "--score 1.5: pass a number from 0 to 1"),
        (["--score", "-0.1"], "--score -0.1: pass a number from 0 to 1"),
        (["--score", "nan"], "--score nan: pass a number from 0 to 1"),
        (["--score", "0.5", "--score-thresholds", "best-f1"], "--score and --score-thresholds are exclusive"),
        (["--draw", "sheet.webp"], "sheet.webp: a picture of the first images is PNG or JPEG"),
        (["--draw", "IMAGES"], "images: this folder has all --images. Pass another path"),
        (["--draw", "LINK"], "link: this folder has all --images. Pass another path"),
        (["--draw", "FILE"], "notes: this is a file. Pass a folder"),
    ],
)
def test_wrong_usage_is_refused_before_detecting(
    *, tmp_path: Path, model: Path, images: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("")
    (tmp_path / "link").symlink_to(images)
    before = {path: path.read_bytes() for path in images.iterdir()}
    places = {"IMAGES": str(images), "LINK": str(tmp_path / "link"), "FILE": str(tmp_path / "notes")}
    given = [places.get(flag, flag) for flag in flags]
    assert predict(model, "--images", images, *given, output=tmp_path / "f.json") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "f.json").exists()
    assert {path: path.read_bytes() for path in images.iterdir()} == before


@pytest.mark.parametrize("name", ["drawn", "sheet.png"])
def test_pictures_of_an_earlier_run_are_no_images(
    *, tmp_path: Path, model: Path, images: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    written = []
    for _ in range(2):
        assert predict(model, "--images", images, "--draw", images / name, output=tmp_path / "f.json") == 0
        written.append((tmp_path / "f.json").read_bytes())
    assert written[0] == written[1]
    left_out = 6 if name == "drawn" else 1
    assert f"skipping {left_out} images in {images / name}, the destination of the pictures" in capfd.readouterr().err


def test_two_images_of_one_picture_are_refused(
    tmp_path: Path, model: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "a").write_bytes((images / "picture_00.png").read_bytes())
    (images / "a.png").write_bytes((images / "picture_01.png").read_bytes())
    flags = ("--images", images / "a", images / "a.png", "--draw", tmp_path / "drawn")
    assert predict(model, *flags, output=tmp_path / "f.json") == 2
    assert "two of --images would have the same file" in capsys.readouterr().err


def test_on_cloud_storage_the_same_pictures(gcs: Bucket, tmp_path: Path, model: Path, images: Path) -> None:
    for folder in (tmp_path / "drawn", f"{gcs.path}/drawn"):
        assert predict(model, "--images", images, "--draw", folder, output=tmp_path / "f.json") == 0
    assert walk_files(f"{gcs.path}/drawn") == drawn_files(tmp_path / "drawn")
    for name in drawn_files(tmp_path / "drawn"):
        assert read_bytes(f"{gcs.path}/drawn/{name}") == (tmp_path / "drawn" / name).read_bytes()
