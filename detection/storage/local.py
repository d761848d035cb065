"""Local files and folders; links are followed."""

import contextlib
import glob
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from detection.storage.file_system import FileState, explain_errors, not_empty
from detection.storage.paths import name_of
from detection.storage.temporary import temporary_file, temporary_folder
from schemas.errors import DataError

MAX_PIPE_BYTES = 512 << 20


class LocalFiles:
    """The local file system; see `file_system.Files`."""

    requests = 1  # to make at a time, as a response takes no time
    is_file = staticmethod(os.path.isfile)
    is_dir = staticmethod(os.path.isdir)
    map = map

    def find_file(self, path: str) -> FileState | None:
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        return FileState(path, status.st_size, status.st_mtime_ns, status.st_mtime)

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        if not os.path.isdir(path):
            return [], []
        with explain_errors(path, "list the folder"), os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        folders = [
            entry.name
            for entry in entries
            # `is_dir` that follows links raises an error for a link to itself.
            if entry.is_dir(follow_symlinks=False)
            or (follow_links and entry.is_symlink() and os.path.isdir(entry.path))
        ]
        return sorted({entry.name for entry in entries}.difference(folders)), folders

    def walk_states(self, path: str, *, follow_links: bool) -> dict[str, FileState]:
        """Omits links that lead nowhere."""
        found = {}
        for current, folders, names in os.walk(path, followlinks=follow_links):
            above = [Path(current), *Path(current).parents]
            for link in (os.path.join(current, name) for name in folders if follow_links):
                if os.path.islink(link) and any(os.path.samefile(link, folder) for folder in above):
                    raise DataError(f"{link}: this link leads back to a folder that contains it. Remove it.")
            for file in (os.path.join(current, name) for name in names):
                if (state := self.find_file(file)) is not None:
                    found[Path(file).relative_to(path).as_posix()] = state
        return dict(sorted(found.items()))

    def glob(self, pattern: str) -> list[str]:
        paths = glob.glob(pattern, recursive=True)
        # Older Pythons take a file for a folder in front of `**`.
        return sorted({path for path in paths if not path.endswith("/") or os.path.isdir(path)})

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):  # a device may have no end
            raise DataError(f"{path}: this is a device or socket. Name a file, or a pipe.")
        with open(path, "rb") as file:
            if stat.S_ISFIFO(mode):
                return _read_pipe(path, file)
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        if not link:
            shutil.copyfile(path, destination)
            return
        try:
            os.link(path, destination)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copy2(path, destination)

    def write_bytes(self, path: str, content: bytes, *, durable: bool) -> None:
        with explain_errors(path), temporary_file(Path(path)) as unfinished:
            unfinished.write_bytes(content)
            self.move_file(unfinished, path, durable=durable)

    def create(self, path: str, content: bytes) -> None:
        if not os.path.lexists(path):
            self.write_bytes(path, content, durable=True)
        elif not os.path.isfile(path) or self.read(path) != content:
            raise DataError(f"{path}: exists already with other content. Remove it, then rerun.")

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        if durable:
            fsync_path(file)
        file.replace(path)
        if durable:
            fsync_path(Path(path).parent)

    def move_folder(self, folder: Path, path: str, *, last: Sequence[str], replace: bool) -> None:
        fsync_tree(folder)
        with contextlib.ExitStack() as stack:
            if replace and os.path.isdir(path):
                old = stack.enter_context(temporary_folder(path))
                Path(path).rename(old / name_of(path))
            folder.rename(path)
            fsync_path(Path(path).parent)

    def require_free(self, path: str, *, last: Sequence[str]) -> None:
        with explain_errors(path):
            if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
                raise not_empty(path)

    def require_writable(self, folder: str) -> None:
        with explain_errors(folder), temporary_file(Path(folder, "probe")) as probe:
            probe.touch()

    def remove_file(self, path: str) -> None:
        with explain_errors(path, "remove"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None:
        if at_once:
            with (
                explain_errors(path, "remove"),
                contextlib.suppress(FileNotFoundError),
                temporary_folder(path) as hidden,
            ):
                Path(path).rename(hidden / name_of(path))
            return
        for name in first:
            self.remove_file(os.path.join(path, name))
        with explain_errors(path, "remove"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _read_pipe(path: str, file: BinaryIO) -> bytes:
    content = file.read(MAX_PIPE_BYTES + 1)
    if len(content) > MAX_PIPE_BYTES:
        raise DataError(
            f"{path}: more than {MAX_PIPE_BYTES >> 20} MiB came through this pipe. Write it to a file first."
        )
    return content


def require_files(local: Iterable[str]) -> None:
    """Requires that local paths are files: libraries wait for a pipe's writer, and read a device without end.

    Raises:
        DataError: one is a pipe, a socket, a device or a folder, or leads nowhere.
    """
    for path in local:
        if not os.path.isfile(path):
            raise DataError(f"{path}: a pipe, socket, device or folder; a file is expected. Move it away.")


def fsync_tree(folder: str | Path) -> None:
    """Flushes every file and folder below `folder`, and itself, to the disk."""
    for current, _, files in os.walk(folder, topdown=False):
        for name in files:
            fsync_path(Path(current, name))
        fsync_path(current)


def fsync_path(path: str | Path) -> None:
    """Flushes one file's content, or one folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
