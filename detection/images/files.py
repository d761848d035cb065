"""Image files: safe reading below a folder, and headers."""

import errno
import io
import os
import posixpath
import stat
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from detection.storage import files
from detection.storage.files import file_system
from detection.storage.paths import REMOTE_PREFIX, is_remote, split

_MAX_BYTES_PER_PIXEL = 16  # twice 16-bit RGBA: no valid file is larger
_HEADROOM = 1 << 20  # bytes of a file besides its pixels
_PATH_BYTES = 4096  # max length of a path on Linux
EXIF_ORIENTATION = 0x0112  # EXIF tag
_TURNED = (5, 6, 7, 8)  # values of the tag that swap width and height
_SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"}


class ImageFileError(Exception):
    """An image that cannot be used.

    kind: kind of issue, a key of `schemas.config.issues.ISSUE_KINDS`.
    message: the reason, and what to do about the file.
    option: alternative in the configuration; commands without configuration omit it.
    """

    def __init__(self, kind: str, message: str, *, option: str = "") -> None:
        super().__init__(f"{message} {option}".rstrip())
        self.kind = kind
        self.message = message


def read_file(root: str, file_name: str, *, max_pixels: int) -> bytes:
    """Reads an image file below a folder, and no other file.

    Args:
        root: the folder.
        file_name: path relative to the folder.
        max_pixels: limit that bounds the size of the file.

    Raises:
        ImageFileError: the path is outside of the folder, also by a symbolic link; there is no
            such file; it is empty or far too large.
        DataError: the folder is remote and the service does not respond, which is not an issue of the image.
    """
    try:
        return (_read_remote if is_remote(root) else _read_local)(root, file_name, max_pixels)
    except OSError as error:
        raise ImageFileError(
            "image_missing", f"cannot read the image file: {error.strerror}. Copy it there or correct file_name."
        ) from None
    except ValueError as error:  # a NUL character
        raise ImageFileError("image_unsafe", f"invalid file_name: {error}. Correct it.") from None


def _read_local(root: str, file_name: str, max_pixels: int) -> bytes:
    if len(os.fsencode(file_name)) > _PATH_BYTES:  # `realpath` would resolve it part by part
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    folder = os.path.realpath(root)  # the data set's folder may be a link
    path = os.path.realpath(os.path.join(folder, file_name))
    if os.path.isabs(file_name) or os.path.commonpath([folder, path]) != folder:
        named = os.path.normpath(os.path.join(folder, file_name))
        raise _outside(is_link=os.path.commonpath([folder, named]) == folder)
    # Not `path`: the resolved path hides that "1.png/" and "1.png/../2.png" are not valid names of files.
    state = os.stat(os.path.join(root, file_name))
    if not stat.S_ISREG(state.st_mode):
        raise _no_file()
    if state.st_size > _max_bytes(max_pixels):
        raise _too_large(state.st_size, max_pixels)
    return Path(path).read_bytes()


def _read_remote(root: str, file_name: str, max_pixels: int) -> bytes:
    path = image_path(root, file_name)
    if path is None:
        raise _outside()
    names = file_name.split("/")
    through = (image_path(root, "/".join(names[:place])) for place, name in enumerate(names) if name == "..")
    if names[-1] in ("", ".", "..") or not all(folder and files.is_dir(folder) for folder in through):
        raise _no_file()
    content = file_system(path).read(path, 0, _max_bytes(max_pixels) + 1)
    if len(content) > _max_bytes(max_pixels):
        state = files.find_file(path)
        raise _too_large(state.size if state else len(content), max_pixels)
    return content


def image_path(root: str, file_name: str) -> str | None:
    """Returns the path of an image below a folder; None: the path is outside of a remote folder.

    Annotation files have names such as `./1.jpg`, which Cloud Storage does not normalize.

    Raises:
        ValueError: the name is not a valid path: it has half a character or a NUL.
    """
    if not is_remote(root):
        return os.path.join(root, file_name)
    if b"\0" in file_name.encode():
        raise ValueError("embedded null byte")
    bucket, key = split(root)
    top = f"/{key}" if key else ""
    whole = posixpath.normpath(f"{top}/{file_name}")
    if file_name.startswith("/") or not (whole == top or whole.startswith(f"{top}/")):
        return None
    return f"{REMOTE_PREFIX}{bucket}{whole}".rstrip("/")


def _max_bytes(max_pixels: int) -> int:
    return max_pixels * _MAX_BYTES_PER_PIXEL + _HEADROOM


def _outside(*, is_link: bool = False) -> ImageFileError:
    what = "is a link to a file" if is_link else "is"
    return ImageFileError("image_unsafe", f"file_name {what} outside of the image folder. Copy the file into it.")


def _no_file() -> ImageFileError:
    return ImageFileError("image_missing", "not a file. Correct file_name.")


def _too_large(size: int, max_pixels: int) -> ImageFileError:
    return ImageFileError(
        "image_huge",
        f"the file has {size} bytes, more than {max_pixels} pixels need. Scale the image down.",
        option="Or raise data.max_pixels.",
    )


class Header(NamedTuple):
    """An image's header.

    format: Pillow's name in lower case, such as "jpeg" or "tiff"; "jpeg" also for several JPEGs in one file.
    mode: Pillow's name of the colour type in the file, such as "RGB", "L" or "CMYK".
    height, width: pixels, as stored.
    orientation: EXIF's, 1..8; 1 if there is none.
    """

    format: str
    mode: str
    height: int
    width: int
    orientation: int = 1

    @property
    def turned(self) -> bool:
        """True if an EXIF tag makes viewers swap height and width."""
        return swaps_sides(self.orientation)


_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")
# Suffixes of image files in practice.
_OTHERS = {
    b"PK\x03\x04": "a ZIP archive",
    b"%PDF": "a PDF document",
    b"<!DOCTYPE html": "an HTML page, perhaps the answer to a download that failed",
    b"<html": "an HTML page, perhaps the answer to a download that failed",
    b"<svg": "an SVG drawing",
    b"version https://git-lfs": "a Git LFS pointer: fetch the files with `git lfs pull`",
}


def _other_kind(encoded: bytes) -> str:
    """Says what a file is that is no image for Pillow, by its first bytes."""
    names = (name for start, name in _OTHERS.items() if encoded.startswith(start))
    return ": ".join(["no known format", *names])


def read_header(encoded: bytes, *, max_pixels: int | None = None) -> Header:
    """Reads an image's header, without decoding pixels.

    Args:
        encoded: the image file's content.
        max_pixels: max pixels of the image, over all frames of a GIF; None: Pillow's limit.

    Raises:
        ImageFileError: the header cannot be read, or declares too many pixels.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and max_pixels is not None and max_pixels > limit:
        Image.MAX_IMAGE_PIXELS = max_pixels  # set by the user
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            name = str(image.format).lower()
            # All frames of a GIF are unpacked.
            frames = getattr(image, "n_frames", 1) if name == "gif" and max_pixels is not None else 1
            # MPO: several JPEGs in one file, as phones write to .jpg; decoders use the first.
            header = Header(
                "jpeg" if name == "mpo" else name, image.mode, image.height, image.width, _orientation(image)
            )
    except Image.DecompressionBombError:  # its message has a limit of Pillow's
        most = max_pixels or 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise ImageFileError(
            "image_huge",
            f"by its header the image has more than {most} pixels. Scale it down.",
            option="Or raise data.max_pixels.",
        ) from None
    except Exception as error:  # Pillow's format plugins raise errors of many types
        reason = _other_kind(encoded) if isinstance(error, Image.UnidentifiedImageError) else str(error)
        if encoded[4:8] == b"ftyp" and encoded[8:12] in _HEIC:
            raise ImageFileError(
                "image_unsupported",
                "the file is HEIC, as iPhones write it, whatever its name says. Convert it to JPEG.",
            ) from None
        raise ImageFileError(
            "image_broken", f"not a readable image ({reason}). Copy the file again or convert it again."
        ) from None
    pixels = header.height * header.width * frames
    if max_pixels is not None and pixels > max_pixels:
        raise ImageFileError(
            "image_huge",
            f"the image has {header.width}x{header.height} pixels, {pixels} with all frames, more than {max_pixels}. "
            "Scale it down.",
            option="Or raise data.max_pixels.",
        )
    return header


def swaps_sides(orientation: int) -> bool:
    """Returns whether an EXIF orientation swaps height and width."""
    return orientation in _TURNED


def suffix_of(image_format: str) -> str:
    """Returns the suffix of files in a format, such as ".jpg"."""
    return _SUFFIXES.get(image_format, f".{image_format}")


def has_image_suffix(name: str) -> bool:
    """Returns whether a file name has the suffix of an image file."""
    return f".{name.rpartition('.')[2].lower()}" in Image.registered_extensions()


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(EXIF_ORIENTATION)
    except Exception:  # damaged EXIF data must not reject valid pixels
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
