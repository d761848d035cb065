"""Checksums of files, and of those of an exported model, so that a broken copy is reported instead of loaded."""

import hashlib
from pathlib import Path, PurePosixPath

from detection.storage.atomic import write_json
from detection.storage.file_system import OWN_FILES
from detection.storage.files import is_file, local_copy, walk_files, walk_states
from detection.storage.gcs.objects import crc32c
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import CHECKSUMS_JSON, EXTRA_FILES
from schemas.errors import DataError


def sha256(path: str | Path) -> str:
    """Computes the SHA-256 of a local file, in hex; `files.local_copy` makes a remote one local.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents(folder: str | Path) -> dict[str, tuple[int, str]]:
    """Returns size in bytes and CRC32C, in base64, of each file below a folder by relative path.

    Files that mark the state of a remote folder are omitted.

    Raises:
        DataError: a file is a pipe, socket or device, or cannot be read.
    """
    return {
        # Not every service sends checksums.
        name: (state.size, state.checksum or crc32c(local_copy(join(folder, name))))
        for name, state in walk_states(folder).items()
        if name not in OWN_FILES
    }


def write_checksums(folder: Path) -> None:
    """Writes the SHA-256 of each file of a SavedModel to `assets.extra/`; files in there do not count.

    Args:
        folder: local folder of the SavedModel.
    """
    names = (name for name in walk_files(folder) if not name.startswith(f"{EXTRA_FILES}/"))
    write_json(folder / EXTRA_FILES / CHECKSUMS_JSON, {name: sha256(folder / name) for name in names})


def require_checksums(folder: str | Path, local: str | Path, *, below: str = "") -> None:
    """Compares files of a SavedModel with the checksums in it; a model of another tool has no checksums.

    Args:
        folder: SavedModel, local or remote.
        local: local folder with the content of `folder`, or of its subfolder `below`.
        below: name of the subfolder; "": all files are compared.

    Raises:
        DataError: a file is missing or differs, or the list of checksums is damaged.
    """
    path = join(folder, EXTRA_FILES, CHECKSUMS_JSON)
    if not is_file(path):
        return
    checksums = read_json(path)
    if not isinstance(checksums, dict):
        raise DataError(f"{path}: not a list of checksums. Export or copy the model again.")
    for name, expected in checksums.items():
        if not PurePosixPath(name).is_relative_to(below):
            continue
        file = Path(local, PurePosixPath(name).relative_to(below))
        if not is_file(file):
            raise DataError(f"{join(folder, name)}: the file is missing. Export or copy the model again.")
        if sha256(file) != expected:
            raise changed_file(join(folder, name), path)


def changed_file(path: str, listed_in: str) -> DataError:
    """Returns the error for a file whose SHA-256 is not the one that was written at its export."""
    return DataError(
        f"{path}: the file was cut off or changed after its export: its SHA-256 is not the one in {listed_in}. "
        "Export or copy the model again."
    )
