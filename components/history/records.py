"""The forms of records: an execution of a component, and a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from detection.storage.processes import has_ended
from schemas.errors import DataError

RUN_ROOT_KEY = "run_root"  # execution parameter: `run.root`; absent: nothing is recorded

# Custom properties of artifacts.
IDENTITY_PROPERTY = "identity"  # `Examples`, `Model`: equal if made from the same data in the same way
SOURCE_PROPERTY = "data_source"  # `Examples`: the paths as the user wrote them
TRAINING_PROPERTY = "training"  # `Model`: identity of the training, without the base model
CONFIG_PROPERTY = "config"  # `Model`: digest of its configuration, see `store_config`
DIGEST_PROPERTY = "model_digest"  # `PushedModel`: digest of the model's files
REMOVED_PROPERTY = "removed_versions"  # `PushedModel`: JSON list of the versions that its push removed
RESOLVED_PROPERTY = "resolved"  # 1: the artifact stands for others, see `components.history.execution.resolve_to`
# `tfx.components.example_gen.utils` defines them for every file-based ExampleGen.
SPAN_PROPERTY, VERSION_PROPERTY, FINGERPRINT_PROPERTY = "span", "version", "input_fingerprint"
# TFX's Evaluator and Pusher define these.
BLESSED_PROPERTY = "blessed"
PUSHED_PROPERTY = "pushed"  # int: 1 or 0
PUSHED_VERSION_PROPERTY = "pushed_version"  # string: its name
DESTINATION_PROPERTY = "pushed_destination"  # folder of the version

DONE, FAILED = "done", "failed"  # states of executions and runs
RUNNING, INTERRUPTED, SUBMITTED = "running", "interrupted", "submitted"
SKIPPED = "skipped"  # by `run --if-changed`
REUSED = "reused"  # state of a component in a run
UNFINISHED = frozenset({SKIPPED, FAILED, INTERRUPTED})  # a run of this id may begin or resume

_VERSION = 1  # raised if an earlier reader would misread a record

Value = str | int | float
Entry = tuple[int, int, str | None]  # size, time in ns or generation, CRC32C in base64 (None: only the size counts)


def time_of(text: str) -> datetime:
    """Returns a time of a record; the beginning of 1970 if it is invalid."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # the latter of the first and the last year
        return datetime.fromtimestamp(0, UTC)


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
class Execution:
    """An execution of a component.

    Attributes:
        component: id of the node.
        state: whether it made its outputs.
        run: id of the run.
        attempt: of the run, from 1.
        started: time, see `time_of`.
        ended: time of its end.
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
            DataError: there is none.
        """
        for output in self.outputs.get(name, []):
            return output
        raise DataError(f"the record of {self.component} in the run {self.run} has no output {name!r}. Remove it.")

    def input(self, name: str) -> str:
        """Returns the URI of the first artifact of an input; "": there is none."""
        return next(iter(self.inputs.get(name, [])), "")


@dataclass(frozen=True)
class DataRead:
    """Data of a run, or `Examples` made of it.

    Attributes:
        source: data set that the span belongs to, as the user named it.
        span: 0 for data without spans.
        version: version of the span; None: the data has no versions.
        identity: of the `Examples`, equal if made of the same data in the same way; None: not made.
        examples: URI of the `Examples`; None: not made.
        input_fingerprint: changes with every annotation and image file; None: not known.
    """

    source: str
    span: int = 0
    version: int | None = None
    identity: str | None = None
    examples: str | None = None
    input_fingerprint: str | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Orders data by age: its span, then its version."""
        return self.span, -1 if self.version is None else self.version

    @classmethod
    def of(cls, examples: Output) -> "DataRead":
        """Describes `Examples` of CocoExampleGen."""
        properties = examples.properties
        version, fingerprint = properties.get(VERSION_PROPERTY), properties.get(FINGERPRINT_PROPERTY)
        return cls(
            source=str(properties.get(SOURCE_PROPERTY, "")),
            span=int(properties.get(SPAN_PROPERTY, 0)),
            version=None if version is None else int(version),
            identity=str(properties.get(IDENTITY_PROPERTY, "")),
            examples=examples.uri,
            input_fingerprint=None if fingerprint is None else str(fingerprint),
        )


@dataclass(frozen=True)
class Model:
    """A trained `Model`.

    Attributes:
        execution: record of its training.
        uri: URI.
        training: identity of its training, without the base model.
        identity: identity of its training, with the base model; "": not known.
        base_model: URI of the model that its weights started from; None: no model.
        examples: URIs of the `Examples` that it was trained on, the newest span first.
        config: digest of its configuration, see `store.store_config`; None: not known.
    """

    execution: Execution
    uri: str
    training: str
    identity: str
    base_model: str | None
    examples: Sequence[str]
    config: str | None

    @classmethod
    def of(cls, execution: Execution, model: Output) -> "Model":
        """Describes an output of DetectionTrainer."""
        return cls(
            execution=execution,
            uri=model.uri,
            training=str(model.properties.get(TRAINING_PROPERTY, "")),
            identity=str(model.properties.get(IDENTITY_PROPERTY, "")),
            base_model=execution.input("base_model") or None,
            examples=execution.inputs.get("examples", []),
            config=str(model.properties.get(CONFIG_PROPERTY, "")) or None,
        )

    @property
    def model_run(self) -> str:
        """URI of the ModelRun beside it."""
        return self.execution.output("model_run").uri


@dataclass(frozen=True)
class Push:
    """A pushed `Model`.

    Attributes:
        destination: folder of the version.
        version: name of this folder.
        model: URI of the model.
        time: of the push, in ISO format with the time zone.
        digest: digest of the model's files; "": not known.
        run: id of the run.
    """

    destination: str
    version: str
    model: str
    time: str
    digest: str
    run: str

    @classmethod
    def of(cls, execution: Execution, pushed: Output) -> "Push":
        """Describes an output of SavedModelPusher that is pushed."""
        return cls(
            destination=str(pushed.properties[DESTINATION_PROPERTY]),
            version=str(pushed.properties[PUSHED_VERSION_PROPERTY]),
            model=execution.input("model"),
            time=time_of(execution.ended).isoformat(timespec="seconds"),
            digest=str(pushed.properties.get(DIGEST_PROPERTY, "")),
            run=execution.run,
        )


@dataclass(frozen=True)
class ComponentState:
    """State of a component in a run, "done", "reused" or "failed", and its wall-clock seconds."""

    state: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run.

    The fields from `data` on are results: a report has them, see `components.history.queries.History.with_results`.

    Attributes:
        id: name of the record.
        trigger: why it ran, such as "command" or "cron 0 3 * * *".
        state: "running", "done", "failed" or "interrupted"; "submitted": on another platform, which knows more;
            "skipped", see `skipped`.
        attempt: 1, or more if a run was resumed; 0: not started.
        started: time of this attempt's start, in ISO format with the time zone.
        ended: time of its end; None: not ended.
        process: `detection.storage.processes.this_process` of the run.
        runner: "local", "beam", or where it was submitted to.
        pipeline: name of the pipeline.
        config: digest of its configuration, see `store_config`.
        deciding: digest of the keys that decide about the result; None: not known.
        now: component that is executed; None: no component, or not known.
        error: reason of a failure, on one line.
        skipped: why nothing was to do, as part of a sentence; None: it was not skipped.
        data: what it reads; None: not known.
        components: states by node, in the order of execution.
        model: URI of the model; None: not trained.
        model_run: URI of the ModelRun beside it.
        evaluation: URI of the evaluation; None: not evaluated.
        metrics: metrics by name.
        blessed: True if the model is blessed; None: not evaluated.
        reasons: one sentence per threshold.
        pushed_path: folder of the pushed version; None: not pushed.
    """

    id: str
    trigger: str = "command"
    state: str
    attempt: int = 1
    started: str
    ended: str | None = None
    process: dict[str, Any] = field(default_factory=dict)
    runner: str = "local"
    pipeline: str = ""
    config: str | None = None
    deciding: str | None = None
    now: str | None = None
    error: str | None = None
    skipped: str | None = None
    data: DataRead | None = None
    components: dict[str, ComponentState] = field(default_factory=dict)
    model: str | None = None
    model_run: str | None = None
    evaluation: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    blessed: bool | None = None
    reasons: tuple[str, ...] = ()
    pushed_path: str | None = None

    @property
    def is_dead(self) -> bool:
        """True if the record says that the run is running, but its process has ended."""
        return self.state == RUNNING and has_ended(self.process)

    @property
    def seconds(self) -> float | None:
        """Seconds from start to end; None: not ended."""
        if self.ended is None:
            return None
        return max(round((time_of(self.ended) - time_of(self.started)).total_seconds(), 3), 0.0)
