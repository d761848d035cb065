"""Reading image files below a folder, and nothing outside it."""

import os
import stat
from pathlib import Path

_MAX_BYTES_PER_PIXEL = 16  # 16-bit RGBA twice over: no sound file is larger
_HEADROOM = 1 << 20  # bytes a file may have besides its pixels


class ImageFileError(Exception):
    """Why an image cannot be used.

    kind: a kind of fault, see `schemas.config.faults`.
    message: the reason, and what to do about the file.
    option: what the configuration offers instead; commands that have none leave it out.
    """

    def __init__(self, kind: str, message: str, *, option: str = "") -> None:
        super().__init__(f"{message} {option}".rstrip())
        self.kind = kind
        self.message = message


def read_file(root: str, file_name: str, *, max_pixels: int) -> bytes:
    """Reads an image file below a folder, and nothing else.

    Args:
        root: the folder.
        file_name: relative to it.
        max_pixels: bounds the size of the file.

    Raises:
        ImageFileError: the name leads out of the folder, also by a symbolic link;
            there is no such file; it is empty or far too large.
    """
    try:
        folder = os.path.realpath(root)  # a data set may be reached by a link
        path = os.path.realpath(os.path.join(folder, file_name))
        if os.path.isabs(file_name) or os.path.commonpath([folder, path]) != folder:
            raise ImageFileError("image_unsafe", "file_name leads out of the image folder. Put the file below it.")
        # Not of `path`: resolving forgets that "1.png/" and "1.png/../2.png" name no file.
        state = os.stat(os.path.join(root, file_name))
        if not stat.S_ISREG(state.st_mode):
            raise ImageFileError("image_missing", "this is no file. Correct file_name.")
        if state.st_size > max_pixels * _MAX_BYTES_PER_PIXEL + _HEADROOM:
            raise ImageFileError(
                "image_huge",
                f"the file has {state.st_size} bytes, more than {max_pixels} pixels take. Scale the image down.",
                option="Or raise data.max_pixels.",
            )
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageFileError(
            "image_missing", f"cannot read the image file: {error.strerror}. Put it there or correct file_name."
        ) from None
    except ValueError as error:  # a NUL character
        raise ImageFileError("image_unsafe", f"file_name is none: {error}. Correct it.") from None
