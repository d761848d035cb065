"""Pictures from a folder."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detection.reports.evaluation import picture_files
from detection.reports.evaluation.picture_files import pictures_in
from schemas.errors import DataError


def png(color: tuple[int, int, int] = (1, 2, 3)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), color).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.png").write_bytes(png())
    (folder / "cut.png").write_bytes(png()[:50])
    (folder / "text.png").write_text("no image")
    (tmp_path / "outside.png").write_bytes(png())
    return folder


def test_an_image_is_decoded_by_its_id(folder: Path) -> None:
    image = pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7)
    assert image
    assert (np.asarray(image) == [1, 2, 3]).all()
    assert image.size == (6, 4)


@pytest.mark.parametrize(
    "file_name", ["none.png", "cut.png", "text.png", "sub", "../outside.png", "/etc/hostname", "a\0b", ""]
)
def test_what_is_no_image_below_the_folder_is_none(folder: Path, file_name: str) -> None:
    assert pictures_in(folder, [{"id": 7, "file_name": file_name}])(7) is None


def test_an_unknown_id_and_one_without_a_name_are_none(folder: Path) -> None:
    source = pictures_in(folder, [{"id": 7}])
    assert source(7) is None
    assert source(8) is None


def test_a_huge_image_is_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_files, "MAX_PIXELS", 23)
    assert pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7) is None
    monkeypatch.setattr(picture_files, "MAX_PIXELS", 24)
    assert pictures_in(folder, [{"id": 7, "file_name": "sub/a.png"}])(7)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder of images"):
        pictures_in(tmp_path / "none", [])
