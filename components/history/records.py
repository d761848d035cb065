"""Records of components: one JSON file per execution below `run.root`, written last and never changed.

`<run.root>/history/<component>/<ended>-<key>-<run>.json`: the names are in the order of time.  Paths below
`run.root` are relative to it, so that a copied root is a root of its own.
"""

import hashlib
import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, cast

from pydantic import Field, TypeAdapter

from detection.storage.atomic import create_json, write_text
from detection.storage.files import is_file, list_files
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
_STRUCT_KEY = "__value__"  # under which TFX holds the value of a property that Kubeflow hands over

Value = str | int | float
Entry = tuple[int, int, str | None]  # size, time in ns or generation, CRC32C in base64 (None: only the size counts)
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


@dataclass(frozen=True)
class ReuseRule:
    """What an execution of a component is a function of; an executor's `recorded` and its driver share it.

    Attributes:
        code: changes when equal parameters and inputs give other outputs.
        deciding: returns the execution parameters that decide about the outputs; None and `run.root` never count.
    """

    code: str = "1"
    deciding: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    def key(
        self, component: str, *, parameters: Mapping[str, Any], inputs: Mapping[str, Sequence[str]], root: str
    ) -> str:
        """Returns the key of an execution: executions of equal keys make the same.

        Args:
            component: id of the node.
            parameters: execution parameters.
            inputs: URIs by name.
            root: `run.root`.
        """
        chosen = self.deciding(parameters).items()
        deciding = {name: value for name, value in chosen if name != RUN_ROOT_KEY and value is not None}
        parts = [component, self.code, relative_paths(deciding, root), relative_paths(dict(inputs), root)]
        return _digest(json.dumps(parts, sort_keys=True))


DEFAULT_RULE = ReuseRule()


def properties_of(artifact: Any) -> dict[str, Value]:
    """Returns the properties of an artifact of ML Metadata, with the custom ones.

    Kubeflow's numbers are JSON's in a structure; ours are integers.
    """
    named = (*artifact.properties.items(), *artifact.custom_properties.items())
    values = {name: _value_of(value) for name, value in named if name != "is_external"}
    return {name: value for name, value in values.items() if value is not None}


def _value_of(value: Any) -> Value | None:
    kind = value.WhichOneof("value")
    if kind in ("string_value", "int_value", "double_value"):
        return cast(Value, getattr(value, kind))
    held = value.struct_value.fields.get(_STRUCT_KEY)
    if held is None:
        return None
    return int(held.number_value) if held.WhichOneof("kind") == "number_value" else str(held.string_value)


def recorded_parameters(parameters: Mapping[str, Any]) -> dict[str, Value]:
    """Returns execution parameters as a record has them."""
    return {
        name: f"sha256:{_sha256(value)}" if isinstance(value, str) and len(value) > _LONGEST else value
        for name, value in sorted(parameters.items())
        if isinstance(value, str | int | float) and name != RUN_ROOT_KEY
    }


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
    newest = [time_of(told[0]) + timedelta(microseconds=1) for _, told in names[-1:]]
    ended = max([datetime.now(UTC), *newest])
    record = replace(
        record,
        started=started.astimezone(UTC).strftime(_TIME),
        ended=ended.strftime(_TIME),
        seconds=round(max((ended - started).total_seconds(), 0.0), 3),
        host=socket.gethostname(),
    )
    name = f"{record.ended}-{record.key}-{record.run}.json"
    create_json(join(folder, name), relative_paths(asdict(record), root))


def read_records(
    root: str, component: str, *, key: str | None = None, runs: Collection[str] | None = None
) -> list[Record]:
    """Reads the records of a component, oldest first.

    Args:
        root: `run.root`.
        component: id of the node.
        key: key of the executions to read; None: all.
        runs: ids of the runs whose executions to read; None: all.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    folder = join(root, HISTORY, component)
    paths = [
        join(folder, name)
        for name, (_, its_key, run) in _names(folder)
        if (key is None or its_key == key) and (runs is None or run in runs)
    ]
    return read_all(_RECORD, paths, lambda one: _restored(one, root))


def recorded_runs(root: str, component: str) -> set[str]:
    """Returns the ids of the runs with a record of a component; reads the names of the files alone."""
    return {run for _, (_, _, run) in _names(join(root, HISTORY, component))}


def _names(folder: str) -> list[tuple[str, list[str]]]:
    """Returns the names of the records in a folder, oldest first, with the time, key and run that they tell."""
    names = sorted(name for name in list_files(folder) if name.endswith(".json") and not name.startswith("."))
    return [(name, [*name.removesuffix(".json").split("-", maxsplit=2), "", ""][:3]) for name in names]


def read_all(adapter: TypeAdapter[Any], paths: list[str], convert: Callable[[Any], Any]) -> list[Any]:
    """Reads records of any version: keys that this one does not know are left out.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    remedy = "Restore the file, or remove it: then the runs do not know of what it records."

    def read(path: str) -> Any:
        return convert(parse_file(adapter, path, what="a record of a run", remedy=remedy))

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(read, paths))


def time_of(text: str) -> datetime:
    """Returns a time of a record; the beginning of the calendar if it is none."""
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _restored(record: Record, root: str) -> Record:
    restored: Record = _RECORD.validate_python(absolute_paths(asdict(record), root))
    return restored


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
    return _sha256(text)[:_DIGEST_LENGTH]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
