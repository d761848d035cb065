"""Working folders of trainings: kept over kills, filled from a finished training, removed after publication.

TFX makes an output again if its files are damaged, or if those of an input were.  The
records are then the same as before, and so is the training: its last checkpoint saves it.
"""

import contextlib
import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from detection.storage.atomic import new_directory, write_json
from detection.storage.lock import exclusive_use
from schemas.artifacts import CHECKPOINTS, INIT_REPORT_JSON, LOGS, TRAINING_JSON, VALIDATION
from schemas.errors import CocoflowError

_PUBLISHED = "published"  # an empty file in a folder whose results are in the output artifacts
_REMOVED = ".removed"
_OWN = re.compile(rf"[0-9a-f]{{16}}({re.escape(_REMOVED)})?")  # what `working_name` gives; a user's folders stay
_ABANDONED_SECONDS = 14 * 24 * 3600.0
# The checkpoints come last: a copy that has them is complete.
_RESTORED = (VALIDATION, INIT_REPORT_JSON, CHECKPOINTS)

_LOGGER = logging.getLogger("cocoflow.trainer")


@contextlib.contextmanager
def working_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yields the working folder of a training, with the files that a killed one left there.

    When the block ends without an error, the folder is marked, and stays: a kill before TFX
    has registered the results makes the same training run again.  `remove_served` removes
    it at the start of the next training, and after a whole pipeline.

    Args:
        parent: folder of the working folders of all trainings of a run.
        name: name of this training, 16 hexadecimal digits.

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
    """Removes working folders that are no longer needed.

    These belong to published trainings, and to trainings that were not resumed for two
    weeks; folders that a living process holds stay.
    """
    for folder in filter(Path.is_dir, sorted(parent.iterdir()) if parent.is_dir() else []):
        # Checked first: the lock's file makes the folder young again.
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
    # Renamed first: a training must not resume from half a folder.
    gone = folder if folder.name.endswith(_REMOVED) else folder.rename(folder.with_name(folder.name + _REMOVED))
    shutil.rmtree(gone, ignore_errors=True)


def describe_training(model_run: Path, name: str) -> None:
    """Writes `TRAINING_JSON` into a ModelRun, with a checksum of each file to resume from.

    Args:
        model_run: folder with the training's files.
        name: name of the training; see `working_name`.
    """
    files = {str(path.relative_to(model_run)): _sha256(path) for path in _files(model_run)}
    write_json(model_run / TRAINING_JSON, {"training": name, "files": files})


def restore_training(working: Path, model_runs: Path, name: str) -> None:
    """Fills an empty working folder with the checkpoints of the same training, if an undamaged ModelRun has them.

    Args:
        working: the training's working folder.
        model_runs: folder of earlier executions' ModelRuns.
        name: name of the training.
    """
    if (working / CHECKPOINTS).exists():
        return
    runs = [run for run in model_runs.iterdir() if run.name.isdecimal()] if model_runs.is_dir() else []
    for run in sorted(runs, key=lambda run: int(run.name), reverse=True):
        if not _is_undamaged(run, name):
            continue
        _LOGGER.info("%s: resuming from this finished training, whose outputs have to be made again", run)
        for part in (LOGS, *_RESTORED):
            _copy(run / part, working / part)
        return


def _copy(source: Path, destination: Path) -> None:
    if source.is_file():
        shutil.copy(source, destination)
    elif source.is_dir():
        shutil.rmtree(destination, ignore_errors=True)
        with new_directory(destination) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)


def _is_undamaged(run: Path, name: str) -> bool:
    try:
        described = json.loads((run / TRAINING_JSON).read_bytes())
        files: Mapping[str, str] = described["files"]
        return described["training"] == name and all(_sha256(run / path) == digest for path, digest in files.items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _files(model_run: Path) -> list[Path]:
    starts = [model_run / part for part in _RESTORED]
    return sorted(path for start in starts for path in (start, *start.rglob("*")) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
