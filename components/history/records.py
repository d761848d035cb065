"""Records of components: one JSON file per execution below `run.root`, written last and never changed.

`<run.root>/history/<component>/<ended>-<key>-<run>.json`: the names are in the order of time.  Paths below
`run.root` are relative to it, so that a copied root is a root of its own.
"""

import hashlib
import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from detection.storage.atomic import create_json, write_text
from detection.storage.files import is_dir, is_file, list_folder
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from schemas.artifacts import HISTORY

RUN_ROOT_KEY = "run_root"  # execution parameter: `run.root`; absent: nothing is recorded
READERS = 16  # records read at a time: Cloud Storage answers each after some time

_VERSION = 1  # raised if an earlier reader would misread a record
_ROOT = "./"  # begins a path below `run.root`
_TIME = "%Y%m%dT%H%M%S.%fZ"
_LONGEST = 1000  # characters of a parameter; of a longer one its digest is recorded
_CONFIGS = "configs"  # folder of configurations, each named after its content
_DIGEST_LENGTH = 16
_NOT_DECIDING = frozenset({RUN_ROOT_KEY})

Value = str | int | float
Entry = tuple[int, int, str | None]  # size, time in ns or generation, CRC32C in base64 (None: only the size counts)
CODE = "1"  # of an executor: changes when equal parameters and inputs give other outputs
RESOLVED_PROPERTY = "resolved"  # 1: the artifact stands for others, see `components.history.stand_ins`
DESTINATION_PROPERTY = "pushed_destination"  # of a `PushedModel`, named by TFX: folder of the version


@dataclass(frozen=True)
class Output:
    """An artifact that a component made.

    Attributes:
        uri: URI.
        type: name of the artifact's type.
        properties: properties by name, with the custom ones.
    """

    uri: str
    type: str
    properties: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Why a component failed.

    Attributes:
        kind: class of the error.
        text: its message, on one line.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Record:
    """An execution of a component.

    Attributes:
        component: id of the node.
        state: whether it made its outputs.
        run: id of the run; "": not known.
        attempt: of the run, from 1.
        started: time, see `time_of`.
        ended: time, likewise.
        seconds: from start to end.
        host: name of the machine.
        key: executions of equal keys make the same; "": not known.
        parameters: execution parameters; long ones by their digest.
        inputs: URIs of the artifacts that it read, by name.
        outputs: artifacts that it made, by name; empty if it failed.
        files: files of the outputs by path, see `components.history.files`.
        error: None: it did not fail.
        version: of this structure.
    """

    component: str
    state: Literal["done", "failed"]
    run: str = ""
    attempt: int = 1
    started: str = ""
    ended: str = ""
    seconds: float = 0.0
    host: str = ""
    key: str = ""
    parameters: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[Output]] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    error: Failure | None = None
    version: Annotated[int, Field(ge=1, le=_VERSION)] = _VERSION

    def output(self, name: str) -> Output:
        """Returns the only artifact of an output.

        Raises:
            KeyError: there is none.
        """
        for output in self.outputs.get(name, []):
            return output
        raise KeyError(name)


_RECORD = TypeAdapter(Record)


def execution_key(
    component: str, code: str, *, parameters: Mapping[str, Any], inputs: Mapping[str, list[str]], root: str
) -> str:
    """Returns what an execution is a function of: equal for executions that make the same.

    Args:
        component: id of the node.
        code: changes when equal parameters and inputs give other outputs.
        parameters: execution parameters; the place of `run.root` does not count.
        inputs: URIs by name.
        root: `run.root`.
    """
    deciding = {key: value for key, value in parameters.items() if key not in _NOT_DECIDING and value is not None}
    parts = [component, code, _with_paths(deciding, _relative_to(root)), _with_paths(dict(inputs), _relative_to(root))]
    return _digest(json.dumps(parts, sort_keys=True))


def properties_of(artifact: Any) -> dict[str, Value]:
    """Returns the properties of an artifact of ML Metadata, with the custom ones."""
    properties: dict[str, Value] = {}
    for source in (artifact.properties, artifact.custom_properties):
        for name, value in source.items():
            kind = value.WhichOneof("value")
            if kind in ("string_value", "int_value", "double_value") and name != "is_external":
                properties[name] = getattr(value, kind)
    return properties


def recorded_parameters(parameters: Mapping[str, Any]) -> dict[str, Value]:
    """Returns execution parameters as a record has them."""
    given = {name: value for name, value in sorted(parameters.items()) if isinstance(value, str | int | float)}
    return {name: _shortened(value) for name, value in given.items() if name != RUN_ROOT_KEY}


def _shortened(value: Value) -> Value:
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"sha256:{hashlib.sha256(value.encode(errors='backslashreplace')).hexdigest()}"
    return value


def write_record(root: str, record: Record, *, started: datetime) -> None:
    """Writes the record of an execution that ends now, as a new file.

    Args:
        root: `run.root`, local or remote.
        record: record without times.
        started: start of the execution.

    Raises:
        DataError: it cannot be written, or there is another record of this name.
    """
    folder = join(root, HISTORY, record.component)
    names = _names(folder)
    newest = [time_of(names[-1].partition("-")[0]) + timedelta(microseconds=1)] if names else []
    ended = max([datetime.now(UTC), *newest])
    record = replace(
        record,
        started=started.astimezone(UTC).strftime(_TIME),
        ended=ended.strftime(_TIME),
        seconds=round(max((ended - started).total_seconds(), 0.0), 3),
        host=socket.gethostname(),
    )
    name = f"{record.ended}-{record.key}-{record.run}.json"
    create_json(join(folder, name), _with_paths(asdict(record), _relative_to(root)))


def read_new_records(root: str, component: str, *, key: str = "") -> list[Record]:
    """Reads the records of a component, oldest first; see `components.history.read` for those of earlier versions.

    Args:
        root: `run.root`.
        component: id of the node.
        key: of the executions to read; "": all.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    folder = join(root, HISTORY, component)
    names = [name for name in _names(folder) if not key or name.split("-", maxsplit=2)[1] == key]
    return read_all(_RECORD, [join(folder, name) for name in names], lambda one: _restored(one, root))


def read_all(adapter: TypeAdapter[Any], paths: list[str], convert: Callable[[Any], Any]) -> list[Any]:
    """Reads records of any version: keys that this one does not know are left out.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    remedy = "Restore the file, or remove it: then the runs do not know of what it records."
    with ThreadPoolExecutor(READERS) as pool:
        read = lambda path: convert(parse_file(adapter, path, what="a record of a run", remedy=remedy))  # noqa: E731
        return list(pool.map(read, paths))


def time_of(text: str) -> datetime:
    """Returns a time of a record; the beginning of the calendar if it is none."""
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _names(folder: str) -> list[str]:
    names = list_folder(folder) if is_dir(folder) else []
    return sorted(name for name in names if name.endswith(".json") and not name.startswith("."))


def _restored(record: Record, root: str) -> Record:
    restored: Record = _RECORD.validate_python(_with_paths(asdict(record), _absolute_in(root)))
    return restored


def _relative_to(root: str) -> Callable[[str], str]:
    start = f"{root.rstrip('/')}/"
    return lambda text: f"{_ROOT}{text.removeprefix(start)}" if text.startswith(start) else text


def _absolute_in(root: str) -> Callable[[str], str]:
    return lambda text: join(root, text.removeprefix(_ROOT)) if text.startswith(_ROOT) else text


def _with_paths(value: Any, convert: Callable[[str], str]) -> Any:
    """Returns plain values with each text converted."""
    if isinstance(value, str):
        return convert(value)
    if isinstance(value, dict):
        return {convert(key): _with_paths(one, convert) for key, one in value.items()}
    return [_with_paths(one, convert) for one in value] if isinstance(value, list | tuple) else value


def config_digest(config_yaml: str) -> str:
    """Returns the name of a configuration by its content."""
    return _digest(config_yaml)


def config_path(history: str, digest: str) -> str:
    """Returns the path of the copy of a configuration below the folder `history`."""
    return join(history, _CONFIGS, f"{digest}.yaml")


def store_config(history: str, config_yaml: str) -> str:
    """Keeps a copy of a configuration, once; returns its digest.

    Raises:
        DataError: the copy cannot be written.
    """
    digest = config_digest(config_yaml)
    path = config_path(history, digest)
    if not is_file(path):
        write_text(path, config_yaml)
    return digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGEST_LENGTH]
