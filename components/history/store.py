"""The files of records below `run.root`: their writers, and the one reader.

`<run.root>/history/` holds

- `<component>/<ended>-<key>-<run>.json`: an execution of a component, written as its last act and never changed; the
  names are in the order of time.
- `runs/<run>.json`: a run, written by the process that runs it, or that submitted it to another platform.
- `reports/<run>.json`: the same run, written by its last component, `RunReport`, on every platform.
- `configs/<digest>.yaml`: a configuration.

Each file has one writer, so that nobody locks; `components.history.queries` merges what belongs to a run.  Paths below
`run.root` are relative to it, so that a copied root is a root of its own.
"""

import hashlib
import re
import socket
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import TypeAdapter

from components.history.records import Execution, Run, time_of
from detection.storage.atomic import create_json, write_json, write_text
from detection.storage.files import is_file, list_files, list_folders
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from schemas.artifacts import HISTORY
from schemas.errors import ConfigError
from schemas.quoting import quoted

RUNS, REPORTS, _CONFIGS = _OTHERS = "runs", "reports", "configs"  # folders that are not named after a component

_READERS = 16  # threads
_ROOT = "./"  # begins a path below `run.root`
_TIME = "%Y%m%dT%H%M%S.%fZ"
_DIGEST_LENGTH = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REMEDY = "Restore the file, or remove it: then the runs do not know of what it records."

S = TypeVar("S")
T = TypeVar("T")
_EXECUTION, _RUN = TypeAdapter(Execution), TypeAdapter(Run)


def write_execution(root: str, execution: Execution, *, started: datetime) -> None:
    """Writes the record of an execution that ends now, as a new file.

    Args:
        root: `run.root`, local or remote.
        execution: record without times.
        started: start of the execution.

    Raises:
        DataError: it cannot be written, or there is another record of this name.
    """
    folder = join(root, HISTORY, execution.component)
    newest = [time_of(name.partition("-")[0]) + timedelta(microseconds=1) for name in _names(folder)[-1:]]
    ended = max([datetime.now(UTC), *newest])
    execution = replace(
        execution,
        started=started.astimezone(UTC).strftime(_TIME),
        ended=ended.strftime(_TIME),
        seconds=round(max((ended - started).total_seconds(), 0.0), 3),
        host=socket.gethostname(),
    )
    name = f"{execution.ended}-{execution.key}-{execution.run}.json"
    create_json(join(folder, name), relative_paths(asdict(execution), root))


def read_executions(
    root: str, component: str | None = None, *, key: str | None = None, runs: Collection[str] | None = None
) -> list[Execution]:
    """Reads the records of executions, in the order of their ends.

    Args:
        root: `run.root`.
        component: id of the node; None: all.
        key: key of the executions to read; None: all.
        runs: ids of the runs whose executions to read; None: all.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    history = join(root, HISTORY)
    folders = [name for name in list_folders(history) if name not in _OTHERS] if component is None else [component]
    chosen = []
    for folder in folders:
        for name in _names(join(history, folder)):
            _, its_key, run = [*name.removesuffix(".json").split("-", maxsplit=2), "", ""][:3]
            if (key is None or its_key == key) and (runs is None or run in runs):
                chosen.append((name, join(history, folder, name)))
    return in_parallel(lambda path: _read(_EXECUTION, path, root), [path for _, path in sorted(chosen)])


def write_run(root: str, run: Run, *, folder: str = RUNS) -> None:
    """Writes the record of a run, over an old one.

    Args:
        root: `run.root`.
        run: the record.
        folder: `RUNS`, or `REPORTS` for the one of its last component.

    Raises:
        ConfigError: an id that is no file name.
        DataError: it cannot be written.
    """
    write_json(join(root, HISTORY, folder, f"{require_id(run.id)}.json"), relative_paths(asdict(run), root))


def read_run(root: str, run_id: str, *, folder: str = RUNS) -> Run | None:
    """Reads the record of a run, see `write_run`; None: there is none.

    Raises:
        DataError: it cannot be read.
    """
    path = join(root, HISTORY, folder, f"{run_id}.json")
    return _read(_RUN, path, root) if _ID.fullmatch(run_id) and is_file(path) else None


def run_ids(root: str, *, folder: str = RUNS) -> list[str]:
    """Lists the ids of the recorded runs, in no order."""
    return [name.removesuffix(".json") for name in _names(join(root, HISTORY, folder))]


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


def in_parallel(read: Callable[[S], T], sources: Iterable[S]) -> list[T]:
    """Returns what `read` returns for each source; Cloud Storage answers each after some time."""
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, sources))


def _names(folder: str) -> list[str]:
    return sorted(name for name in list_files(folder) if name.endswith(".json") and not name.startswith("."))


def _read(adapter: TypeAdapter[T], path: str, root: str) -> T:
    record = parse_file(adapter, path, what="a record of a run", remedy=_REMEDY)
    return adapter.validate_python(absolute_paths(adapter.dump_python(record), root))


def relative_paths(value: Any, root: str) -> Any:
    """Returns plain values, those of JSON, with the paths below `root` relative to it."""
    start = f"{root.rstrip('/')}/"
    return _with_paths(value, lambda text: f"{_ROOT}{text.removeprefix(start)}" if text.startswith(start) else text)


def absolute_paths(value: Any, root: str) -> Any:
    """Inverse of `relative_paths`."""
    return _with_paths(value, lambda text: join(root, text.removeprefix(_ROOT)) if text.startswith(_ROOT) else text)


def _with_paths(value: Any, convert: Callable[[str], str]) -> Any:
    """Returns plain values with each text converted."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, dict):
        return {convert(key): _with_paths(one, convert) for key, one in value.items()}
    return [_with_paths(one, convert) for one in value] if isinstance(value, list | tuple) else value


def config_path(root: str, digest: str) -> str:
    """Returns the path of the copy of a configuration."""
    return join(root, HISTORY, _CONFIGS, f"{digest}.yaml")


def store_config(root: str, config_yaml: str) -> str:
    """Keeps a copy of a configuration, once; returns its digest.

    Raises:
        DataError: the copy cannot be written.
    """
    digest = digest_of_text(config_yaml)
    path = config_path(root, digest)
    if not is_file(path):
        write_text(path, config_yaml)
    return digest


def digest_of_text(text: str) -> str:
    """Returns 16 digits of the SHA-256 of a text, which name a configuration or an execution."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGEST_LENGTH]
