import io
import json
from pathlib import Path

import pytest
import tensorflow as tf
from PIL import Image

from detection.data import image_files
from detection.data.image_files import ImageFileError, read_image


def _picture(folder: Path, name: str, kind: str, size: tuple[int, int] = (5, 3)) -> Path:
    path = folder / name
    Image.new("RGB", size, (200, 30, 60)).save(path, format=kind)
    return path


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_the_format_is_that_of_the_bytes_not_of_the_name(tmp_path: Path, kind: str) -> None:
    path = _picture(tmp_path, "picture.tiff", kind)
    assert read_image(path) == (path.read_bytes(), kind.lower(), 3, 5, False)


def _cut(path: Path, keep: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def test_faults_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("<html>not found</html>")
    (tmp_path / "empty.jpg").touch()
    _cut(_picture(tmp_path, "cut.jpg", "JPEG", (512, 512)), 0.8)
    _cut(_picture(tmp_path, "cut.png", "PNG", (64, 64)), 0.8)
    _picture(tmp_path, "picture.webp", "WEBP")
    found = {}
    for name in ("absent.jpg", "text.jpg", "empty.jpg", "cut.jpg", "cut.png", "picture.webp"):
        with pytest.raises(ImageFileError) as caught:
            read_image(tmp_path / name)
        found[name] = (caught.value.kind, str(caught.value))
    assert {name: kind for name, (kind, _) in found.items()} == {
        "absent.jpg": "missing",
        "text.jpg": "broken",
        "empty.jpg": "empty",
        "cut.jpg": "broken",
        "cut.png": "broken",
        "picture.webp": "unsupported",
    }
    assert found["absent.jpg"][1].startswith("cannot read the image file: No such file or directory.")
    assert found["empty.jpg"][1] == "the image file has 0 bytes. Copy it again."
    assert "no known format" in found["text.jpg"][1]
    assert "does not decode: image file is truncated" in found["cut.jpg"][1]
    assert found["picture.webp"][1] == "WEBP is not decoded by TensorFlow. Convert the file to JPEG or PNG."


def test_a_size_that_the_pixels_deny_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _picture(tmp_path, "picture.png", "PNG")
    monkeypatch.setattr(image_files, "decode_rgb", lambda data: tf.zeros([4, 5, 3], tf.uint8))
    with pytest.raises(ImageFileError, match="the header says 5x3 pixels, decoded are 5x4"):
        read_image(path)


def test_an_exif_turn_is_seen_and_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (5, 3)).save(buffer, "JPEG", exif=exif)
    path = tmp_path / "turned.jpg"
    path.write_bytes(buffer.getvalue())
    assert read_image(path)[1:] == ("jpeg", 3, 5, True)


def test_awkward_images_are_accepted_or_refused_as_their_manifest_says(shared_data: Path) -> None:
    folder = shared_data / "nasty_images"
    accepted, refused = set(), set()
    entries = json.loads((folder / "manifest.json").read_text())["files"]
    for entry in entries:
        try:
            file = read_image(folder / entry["file"])
        except ImageFileError:
            refused.add(entry["file"])
            continue
        accepted.add(entry["file"])
        assert [file.width, file.height] == entry["observed"]["stored_size"], entry["file"]
    assert accepted == {entry["file"] for entry in entries if entry["expect"] == "accept"}
    assert refused == {entry["file"] for entry in entries if entry["expect"] != "accept"}
