"""The run of this process: its record from its start to its end, and what may begin or resume."""

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from components.history.queries import History
from components.history.records import DONE, FAILED, INTERRUPTED, RUNNING, SUBMITTED, UNFINISHED, Run
from components.history.store import digest_of_text, read_run, require_id, store_config, write_run
from detection.storage.lock import FolderLock
from detection.storage.paths import is_remote, name_of
from detection.storage.processes import in_words, this_process
from pipelines.folders import RunLayout
from schemas.config.config import MODEL_WITHOUT_EFFECT, Config
from schemas.config.config_io import to_yaml
from schemas.config.train.training import WITHOUT_EFFECT
from schemas.errors import CocoflowError, DataError, find_user_error, was_interrupted
from schemas.quoting import one_line

_MAX_ERROR = 500  # characters
_DECIDING = ("data", "model", "train", "evaluate", "push")  # sections that decide about a result
_KILLED = "its process died without recording an end (killed?)"

_LOGGER = logging.getLogger("cocoflow.run")


@contextlib.contextmanager
def recorded_run(root: str, use: FolderLock, *, run_id: str | None, config: Config, **fields: Any) -> Iterator[Run]:
    """Records a run from its start to its end, however it ends; first closes the records of killed runs.

    Args:
        root: `run.root` of the run.
        use: lock of this folder.
        run_id: id of the run, new, or that of a run that did not finish; None: a new one.
        config: its resolved configuration.
        fields: other fields of `Run` that are known at the start.

    Raises:
        CocoflowError: a run with this id has finished or is still running.
        ConfigError: an id that is no file name.
        DataError: a record cannot be read or written.
    """
    earlier = unfinished_run(root, use, run_id)
    attempt = 1 if earlier is None else earlier.attempt + 1
    fields |= recorded_config(root, config)
    record = Run(id=run_id or new_id(), state=RUNNING, attempt=attempt, started=now(), process=this_process(), **fields)
    write_run(root, record)
    try:
        yield record
    except BaseException as error:
        # A folder that another process has taken over is no longer ours to write.
        with contextlib.suppress(CocoflowError):
            use.require_held()
            state = INTERRUPTED if was_interrupted(error) else FAILED
            _end(root, record, state, None if state == INTERRUPTED else _reason(error))
        raise
    use.require_held()
    _end(root, record, DONE)


def _end(root: str, run: Run, state: str, error: str | None = None) -> None:
    write_run(root, replace(run, state=state, ended=now(), error=error))


def record_component(root: str, run: Run, node: str) -> None:
    """Records the component that a run executes now, for `status`; a failure must not end the run."""
    with contextlib.suppress(CocoflowError):
        write_run(root, replace(run, now=node))


def recorded_config(root: str, config: Config) -> dict[str, Any]:
    """Keeps a copy of a configuration, once; returns it as fields of `Run`, with the name of its pipeline.

    Raises:
        DataError: it cannot be written.
    """
    digest = store_config(root, to_yaml(config))
    return {"pipeline": config.run.name, "config": digest, "deciding": deciding_digest(config)}


def record_submission(config: Config, runner: str, run: str) -> None:
    """Records a run that another platform runs; not, if `run.root` is a volume that only its containers reach.

    The run continues there whether or not the record can be written, so a failure is a warning.

    Args:
        config: whole configuration.
        runner: where it was submitted to.
        run: its name there; the last part of a resource name is the id of the record.
    """
    root = RunLayout(config, compiled=True).root
    if not is_remote(root):
        return
    try:
        fields = {"trigger": "submit", "runner": runner, **recorded_config(root, config)}
        write_run(root, Run(id=name_of(run), state=SUBMITTED, started=now(), **fields))
    except DataError as error:
        _LOGGER.warning("the run was submitted, but not recorded for `status`: %s", error)


def unfinished_run(root: str, use: FolderLock, run_id: str | None) -> Run | None:
    """Returns the record of a run that may begin or resume; first closes the records of killed runs.

    Args:
        root: `run.root` of the run.
        use: lock of this folder.
        run_id: id of the run; None: a new one.

    Returns:
        None: no run has this id.

    Raises:
        CocoflowError: a run with this id has finished or is still running.
        ConfigError: an id that is no file name.
        DataError: a record cannot be read or written.
    """
    for record in History(root).runs():
        # If this process holds the folder, the process of every other local run has ended.
        if record.state == RUNNING and (use or record.is_dead):
            # When it ended is not known.
            write_run(root, replace(record, state=INTERRUPTED, error=_KILLED))
            _LOGGER.info("the run %s was interrupted", record.id)
    earlier = None if run_id is None else read_run(root, require_id(run_id))
    if earlier is not None and earlier.state not in UNFINISHED:
        raise CocoflowError(f"--run-id {run_id}: {_state_in_words(earlier)}. Choose another id for another run.")
    return earlier


def _state_in_words(record: Run) -> str:
    if record.state == RUNNING:
        return f"this run is still running, in {in_words(record.process)}"
    return f"this run is {record.state}, since {record.ended or record.started}"


def deciding_digest(config: Config) -> str:
    """Returns a digest of the keys that decide about a run's result; the span that is read is not among them."""
    exclude = {"data": ("span", "version"), "train": WITHOUT_EFFECT, "model": MODEL_WITHOUT_EFFECT}
    return digest_of_text(to_yaml(config, _DECIDING, exclude=exclude))


def new_id() -> str:
    """Returns an id for a run, which begins with the local time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def _reason(error: BaseException) -> str:
    user_error = find_user_error(error)
    text = str(user_error) if user_error is not None else f"{type(error).__name__}: {error}"
    return one_line(text.strip())[:_MAX_ERROR]


def now() -> str:
    """Returns the time as a record of a run has it."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
