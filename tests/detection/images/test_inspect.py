import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from detection.images import inspect as image_files
from detection.images.decode import decode_rgb
from detection.images.files import ImageFileError, read_file
from detection.images.inspect import ImageFile, converted, inspect_image, turned

LIMIT = 89_478_485


def _read(path: Path, max_pixels: int = LIMIT) -> ImageFile:
    return inspect_image(read_file(str(path.parent), path.name, max_pixels=max_pixels), max_pixels=max_pixels)


def _picture(folder: Path, name: str, kind: str, size: tuple[int, int] = (5, 3)) -> Path:
    path = folder / name
    Image.new("RGB", size, (200, 30, 60)).save(path, format=kind)
    return path


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP"])
def test_the_format_is_that_of_the_bytes_not_of_the_name(tmp_path: Path, kind: str) -> None:
    path = _picture(tmp_path, "picture.tiff", kind)
    file = _read(path)
    assert file[:4] == (path.read_bytes(), kind.lower(), 3, 5)
    assert (file.orientation, file.turned) == (1, False)


def _cut(path: Path, keep: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def test_issues_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("<html>not found</html>")
    (tmp_path / "empty.jpg").touch()
    _cut(_picture(tmp_path, "cut.jpg", "JPEG", (512, 512)), 0.8)
    _cut(_picture(tmp_path, "cut.png", "PNG", (64, 64)), 0.8)
    _picture(tmp_path, "picture.webp", "WEBP")
    issues = {}
    for name in ("absent.jpg", "text.jpg", "empty.jpg", "cut.jpg", "cut.png", "picture.webp"):
        with pytest.raises(ImageFileError) as caught:
            _read(tmp_path / name)
        issues[name] = (caught.value.kind, str(caught.value))
    assert {name: kind for name, (kind, _) in issues.items()} == {
        "absent.jpg": "image_missing",
        "text.jpg": "image_broken",
        "empty.jpg": "image_broken",
        "cut.jpg": "image_broken",
        "cut.png": "image_broken",
        "picture.webp": "image_unsupported",
    }
    assert issues["absent.jpg"][1].startswith("cannot read the image file: No such file or directory.")
    assert issues["empty.jpg"][1] == "the image file has 0 bytes. Copy it again."
    assert "(no known format: an HTML page, perhaps the answer to a download that failed)" in issues["text.jpg"][1]
    assert "cannot be decoded: image file is truncated" in issues["cut.jpg"][1]
    assert issues["picture.webp"][1].startswith("TensorFlow does not decode WEBP. Convert the file to JPEG or PNG")


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_heic_is_named_whatever_the_file_is_called(tmp_path: Path, brand: bytes) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\0\0\0\x18ftyp" + brand + b"\0" * 100)
    with pytest.raises(ImageFileError, match="the file is HEIC, as iPhones write it") as caught:
        _read(tmp_path / "photo.jpg")
    assert caught.value.kind == "image_unsupported"
    with pytest.raises(ImageFileError, match="cannot be converted: Pillow does not read it"):
        converted((tmp_path / "photo.jpg").read_bytes())


def test_a_size_that_the_pixels_deny_is_an_issue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _picture(tmp_path, "picture.png", "PNG")
    monkeypatch.setattr(image_files, "decode_rgb_eagerly", lambda data, jpeg: np.zeros([4, 5, 3], np.uint8))
    with pytest.raises(ImageFileError, match="the header declares 5x3 pixels, but 5x4 are decoded"):
        _read(path)


def test_an_exif_turn_is_seen_and_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (5, 3)).save(buffer, "JPEG", exif=exif)
    path = tmp_path / "turned.jpg"
    path.write_bytes(buffer.getvalue())
    file = _read(path)
    assert (file.format, file.height, file.width, file.orientation, file.turned) == ("jpeg", 3, 5, 6, True)


def test_awkward_images_are_accepted_or_refused_as_their_manifest_says(shared_data: Path) -> None:
    folder = shared_data / "nasty_images"
    accepted, refused = set(), set()
    entries = json.loads((folder / "manifest.json").read_text())["files"]
    for entry in entries:
        try:
            file = _read(folder / entry["file"])
        except ImageFileError:
            refused.add(entry["file"])
            continue
        accepted.add(entry["file"])
        assert [file.width, file.height] == entry["observed"]["stored_size"], entry["file"]
    assert accepted == {entry["file"] for entry in entries if entry["expect"] == "accept"}
    assert refused == {entry["file"] for entry in entries if entry["expect"] != "accept"}


def test_what_pillow_alone_reads_is_converted(shared_data: Path) -> None:
    folder = shared_data / "nasty_images"
    for entry in json.loads((folder / "manifest.json").read_text())["files"]:
        if entry["expect"] != "accept_if_reencoded_else_skip":
            continue
        data = (folder / entry["file"]).read_bytes()
        with pytest.raises(ImageFileError) as caught:
            inspect_image(data, max_pixels=LIMIT)
        assert caught.value.kind == "image_unsupported"
        file = converted(data)
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(decode_rgb(tf.constant(file.data)), expected)
        assert inspect_image(file.data, max_pixels=LIMIT)[1:4] == ("png", *expected.shape[:2])


def test_what_would_be_clipped_is_not_converted(tmp_path: Path) -> None:
    path = tmp_path / "deep.tiff"
    Image.fromarray(np.array([[0, 60_000]], np.uint16)).save(path)
    with pytest.raises(ImageFileError, match="colours of type I;16 cannot be converted to 8 bits") as caught:
        converted(path.read_bytes())
    assert caught.value.kind == "image_broken"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_what_pillow_does_and_loses_nothing(orientation: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    file = turned(inspect_image(buffer.getvalue(), max_pixels=LIMIT))
    with Image.open(buffer) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode_rgb(tf.constant(file.data)), expected)
    assert (file.height, file.width, file.orientation) == (*expected.shape[:2], 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../secret.png", "image_unsafe"),
        ("a/../../secret.png", "image_unsafe"),
        ("link.png", "image_unsafe"),
        ("folder/secret.png", "image_unsafe"),
        ("nul\0.png", "image_unsafe"),
        ("a", "image_missing"),
        ("pipe", "image_missing"),
        ("x" * 400, "image_missing"),
    ],
)
def test_only_files_below_the_folder_are_read(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "images/a").mkdir(parents=True)
    secret = _picture(tmp_path, "secret.png", "PNG")
    (tmp_path / "images/link.png").symlink_to(secret)
    (tmp_path / "images/folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "images/pipe")
    root = str(tmp_path / "images")
    with pytest.raises(ImageFileError) as caught:
        read_file(root, name, max_pixels=LIMIT)
    assert caught.value.kind == kind
    assert ("is a link to a file outside" in caught.value.message) == name.startswith(("link", "folder"))
    with pytest.raises(ImageFileError) as caught:
        read_file(root, str(secret), max_pixels=LIMIT)
    assert caught.value.kind == "image_unsafe"
    (tmp_path / "images/a/inner.png").symlink_to(_picture(tmp_path / "images", "good.png", "PNG"))
    assert read_file(root, "a/inner.png", max_pixels=LIMIT) == (tmp_path / "images/good.png").read_bytes()


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _picture(tmp_path, "picture.png", "PNG", (20, 30))
    frames = [Image.new("RGB", (20, 30), (90 * number, 0, 0)) for number in range(3)]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    assert _read(path, 600).width == 20
    monkeypatch.setattr(image_files, "decode_rgb_eagerly", lambda data, jpeg: pytest.fail("decoded"))
    with pytest.raises(
        ImageFileError, match=r"the image has 20x30 pixels, 600 with all frames, more than 599.*raise data\.max_pixels"
    ):
        _read(path, 599)
    with pytest.raises(ImageFileError, match="1800 with all frames"):
        _read(tmp_path / "frames.gif", 1799)
    (tmp_path / "large.png").write_bytes(path.read_bytes() + bytes(3 << 20))
    with pytest.raises(ImageFileError, match="more than 600 pixels need") as caught:
        _read(tmp_path / "large.png", 600)
    assert caught.value.kind == "image_huge"


def test_the_digest_is_of_the_pixels(tmp_path: Path) -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    digests = set()
    for row in range(9):  # most of them not among the sample
        pixels[row, 1] = 200
        Image.fromarray(pixels).save(tmp_path / f"{row}.png")
        digests.add(_read(tmp_path / f"{row}.png").digest)
        Image.fromarray(pixels).save(tmp_path / f"{row}.bmp")
        digests.add(_read(tmp_path / f"{row}.bmp").digest)
    assert len(digests) == 9


def test_a_folder_may_be_reached_by_a_link(tmp_path: Path) -> None:
    path = _picture(tmp_path, "one.png", "PNG")
    (tmp_path / "link").symlink_to(tmp_path)
    assert read_file(str(tmp_path / "link"), "one.png", max_pixels=LIMIT) == path.read_bytes()
    with pytest.raises(ImageFileError, match="is outside of the image folder"):
        read_file(str(tmp_path / "link"), "../one.png", max_pixels=LIMIT)
