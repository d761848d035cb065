"""Records of runs: one JSON file per run below `run.root`, which other processes and later runs read.

The process that holds `run.root` writes them: at the start of a run, at its end, and at the start of
the next run if the process of an earlier one was killed.  `components.history` has the records of
what the components made.
"""

import contextlib
import hashlib
import logging
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from components.history.records import READERS, absolute_paths, config_path, relative_paths, store_config
from detection.storage.atomic import write_json
from detection.storage.file_system import FolderLock
from detection.storage.files import is_dir, is_file, list_folder
from detection.storage.json_files import parse_file
from detection.storage.paths import is_remote, join, name_of
from detection.storage.processes import in_words, this_process
from pipelines.folders import RunLayout
from pipelines.runners.local import RUNNERS
from pipelines.runs.run_record import DONE, FAILED, INTERRUPTED, RUNNING, SUBMITTED, UNFINISHED, ConfigCopy, RunRecord
from schemas.artifacts import HISTORY
from schemas.config.config import MODEL_WITHOUT_EFFECT, Config
from schemas.config.config_io import to_yaml
from schemas.config.train.training import WITHOUT_EFFECT
from schemas.errors import CocoflowError, ConfigError, DataError, find_user_error, was_interrupted
from schemas.quoting import one_line, quoted

_RUNS = "runs"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_ERROR = 500  # characters
_DECIDING = ("data", "model", "train", "evaluate", "push")  # sections that decide about a result
_RECORD = TypeAdapter(RunRecord)
_KILLED = "its process ended without a word, as after a kill"

_LOGGER = logging.getLogger("cocoflow.run")


class RunHistory:
    """The records of the runs below a `run.root`.

    Args:
        root: local or remote folder.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = join(root, HISTORY)
        self._runs = join(self.folder, _RUNS)

    def read(self, run_id: str) -> RunRecord | None:
        """Reads the record of a run; None: there is none.

        Raises:
            DataError: it cannot be read.
        """
        path = self._path(run_id)
        if not is_file(path):
            return None
        record = parse_file(_RECORD, path, what="the record of a run", remedy="Restore the file, or remove it.")
        return RunRecord.model_validate(absolute_paths(record.model_dump(), self.root))

    def read_all(self) -> list[RunRecord]:
        """Reads the records of all runs, the one that started last first; warns of those that it cannot read."""
        with ThreadPoolExecutor(READERS) as pool:
            found = [record for record in pool.map(self._read_or_warn, self.ids()) if record is not None]
        return newest_first(found)

    def ids(self) -> list[str]:
        """Lists the ids of all records, in no order."""
        names = list_folder(self._runs) if is_dir(self._runs) else []
        return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]

    def _read_or_warn(self, run_id: str) -> RunRecord | None:
        try:
            return self.read(run_id)
        except CocoflowError as error:
            _LOGGER.warning("%s", error)
            return None

    def write(self, record: RunRecord) -> None:
        """Writes the record of a run, over an old one.

        Raises:
            DataError: it cannot be written.
        """
        write_json(self._path(record.id), relative_paths(record.model_dump(mode="json"), self.root))

    def store_config(self, config: Config) -> ConfigCopy:
        """Keeps a copy of a configuration, once.

        Raises:
            DataError: it cannot be written.
        """
        digest = store_config(self.folder, to_yaml(config))
        return ConfigCopy(digest=digest, path=config_path(HISTORY, digest), deciding=deciding_digest(config))

    def ended(self) -> set[str]:
        """Returns the ids of the runs, of which the open one is another attempt, whose outputs nobody writes."""
        return {record.id for record in self.read_all() if record.runner in RUNNERS}

    def _path(self, run_id: str) -> str:
        return join(self._runs, f"{require_id(run_id)}.json")


def newest_first(runs: Iterable[RunRecord]) -> list[RunRecord]:
    """Returns runs in the order of their starts, the last one first."""
    return sorted(runs, key=lambda record: instant(record.started), reverse=True)


@dataclass
class OpenRun:
    """The record of the run of this process, while it runs.

    Attributes:
        history: where it is kept.
        record: its present state.
    """

    history: RunHistory
    record: RunRecord

    def update(self, **fields: Any) -> None:
        """Changes fields of the record, which `end` stores."""
        self.record = RunRecord.model_validate(self.record.model_dump() | fields)

    def tell_component(self, node: str) -> None:
        """Stores the component that is executed now, for `status`; a failure must not end the run."""
        self.update(now=node)
        with contextlib.suppress(CocoflowError):
            self.history.write(self.record)

    def end(self, state: str, error: str | None = None) -> None:
        """Stores the record with its last state.

        Raises:
            DataError: it cannot be written.
        """
        ended = now()
        fields = {"state": state, "now": None, "ended": ended, "seconds": duration(self.record, ended), "error": error}
        self.record = self.record.model_copy(update=fields)
        self.history.write(self.record)


@contextlib.contextmanager
def recorded_run(
    history: RunHistory, use: FolderLock, *, run_id: str | None, config: Config, fields: Mapping[str, Any]
) -> Iterator[OpenRun]:
    """Records a run from its start to its end, however it ends; first closes the records of killed runs.

    Args:
        history: records below the `run.root` of the run.
        use: of this folder.
        run_id: id of the run, new, or that of a run that did not finish; None: a new one.
        config: its resolved configuration.
        fields: other fields of `RunRecord` that are known at the start.

    Raises:
        CocoflowError: the run of this id is done, or goes on.
        ConfigError: an id that is no file name.
        DataError: a record cannot be read or written.
    """
    earlier = unfinished_run(history, use, run_id)
    open_run = OpenRun(
        history,
        RunRecord(
            id=run_id or new_id(),
            state=RUNNING,
            attempt=1 if earlier is None else earlier.attempt + 1,
            started=now(),
            process=this_process(),
            config=history.store_config(config),
            **fields,
        ),
    )
    history.write(open_run.record)
    try:
        yield open_run
    except BaseException as error:
        # A folder that another process has taken over is no longer ours to write.
        with contextlib.suppress(CocoflowError):
            use.require_held()
            state = INTERRUPTED if was_interrupted(error) else FAILED
            open_run.end(state, None if state == INTERRUPTED else _reason(error))
        raise
    use.require_held()
    open_run.end(DONE)


def record_submission(config: Config, runner: str, run: str) -> None:
    """Records a run that another platform runs; not, if `run.root` is a volume that only its containers reach.

    The run goes on there whether or not the record can be written, so a failure is a warning.

    Args:
        config: whole configuration.
        runner: where it was submitted to.
        run: its name there; the last part of a resource name is the id of the record.
    """
    root = RunLayout(config, compiled=True).root
    if not is_remote(root):
        return
    history = RunHistory(root)
    try:
        fields = {"runner": runner, "pipeline": config.run.name, "config": history.store_config(config)}
        history.write(RunRecord(id=name_of(run), trigger="submit", state=SUBMITTED, started=now(), **fields))
    except DataError as error:
        _LOGGER.warning("the run was submitted, but not recorded for `status`: %s", error)


def unfinished_run(history: RunHistory, use: FolderLock, run_id: str | None) -> RunRecord | None:
    """Returns the record of a run that may begin or resume; first closes the records of killed runs.

    Args:
        history: records below the `run.root` of the run.
        use: of this folder.
        run_id: id of the run; None: a new one.

    Returns:
        None: no run has this id.

    Raises:
        CocoflowError: the run of this id is done, or goes on.
        DataError: a record cannot be read or written.
    """
    for record in history.read_all():
        # If this process holds the folder, the process of every other local run has ended.
        if record.is_open and (use or record.is_dead):
            # When it ended is not known.
            history.write(record.model_copy(update={"state": INTERRUPTED, "error": _KILLED}))
            _LOGGER.info("the run %s was interrupted", record.id)
    earlier = None if run_id is None else history.read(run_id)
    if earlier is not None and earlier.state not in UNFINISHED:
        raise CocoflowError(f"--run-id {run_id}: {_state_in_words(earlier)}. Choose another id for another run.")
    return earlier


def _state_in_words(record: RunRecord) -> str:
    if record.is_open:
        return f"this run goes on, in {in_words(record.process)}"
    return f"this run is {record.state}, since {record.ended or record.started}"


def deciding_digest(config: Config) -> str:
    """Returns a digest of the keys that decide about a run's result; the span that is read is not among them."""
    exclude = {"data": ("span", "version"), "train": WITHOUT_EFFECT, "model": MODEL_WITHOUT_EFFECT}
    return hashlib.sha256(to_yaml(config, _DECIDING, exclude=exclude).encode()).hexdigest()[:16]


def require_id(run_id: str) -> str:
    """Returns an id of a run after checking that it is a file name on every system.

    Raises:
        ConfigError: it is not.
    """
    if not _ID.fullmatch(run_id):
        raise ConfigError(
            f"--run-id {quoted(run_id)}: an id has letters, digits, dots, hyphens and underscores, at most 100, and "
            "begins with a letter or a digit. Choose another."
        )
    return run_id


def new_id() -> str:
    """Returns an id for a run, which begins with the local time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def duration(record: RunRecord, ended: str) -> float:
    """Returns the seconds from the start of a run to a time in ISO format."""
    return round((instant(ended) - instant(record.started)).total_seconds(), 3)


def _reason(error: BaseException) -> str:
    user_error = find_user_error(error)
    text = str(user_error) if user_error is not None else f"{type(error).__name__}: {error}"
    return one_line(text.strip())[:_MAX_ERROR]


def now() -> str:
    """Returns the time as a record has it."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def instant(time_text: str) -> datetime:
    """Returns a time of a record; the beginning of 1970 if it is invalid."""
    try:
        return datetime.fromisoformat(time_text).astimezone()
    except (ValueError, OverflowError):  # the latter of the first and the last year
        return datetime.fromtimestamp(0).astimezone()
