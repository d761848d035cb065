"""Working folders: a local folder that follows a remote one, for programs that write in place."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from detection.storage.file_system import file_system
from detection.storage.lock import FolderLock


class Mirror:
    """A folder to work in, and the path that it belongs to.

    For a local path, the folder is the path itself, and there is nothing to pull or push;
    `gcs.mirror.RemoteMirror` is the one for a remote path.

    Attributes:
        path: path that the folder belongs to.
        local: folder to read and write.
    """

    def __init__(self, path: str, local: Path) -> None:
        self.path = path
        self.local = local

    def pull(self) -> None:
        """Makes the local folder's files those of the remote one, as of one moment.

        Local files that were never pushed stay, unless the remote folder has files of their names.

        Raises:
            DataError: the remote folder cannot be read, or changes all the time.
        """

    def push(self) -> None:
        """Uploads the files that changed since the last `pull` or `push`, and deletes the removed ones.

        Files come first, then those of `last` in order, so that the files they name exist; deletions
        come at the end. After a failure, the next `push` uploads the rest.

        Raises:
            ConflictError: another process wrote or removed one of these objects, or the response to an
                earlier write got lost.
            CocoflowError: another process holds the folder by now.
            DataError: the remote folder cannot be written.
        """

    def push_folder(self, name: str, *, last: Sequence[str]) -> None:
        """Uploads a folder that `push` excludes, over an old one, so that it appears complete.

        Args:
            name: relative path of the folder.
            last: see `atomic.new_directory`.

        Raises:
            DataError: the remote folder cannot be written.
        """


def working_folder(
    path: str | Path, *, last: Sequence[str] = (), exclude: Sequence[str] = (), use: FolderLock | None = None
) -> AbstractContextManager[Mirror]:
    """Yields a folder to work in, with the content of `path`; the block calls `push`.

    Remote: a temporary folder, which is removed when the block ends, without a `push`: the
    block decides which state others see. A `CocoflowError` of the block names `path` instead of it.

    Args:
        path: local or remote folder; a remote one need not exist, a local one is made.
        last: patterns of relative paths or names of files that name others, such as `*.index` and
            `checkpoint`; they are uploaded after all others, in this order.
        exclude: patterns of files that are not mirrored.
        use: lock of the folder, checked by every `push`; None: nobody holds it.

    Raises:
        DataError: see `Mirror.pull`.
    """
    return file_system(path).working_folder(str(path), last=last, exclude=exclude, use=use)
