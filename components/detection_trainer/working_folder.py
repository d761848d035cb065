"""Working folders of trainings: kept over kills, filled from a finished training, removed after publication.

TFX makes an output again if its files are damaged, or if those of an input were.  The
records are then the same as before, and so is the training: its last checkpoint saves it.
"""

import contextlib
import itertools
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from detection.storage import files
from detection.storage.atomic import new_directory, write_json
from detection.storage.checksums import sha256
from detection.storage.file_system import LOCK_FILE, WorkingFolder
from detection.storage.files import local_copy, read_text
from detection.storage.json_files import read_json
from detection.storage.lock import lock_folder, open_working_folder
from detection.storage.paths import join
from detection.storage.temporary import remove_leftovers
from detection.training.checkpoints.files import checkpoint_steps
from detection.training.upload_order import UPLOADED_LAST
from schemas.artifacts import (
    BEFORE_DECAY,
    CHECKPOINTS,
    CONFIG_YAML,
    INIT_REPORT_JSON,
    LOGS,
    SAVED_MODEL,
    TRAINING_JSON,
    VALIDATION,
)
from schemas.config.config import Config
from schemas.config.config_io import from_yaml
from schemas.errors import CocoflowError, DataError

_PUBLISHED = "published"  # an empty file in a folder whose results are in the output artifacts
_OWN = re.compile(r"[0-9a-f]{16}")  # what `working_name` gives; a user's folders stay
_ABANDONED_SECONDS = 14 * 24 * 3600.0
# The checkpoints come last: a copy that has them is complete.
_RESTORED = (BEFORE_DECAY, VALIDATION, INIT_REPORT_JSON, CONFIG_YAML, CHECKPOINTS)
_TRIED = 5  # newest models whose trainings a longer one may continue

_LOGGER = logging.getLogger("cocoflow.trainer")


@contextlib.contextmanager
def working_folder(parent: str | Path, name: str) -> Iterator[WorkingFolder]:
    """Yields the working folder of a training, with the files that a killed one left there.

    A remote one is mirrored: what the block pushes is there after a kill, what else it wrote is
    there after an error.

    When the block ends without an error, the folder is marked, and stays: a kill before TFX
    has registered the results makes the same training run again.  `remove_served` removes
    it at the start of the next training, and after a complete pipeline.

    Args:
        parent: local or remote folder of the working folders of all trainings of a run.
        name: name of this training, 16 hexadecimal digits.

    Raises:
        CocoflowError: another process works in the folder, or has taken it over.
        DataError: the folder cannot be written.
    """
    folder = join(parent, name)
    with (
        lock_folder(folder, instead="give the other pipeline another run_root") as use,
        open_working_folder(folder, last=UPLOADED_LAST, exclude=[f"{SAVED_MODEL}/*"], use=use) as working,
    ):
        published = working.local / _PUBLISHED
        published.unlink(missing_ok=True)
        remove_served(parent, keep=name)
        try:
            yield working
        except Exception:
            with contextlib.suppress(CocoflowError):  # the block's error counts
                working.push()
            raise
        use.require_held()
        published.touch()
        working.push()


def remove_served(parent: str | Path, *, keep: str | None = None) -> None:
    """Removes working folders that are no longer needed.

    These belong to published trainings, and to trainings that were not resumed for two
    weeks; folders that a living process holds stay.

    Args:
        parent: folder of the working folders of all trainings of a run.
        keep: name of a folder that this process holds, whose lock is not tried.
    """
    remove_leftovers(parent)
    for name in files.list_folders(parent):
        folder = join(parent, name)
        # Checked first: the lock's file makes the folder young again.
        if name != keep and _OWN.fullmatch(name) and _has_served(folder):
            with contextlib.suppress(CocoflowError), lock_folder(folder, instead="leave it") as held:
                if held:
                    _remove(folder)


def _has_served(folder: str) -> bool:
    if files.exists(join(folder, _PUBLISHED)):
        return True
    times = [state.modified for name, state in files.walk_states(folder).items() if name != LOCK_FILE]
    return time.time() - max(times, default=0.0) > _ABANDONED_SECONDS


def _remove(folder: str) -> None:
    """Removes checkpoint indexes first, so a half-removed folder never looks restorable; marker and lock last."""
    names = [name for name in files.walk_files(folder) if name not in (_PUBLISHED, LOCK_FILE)]
    first = [*sorted(names, key=lambda name: not name.endswith(".index")), _PUBLISHED]
    files.remove_folder(folder, first=first, at_once=True)


def describe_training(model_run: Path, name: str, series: str) -> None:
    """Writes `TRAINING_JSON` into a ModelRun, with a checksum of each file to resume from.

    Args:
        model_run: local folder with the training's files.
        name: name of the training, 16 hexadecimal digits.
        series: `series_name` of the training.
    """
    checksums = {str(path.relative_to(model_run)): sha256(path) for path in _files(model_run)}
    write_json(model_run / TRAINING_JSON, {"training": name, "series": series, "files": checksums})


def find_shorter(
    model_runs: Iterable[str], series: str, steps_after: Callable[[Config], int]
) -> tuple[str, str] | None:
    """Finds a finished training that a longer one can continue: the path of its ModelRun, and its name.

    Args:
        model_runs: local or remote ModelRuns, the newest first; a few are tried.
        series: `series_name` of the longer training.
        steps_after: number of steps of the longer training, by the resolved configuration of the shorter one.
    """
    for path in itertools.islice(model_runs, _TRIED):
        with contextlib.suppress(DataError, ValueError, TypeError, KeyError, AttributeError):
            described = read_json(join(path, TRAINING_JSON))
            if described["series"] == series and checkpoint_steps(join(path, BEFORE_DECAY)):
                config = from_yaml(read_text(join(path, CONFIG_YAML)), where=path)
                if config.train.fixed_steps < steps_after(config):
                    return path, described["training"]
    return None


def restore_training(working: Path, model_runs: Iterable[str], name: str) -> None:
    """Fills an empty working folder with the checkpoints of the same training, if an undamaged ModelRun has them.

    Args:
        working: the training's local working folder.
        model_runs: local or remote ModelRuns to try, in this order.
        name: name of the training.
    """
    if (working / CHECKPOINTS).exists():
        return
    for path in model_runs:
        source = _undamaged(path, name)
        if source is None:
            continue
        _LOGGER.info("%s: resuming from this finished training", path)
        copy_parts(source, working, (LOGS, *_RESTORED))
        return


def copy_parts(source: Path, destination: Path, names: Iterable[str]) -> None:
    """Copies those files and folders of a folder that there are, in this order; a kill leaves no part of a folder."""
    for name in names:
        if (source / name).is_file():
            shutil.copy(source / name, destination)
        elif (source / name).is_dir():
            shutil.rmtree(destination / name, ignore_errors=True)
            with new_directory(destination / name) as folder:
                shutil.copytree(source / name, folder, dirs_exist_ok=True)


def _undamaged(run: str, name: str) -> Path | None:
    """Returns a local folder with the files of a ModelRun if it is of this training and they are as they were."""
    try:
        described = read_json(join(run, TRAINING_JSON))
        if described["training"] != name:
            return None
        checksums: Mapping[str, str] = described["files"]
        folder = local_copy(run, complete=TRAINING_JSON)
        return folder if all(sha256(folder / path) == digest for path, digest in checksums.items()) else None
    except (DataError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _files(model_run: Path) -> list[Path]:
    starts = [model_run / part for part in _RESTORED]
    return sorted(path for start in starts for path in (start, *start.rglob("*")) if path.is_file())
