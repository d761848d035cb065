"""Checkpoints of a finished training, found again when its outputs have to be made anew.

TFX makes an output again if its files are damaged, or if those of an input were.  The
records are then the same as before, and so would the training be: its last checkpoint
saves it.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from detection.storage.atomic import new_directory, write_json
from schemas.artifacts import CHECKPOINTS, INIT_REPORT_JSON, LOGS, TRAINING_JSON, VALIDATION

# The checkpoints come last: where they are, a copy is whole.
_KEPT = (VALIDATION, INIT_REPORT_JSON, CHECKPOINTS)

_LOGGER = logging.getLogger("cocoflow.trainer")


def describe_training(model_run: Path, name: str) -> None:
    """Writes `TRAINING_JSON` into a ModelRun, with a checksum of each file to go on from.

    Args:
        model_run: folder with the training's files.
        name: of the training: `working_name`.
    """
    files = {str(path.relative_to(model_run)): _sha256(path) for path in _files(model_run)}
    write_json(model_run / TRAINING_JSON, {"training": name, "files": files})


def restore_training(working: Path, model_runs: Path, name: str) -> None:
    """Fills an empty working folder with the checkpoints of the same training, if a whole ModelRun has them.

    Args:
        working: the training's working folder.
        model_runs: folder of earlier executions' ModelRuns.
        name: of the training.
    """
    if (working / CHECKPOINTS).exists():
        return
    runs = [run for run in model_runs.iterdir() if run.name.isdecimal()] if model_runs.is_dir() else []
    for run in sorted(runs, key=lambda run: int(run.name), reverse=True):
        if not _is_whole(run, name):
            continue
        _LOGGER.info("%s: going on from this finished training, whose outputs have to be made anew", run)
        for part in (LOGS, *_KEPT):
            _copy(run / part, working / part)
        return


def _copy(source: Path, goal: Path) -> None:
    if source.is_file():
        shutil.copy(source, goal)
    elif source.is_dir():
        shutil.rmtree(goal, ignore_errors=True)
        with new_directory(goal) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)


def _is_whole(run: Path, name: str) -> bool:
    try:
        described = json.loads((run / TRAINING_JSON).read_bytes())
        files: Mapping[str, str] = described["files"]
        return described["training"] == name and all(_sha256(run / path) == digest for path, digest in files.items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _files(model_run: Path) -> list[Path]:
    starts = [model_run / part for part in _KEPT]
    return sorted(path for start in starts for path in (start, *start.rglob("*")) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
