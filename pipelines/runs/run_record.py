"""The record of a run: what ran why, on which data and configuration, and what came of it."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from detection.storage.processes import has_ended
from pipelines.runners.local import RUNNERS

RUNNING, DONE, FAILED, INTERRUPTED, SUBMITTED = "running", "done", "failed", "interrupted", "submitted"
PLANNED, SKIPPED, GIVEN_UP = "planned", "skipped", "given up"
UNFINISHED = frozenset({PLANNED, SKIPPED, FAILED, INTERRUPTED, GIVEN_UP})  # a run of this id may begin or resume
_MAX_SECONDS = 1e12  # `timedelta` takes no more than some days less than 1e14
_YEARS = (1970, 9000)  # beyond them, some time zone's clock has no such time


def as_text(moment: datetime) -> str:
    """Returns a moment in UTC as a plan has it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _require_moment(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise ValueError(f"a time with a time zone, of the years {_YEARS[0]} to {_YEARS[1]}, is expected")
    return text


Moment = Annotated[str, AfterValidator(_require_moment)]  # see `as_text`


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


class Plan(_Part):
    """Why a run was decided upon, or not.

    Attributes:
        cause: cron time, new span, the `begin` of `watch`, or "unchanged" for `run --if-changed`.
        reason: part of a sentence.
        due: the cron time, the last one if there are several.
        decided_until: cron times up to here are decided; None: not a decision of `watch`.
        considered: data of the last decision about data, this one included; None: no such decision.
        given_up: `ConfigCopy.deciding` of the run on it that was given up, this one too; None: no such run.
        failures: number of attempts that failed.
        exit_code: of the last of them; negative: the signal that ended it.
    """

    cause: Literal["begin", "cron", "new span", "unchanged"]
    reason: str
    due: Moment | None = None
    decided_until: Moment | None = None
    considered: DataRead | None = None
    given_up: str | None = None
    failures: Annotated[int, Field(ge=0)] = 0
    exit_code: int | None = None


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
            "planned", "skipped" or "given up" by `watch`, see `plan`.
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
        plan: the decision that led to the run, or to none; None: a person or another program started it.
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
    plan: Plan | None = None

    @property
    def is_dead(self) -> bool:
        """True if the record says that the run goes on, but its process has ended."""
        return self.is_open and has_ended(self.process)

    @property
    def is_open(self) -> bool:
        """True if the record says that the run goes on in a process that holds `run.root`: submitted runs do not."""
        return self.state == RUNNING and self.runner in RUNNERS
