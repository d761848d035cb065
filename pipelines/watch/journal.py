"""The journal: what `watch` decided, why, and what became of it; written before a run starts.

A file for each decision, `<run.root>/watch/journal/<number>.json`.  The newest one holds all that a
restart needs: the decision with its attempts, and what is known after it (`Known`).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter

from detection.storage.atomic import write_json
from detection.storage.files import is_dir, list_folder
from detection.storage.json_files import parse_file
from detection.storage.paths import join, stem, suffix

_DIGITS = 8
_YEARS = (1970, 9000)  # beyond them, some time zone's clock has no such time


def _require_moment(text: str) -> str:
    moment = moment_of(text)
    if moment.tzinfo is None or not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise ValueError(f"a time with a time zone, of the years {_YEARS[0]} to {_YEARS[1]}, is expected")
    return text


Moment = Annotated[str, AfterValidator(_require_moment)]  # see `as_text`
Cause = Literal["begin", "cron", "new span"]
Outcome = Literal["done", "failed", "interrupted"]


@dataclass(frozen=True)
class Data:
    """What a training depends on.

    Attributes:
        span: number of the span; 0 for data without spans.
        version: version of the span; None: the data has no versions.
        fingerprint: changes with every annotation and image file.
        config: digest of the keys of the configuration that decide about the result.
        name: the span and version as the paths of the data name them, such as by date; None: by number.
    """

    span: int
    version: int | None
    fingerprint: str
    config: str
    name: str | None = field(default=None, compare=False)

    @property
    def order(self) -> tuple[int, int]:
        """Orders data by age."""
        return self.span, -1 if self.version is None else self.version

    def __str__(self) -> str:
        if self.name is not None or self.order == (0, -1):
            return self.name or "the data"
        return f"span {self.span}" + ("" if self.version is None else f", version {self.version}")


@dataclass(frozen=True)
class Known:
    """What is known after a decision.

    Attributes:
        decided_until: cron times up to here are decided.
        trained: data of the last run that is done.
        trained_by: id of that run.
        considered: data of the last decision about new data: trained, given up, or without drift.
        given_up: whether the run on `considered` was given up.
    """

    decided_until: Moment
    trained: Data | None = None
    trained_by: str | None = None
    considered: Data | None = None
    given_up: bool = False


@dataclass(frozen=True)
class Attempt:
    """A process of a run.

    Attributes:
        started: time.
        ended: time; None: it runs, or ended with the `watch` that started it.
        outcome: None: as for `ended`.
        exit_code: of the process, negative: the signal that ended it; None: not known.
    """

    started: Moment
    ended: Moment | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class Entry:
    """A decision.

    Attributes:
        number: counts from 1.
        time: of the decision.
        cause: `begin` of the journal, a cron time, or a new span.
        decision: to run or not; the journal's first entry is neither.
        reason: why, as a sentence.
        due: the cron time, the last one if there are several.
        data: data that was decided about.
        run_id: id of the run; None: no run.
        outcome: of the run; None: not ended.
        attempts: its processes.
        result: metrics, blessing and changes by category, as `pipelines.watch.results` reads them.
        known: what is known from here on.
    """

    number: int
    time: Moment
    cause: Cause
    decision: Literal["begin", "run", "skip"]
    reason: str
    known: Known
    due: Moment | None = None
    data: Data | None = None
    run_id: str | None = None
    outcome: Literal["done", "failed"] | None = None
    attempts: list[Attempt] = field(default_factory=list)
    result: dict[str, Any] | None = None

    @property
    def trigger(self) -> str:
        """The cause with its time or data, for the record of the run and the log."""
        if self.due is not None:
            return f"{self.cause} {moment_of(self.due):%Y-%m-%d %H:%M} UTC"
        return self.cause if self.data is None else f"{self.cause} ({self.data})"

    @property
    def is_open(self) -> bool:
        """True if its run has to be started, or started again."""
        return self.decision == "run" and self.outcome is None

    @property
    def failures(self) -> int:
        """Number of attempts that failed by themselves."""
        return sum(attempt.outcome == "failed" for attempt in self.attempts)

    def closed(self, outcome: Literal["done", "failed"], result: dict[str, Any] | None = None) -> "Entry":
        """Returns the entry with the outcome of its run."""
        known = replace(self.known, considered=self.data, given_up=outcome == "failed")
        if outcome == "done":
            known = replace(known, trained=self.data, trained_by=self.run_id)
        return replace(self, outcome=outcome, result=result, known=known)


_STRUCTURE: TypeAdapter[Entry] = TypeAdapter(Entry)


class Journal:
    """The entries in a folder, local or remote.

    Args:
        folder: made with the first entry.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def entries(self) -> list[Entry]:
        """Reads all entries, the oldest first.

        Raises:
            DataError: an entry cannot be read, or is invalid.
        """
        return [self._read(number) for number in self._numbers()]

    def newest(self) -> Entry | None:
        """Reads the newest entry; None: there is none.

        Raises:
            DataError: see `entries`.
        """
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def write(self, entry: Entry) -> None:
        """Writes an entry, new or again; it is on the disk when this returns.

        Raises:
            DataError: the folder cannot be written.
        """
        write_json(self._path(entry.number), asdict(entry))

    def _numbers(self) -> list[int]:
        names: Iterable[str] = list_folder(self._folder) if is_dir(self._folder) else ()
        return sorted(int(stem(name)) for name in names if suffix(name) == ".json" and stem(name).isdecimal())

    def _path(self, number: int) -> str:
        return join(self._folder, f"{number:0{_DIGITS}d}.json")

    def _read(self, number: int) -> Entry:
        remedy = f"Restore it, or move {self._folder} away: then `watch` begins a new journal."
        return parse_file(_STRUCTURE, self._path(number), what="an entry of the journal of `watch`", remedy=remedy)


def as_text(moment: datetime) -> str:
    """Returns a moment in UTC as entries have it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def moment_of(text: str) -> datetime:
    """Inverse of `as_text`."""
    return datetime.fromisoformat(text)
