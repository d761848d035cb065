"""Folders that trainings work in: kept over kills, removed when they have served."""

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from detection.storage.lock import exclusive_use
from schemas.errors import CocoflowError

_PUBLISHED = "published"  # an empty file in a folder whose results are in the output artifacts
_REMOVED = ".removed"
_OWN = re.compile(rf"[0-9a-f]{{16}}({re.escape(_REMOVED)})?")  # what `working_name` gives; a user's folders stay
_ABANDONED_SECONDS = 14 * 24 * 3600.0


@contextlib.contextmanager
def working_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yields the folder that a training works in, with what a killed one left there.

    When the block ends well, the folder is marked, and stays: a kill before TFX has
    registered the results makes the same training run again.  `remove_served` takes it
    away, here at the start of the next training, and after a whole pipeline.

    Args:
        parent: of the working folders of all trainings of a run.
        name: tells this training from others; 16 hexadecimal digits.

    Raises:
        CocoflowError: another process works in the folder.
        DataError: the folder cannot be written.
    """
    folder = parent / name
    with exclusive_use(folder, instead="give the other pipeline another run_root"):
        (folder / _PUBLISHED).unlink(missing_ok=True)
        remove_served(parent)
        yield folder
        (folder / _PUBLISHED).touch()


def remove_served(parent: Path) -> None:
    """Removes working folders that nobody needs any more.

    Those are, unless a living process holds them: of trainings that are published, and
    of trainings that nothing has gone on with for two weeks.
    """
    for folder in filter(Path.is_dir, sorted(parent.iterdir()) if parent.is_dir() else []):
        # Asked first: the lock's file makes the folder young again.
        if _OWN.fullmatch(folder.name) and (folder.name.endswith(_REMOVED) or _has_served(folder)):
            with contextlib.suppress(CocoflowError), exclusive_use(folder, instead="leave it") as held:
                if held:
                    _remove(folder)


def _has_served(folder: Path) -> bool:
    if (folder / _PUBLISHED).exists():
        return True
    touched = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    return time.time() - touched > _ABANDONED_SECONDS


def _remove(folder: Path) -> None:
    # Renamed first: half a folder must not be taken for one to go on from.
    gone = folder if folder.name.endswith(_REMOVED) else folder.rename(folder.with_name(folder.name + _REMOVED))
    shutil.rmtree(gone, ignore_errors=True)
