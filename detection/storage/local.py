"""Local files and folders."""

import contextlib
import glob
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from detection.storage.atomic import fsync_path, fsync_tree, new_directory, new_path, not_empty
from detection.storage.file_system import FileState, file_system
from detection.storage.files import explained
from detection.storage.paths import name_of
from detection.storage.temporary import hidden_sibling, temporary_folder
from schemas.errors import DataError

if TYPE_CHECKING:
    from detection.storage.lock import FolderLock
    from detection.storage.mirror import Mirror
    from detection.storage.publication import LocalVersions

MAX_PIPE_BYTES = 512 << 20


class LocalFiles:
    """The local file system; see `file_system.file_system`. Follows links."""

    requests = 1  # to make at a time, as a response takes no time
    is_file = staticmethod(os.path.isfile)
    is_dir = staticmethod(os.path.isdir)
    map = map

    def find(self, path: str) -> FileState | None:
        """Returns the state of a file or folder."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        return FileState(path, status.st_size, status.st_mtime_ns, status.st_mtime)

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        """Lists links to folders among the folders, or with `follow_links=False` among the files."""
        if not os.path.isdir(path):
            return [], []
        with explained(path, "list the folder"), os.scandir(path) as found:
            entries = sorted(found, key=lambda one: one.name)
        folders = [
            one.name
            for one in entries
            # `is_dir` that follows links raises an error for a link to itself.
            if one.is_dir(follow_symlinks=False) or (follow_links and one.is_symlink() and os.path.isdir(one.path))
        ]
        return sorted({one.name for one in entries}.difference(folders)), folders

    def walk(self, path: str, *, follow_links: bool) -> dict[str, FileState]:
        """Omits links that lead nowhere."""
        found = {}
        for current, folders, names in os.walk(path, followlinks=follow_links):
            above = [Path(current), *Path(current).parents]
            for link in (os.path.join(current, name) for name in folders if follow_links):
                if os.path.islink(link) and any(os.path.samefile(link, one) for one in above):
                    raise DataError(f"{link}: this link leads back to a folder that contains it. Remove it.")
            for file in (os.path.join(current, name) for name in names):
                if (state := self.find(file)) is not None:
                    found[Path(file).relative_to(path).as_posix()] = state
        return dict(sorted(found.items()))

    def glob(self, pattern: str) -> list[str]:
        """Lists matching paths."""
        paths = glob.glob(pattern, recursive=True)
        # Older Pythons take a file for a folder in front of `**`.
        return sorted({path for path in paths if not path.endswith("/") or os.path.isdir(path)})

    def resolve(self, path: str) -> str:
        """Returns the absolute path without links."""
        return os.path.realpath(path)

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Reads a file or a pipe."""
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode)):  # a device may have no end
            raise DataError(f"{path}: this is a device or socket. Name a file, or a pipe.")
        with open(path, "rb") as file:
            if stat.S_ISFIFO(mode):
                return _read_pipe(path, file)
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading."""
        return open(path, "rb")

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        """Copies or links a file."""
        if not link:
            shutil.copyfile(path, destination)
            return
        try:
            os.link(path, destination)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copy2(path, destination)

    def local_copy(self, path: str, *, complete: str | None, only: Sequence[str]) -> Path:
        """Returns the path itself."""
        return Path(path)

    def write(self, path: str, content: bytes, *, durable: bool) -> None:
        """Writes a file beside an old one, and renames it."""
        with new_path(path, durable=durable) as unfinished:
            unfinished.write_bytes(content)

    def create(self, path: str, content: bytes) -> None:
        """Writes a new file."""
        if not os.path.lexists(path):
            self.write(path, content, durable=True)
        elif not os.path.isfile(path) or self.read(path) != content:
            raise DataError(f"{path}: exists already with other content. Remove it, then rerun.")

    def copy(self, source: str, path: str) -> None:
        """Writes the copy in place."""
        with explained(path):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            file_system(source).download(source, Path(path))

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        """Renames the file."""
        if durable:
            fsync_path(file)
        file.replace(path)
        if durable:
            fsync_path(Path(path).parent)

    def move_folder(self, folder: Path, path: str, *, last: Sequence[str], replace: bool) -> None:
        """Renames the folder, after an old one."""
        fsync_tree(folder)
        with contextlib.ExitStack() as stack:
            if replace and os.path.isdir(path):
                old = stack.enter_context(temporary_folder(path))
                Path(path).rename(old / name_of(path))
            folder.rename(path)
            fsync_path(Path(path).parent)

    def require_free(self, path: str, *, last: Sequence[str]) -> None:
        """Requires that the folder is empty, or does not exist."""
        with explained(path):
            if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
                raise not_empty(path)

    def shared_directory(self, path: str, *, last: str) -> contextlib.AbstractContextManager[Path]:
        """Yields a hidden folder beside `path`."""
        return new_directory(path)

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it."""
        with explained(path, "make the folder"):
            os.makedirs(path, exist_ok=True)

    def require_writable(self, path: str) -> None:
        """Writes and removes an empty file."""
        probe = hidden_sibling(Path(path) / "probe")
        with explained(path):
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()

    def remove_file(self, path: str) -> None:
        """Removes a file."""
        with explained(path, "remove"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None:
        """Removes a folder."""
        if at_once:
            with explained(path, "remove"), contextlib.suppress(FileNotFoundError), temporary_folder(path) as hidden:
                Path(path).rename(hidden / name_of(path))
            return
        for name in first:
            self.remove_file(os.path.join(path, name))
        with explained(path, "remove"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def working_folder(
        self, path: str, *, last: Sequence[str], exclude: Sequence[str], use: "FolderLock | None"
    ) -> "contextlib.AbstractContextManager[Mirror]":
        """Yields the folder itself."""
        from detection.storage.mirror import Mirror

        self.make_folder(path)
        return contextlib.nullcontext(Mirror(path, Path(path)))

    def lock(self, path: str, *, instead: str) -> "contextlib.AbstractContextManager[FolderLock]":
        """Holds a folder by a lock of the file system."""
        from detection.storage.lock import hold_local_folder

        return hold_local_folder(path, instead=instead)

    def versions(self, path: str) -> "LocalVersions":
        """Returns a folder of numbered versions."""
        from detection.storage.publication import LocalVersions

        return LocalVersions(path)


def _read_pipe(path: str, file: BinaryIO) -> bytes:
    content = file.read(MAX_PIPE_BYTES + 1)
    if len(content) > MAX_PIPE_BYTES:
        raise DataError(
            f"{path}: more than {MAX_PIPE_BYTES >> 20} MiB came through this pipe. Write it to a file first."
        )
    return content
