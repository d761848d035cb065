"""The record of a run: what ran why, on which data and configuration, and what came of it."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from detection.storage.processes import has_ended
from pipelines.runners.local import RUNNERS

RUNNING, DONE, FAILED, INTERRUPTED, SUBMITTED = "running", "done", "failed", "interrupted", "submitted"
SKIPPED = "skipped"  # by `run --if-changed`
UNFINISHED = frozenset({SKIPPED, FAILED, INTERRUPTED})  # a run of this id may begin or resume
_MAX_SECONDS = 1e12  # `timedelta` takes no more than some days less than 1e14


class _Part(BaseModel):
    """Part of a record; a reader leaves out keys of later versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class ConfigCopy(_Part):
    """The resolved configuration of a run.

    Attributes:
        digest: names its content.
        path: of a copy, relative to `run.root`.
        deciding: digest of the keys that decide about the result; None: not known.
    """

    digest: str
    path: str
    deciding: str | None = None


class DataRead(_Part):
    """The data of a run.

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


class ComponentState(_Part):
    """State of a component in a run, "done", "reused" or "failed", and its wall-clock seconds."""

    state: str
    seconds: float


class RunRecord(_Part):
    """A run.

    Attributes:
        id: name of the record.
        trigger: why it ran, such as "command" or "cron 0 3 * * *".
        state: "running", "done", "failed" or "interrupted"; "submitted": on another platform, which knows more;
            "skipped", see `skipped`.
        attempt: 1, or more if a run was resumed; 0: not started.
        started: time of this attempt's start, in ISO format with the time zone.
        ended: time of its end, likewise; None: not ended.
        seconds: from start to end.
        process: `detection.storage.processes.this_process` of the run.
        runner: "local", "beam", or where it was submitted to.
        pipeline: name of the pipeline.
        config: its configuration.
        data: what it read; None: not known.
        now: component that is executed; None: none, or not known.
        components: states by node, in the order of execution.
        model: URI of the model; None: not trained.
        evaluation: URI of the evaluation; None: not evaluated.
        metrics: metrics by name.
        blessed: True if the model is blessed; None: not evaluated.
        reasons: one sentence per threshold.
        pushed_path: folder of the pushed version; None: not pushed.
        error: reason of a failure, on one line.
        skipped: why nothing was to do, as part of a sentence; None: it was not skipped.
    """

    id: str
    trigger: str = "command"
    state: str
    attempt: int = 1
    started: str
    ended: str | None = None
    seconds: Annotated[float, Field(ge=0.0, le=_MAX_SECONDS)] | None = None
    process: dict[str, Any] = {}
    runner: str = "local"
    pipeline: str = ""
    config: ConfigCopy | None = None
    data: DataRead | None = None
    now: str | None = None
    components: dict[str, ComponentState] = {}
    model: str | None = None
    evaluation: str | None = None
    metrics: dict[str, float] = {}
    blessed: bool | None = None
    reasons: tuple[str, ...] = ()
    pushed_path: str | None = None
    error: str | None = None
    skipped: str | None = None

    @property
    def is_dead(self) -> bool:
        """True if the record says that the run goes on, but its process has ended."""
        return self.is_open and has_ended(self.process)

    @property
    def is_open(self) -> bool:
        """True if the record says that the run goes on in a process that holds `run.root`: submitted runs do not."""
        return self.state == RUNNING and self.runner in RUNNERS
