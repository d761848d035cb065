"""Paths as text: local ones, and `gs://bucket/key` ones of Google Cloud Storage.

A remote path is always a `str`: `pathlib.Path` makes one slash of the two.
The functions here are like those of `os.path`, for both kinds, and touch no storage.
"""

import glob
import itertools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import ConfigError
from schemas.quoting import one_line

REMOTE_PREFIX = "gs://"

# A drive letter such as `C:` is no scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.\-]{1,220}[a-z0-9]")
_COLLAPSED = re.compile(r"gs:/[^/]")
_PATTERN_CHARACTER = re.compile(r"[\[\]*?\\]")


def is_remote(path: str | Path) -> bool:
    """Returns whether a path is on Cloud Storage.

    Raises:
        ValueError: a `gs://` path went through `pathlib`, which is a bug of the caller.
    """
    if isinstance(path, Path):
        if _COLLAPSED.match(str(path)):
            raise ValueError(f"{path}: a remote path went through pathlib, which removed a slash")
        return False
    return path.startswith(REMOTE_PREFIX)


def require_supported(path: str | Path, key: str) -> None:
    """Checks that a path of a user is local or a well-formed `gs://` path; does not look for it.

    `file://` is refused like other schemes: a folder with two spellings would have two locks.

    Args:
        path: as the user gave it.
        key: flag or configuration key that holds it, for the message.

    Raises:
        ConfigError: another scheme, no bucket, or a key that no file system can mirror.
    """
    text = str(path)
    if text == "~" or text.startswith("~/"):
        raise ConfigError(f"{key} {one_line(text)}: only the shell knows ~. Write {os.path.expanduser(text)}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        if _COLLAPSED.match(text):
            raise ConfigError(f"{key} {text}: one slash is missing. Write {REMOTE_PREFIX}{text[4:]}.")
        return
    if scheme[1] == "file":
        raise ConfigError(f"{key} {one_line(text)}: write a local path without file://: {text[7:] or '/'}")
    if scheme[1] != "gs":
        raise ConfigError(
            f"{key} {one_line(text)}: {scheme[1]}:// is not supported. "
            "Use a local path, a folder where the store is mounted, or gs://BUCKET/FOLDER."
        )
    bucket, _, name = text.removeprefix(REMOTE_PREFIX).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{key} {one_line(text)}: {bucket!r} is not the name of a bucket. Write gs://BUCKET/FOLDER.")
    parts = name.rstrip("/").split("/") if name else []
    if any(part in {"", ".", ".."} for part in parts) or not text.isprintable():
        raise ConfigError(
            f"{key} {one_line(text)}: Cloud Storage takes '//', '.' and '..' for names of folders, and does not "
            "take control characters. Write the path without them."
        )


def join(base: str | Path, *names: str) -> str:
    """Returns a path below `base`.

    Args:
        base: folder.
        names: relative paths, with `/` between names.
    """
    if is_remote(base):
        return "/".join([str(base).rstrip("/"), *(name.strip("/") for name in names if name)])
    return os.path.join(base, *names)


def parent(path: str | Path) -> str:
    """Returns the folder of a path; that of a bucket is the bucket."""
    if not is_remote(path):
        return str(Path(path).parent)
    bucket, key = split(path)
    return REMOTE_PREFIX + "/".join([bucket, *key.split("/")[:-1]])


def name_of(path: str | Path) -> str:
    """Returns the last name of a path; that of a bucket is the bucket's."""
    return Path(path).name if not is_remote(path) else str(path).rstrip("/").rsplit("/", maxsplit=1)[-1]


def with_name(path: str | Path, name: str) -> str:
    """Returns the path of another name in the folder of `path`."""
    return join(parent(path), name) if is_remote(path) else str(Path(path).with_name(name))


def stem(path: str | Path) -> str:
    """Returns the last name of a path without its last suffix."""
    return Path(name_of(path)).stem


def suffix(path: str | Path) -> str:
    """Returns the last suffix of a path with its dot, such as `.json`; "": none."""
    return Path(name_of(path)).suffix


def absolute(path: str | Path) -> str:
    """Returns a local path that holds from any working folder; a remote one as it is, without a last slash."""
    return str(path).rstrip("/") if is_remote(path) else str(Path(path).absolute())


def shown(path: str | Path) -> str:
    """Returns a path for the terminal: a local one below the current folder relative to it, any other as `absolute`."""
    text = absolute(path)
    folder = os.getcwd()
    below = not is_remote(text) and text != folder and os.path.commonpath([text, folder]) == folder
    return os.path.relpath(text, folder) if below else text


def normalized(path: str | Path) -> str:
    """Returns a path as text without a last slash, a local one also without needless dots and slashes."""
    return str(path).rstrip("/") if is_remote(path) else str(Path(path))


def common_folder(paths: Sequence[str]) -> str | None:
    """Returns the deepest folder that holds all paths, local or remote and absolute; None: no folder does."""
    if not any(map(is_remote, paths)):
        return os.path.commonpath(paths)
    levels = zip(*(path.split("/") for path in paths), strict=False)
    folder = "/".join(names[0] for names in itertools.takewhile(lambda names: len(set(names)) == 1, levels))
    return folder if is_remote(folder) and split(folder)[0] else None


def local_place(path: str | Path) -> Path:
    """Returns the path itself, or for a remote one, whose name may be too long, a path among the temporary files."""
    return Path(tempfile.gettempdir(), "cocoflow") if is_remote(path) else Path(path)


def relative(path: str | Path, folder: str | Path) -> str:
    """Returns a path below `folder`, with `/` between names.

    Raises:
        ValueError: `path` is not below `folder`.
    """
    if not is_remote(path):
        return Path(path).relative_to(folder).as_posix()
    start = str(folder).rstrip("/") + "/"
    if not str(path).startswith(start):
        raise ValueError(f"{path} is not below {folder}")
    return str(path).removeprefix(start)


def split(path: str | Path) -> tuple[str, str]:
    """Returns bucket and key of a remote path, the key without a last slash."""
    bucket, _, key = str(path).removeprefix(REMOTE_PREFIX).partition("/")
    return bucket, key.rstrip("/")


def escape(path: str | Path) -> str:
    """Returns the pattern that matches this very path in `files.glob`."""
    return glob.escape(str(path))


def literal_path(path: str | Path, key: str = "") -> str:
    """Returns a path as text if TensorFlow finds the files of checkpoints and SavedModels there.

    TensorFlow looks for them with patterns made of their paths, and there is no way to quote a bracket.

    Args:
        path: folder, or a path in one, such as a checkpoint's prefix.
        key: flag or configuration key that holds it, for the message.

    Raises:
        ConfigError: the path has a character with a meaning in patterns.
    """
    if _PATTERN_CHARACTER.search(str(path)):
        raise ConfigError(
            f"{f'{key} ' * bool(key)}{path}: TensorFlow takes paths with one of [ ] * ? \\ for patterns, and would not "
            "find its files there. Choose another folder; data may be in such a folder."
        )
    return str(path)
