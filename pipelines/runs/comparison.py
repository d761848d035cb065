"""Compares what a run would read with the newest finished run: whether it would change anything."""

import re
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from components.coco_example_gen.spans.fingerprint import data_state
from components.coco_example_gen.spans.locate import has_spans, locate, source_of
from components.coco_example_gen.spans.span_paths import NO_SPAN, SpanSplits, SpanVersion
from components.history.queries import History
from components.history.records import DONE, SKIPPED, SUBMITTED, UNFINISHED, DataRead, Run
from components.history.store import write_run
from detection.storage.file_system import FolderLock
from detection.storage.files import is_dir, is_file, walk_states
from detection.storage.paths import absolute, join, parent
from pipelines.runs.recorded_run import deciding_digest, new_id, now, unfinished_run
from schemas.artifacts import REPORT_HTML, TRAIN_SPLIT
from schemas.config.config import Config

_SPAN_IN_PATHS = re.compile(r"\{(SPAN|YYYY)")


class RunInputs(NamedTuple):
    """What decides about the result of a run.

    Attributes:
        data: with its fingerprint.
        deciding: see `Run.deciding`.
    """

    data: DataRead
    deciding: str


def find_data(config: Config) -> SpanSplits:
    """Finds the newest span, or the one that is set.

    Raises:
        ConfigError: see `locate`.
        DataError: nothing is there, or not all of it yet.
    """
    return locate(config.data, TRAIN_SPLIT, config.evaluate.split, *filter(None, [config.validation_split]))


def data_of(config: Config, located: SpanSplits, *, input_fingerprint: str | None = None) -> DataRead:
    """Returns the record of located data."""
    at = located.newest
    return DataRead(
        source=source_of(config.data), span=at.span, version=at.version, input_fingerprint=input_fingerprint
    )


def observe(config: Config, located: SpanSplits) -> tuple[RunInputs, float]:
    """Returns what a run would read now, and the time of the last change of a file; reads no image.

    Raises:
        DataError: a file cannot be read.
    """
    label_map = config.data.label_map
    state = data_state(located.files.values(), label_map and absolute(label_map))
    return RunInputs(
        data_of(config, located, input_fingerprint=state.fingerprint), deciding_digest(config)
    ), state.changed


def newest_done(history: History, runs: Iterable[Run]) -> Run | None:
    """Returns the newest finished run whose inputs are known, with its results; None: there is none.

    Args:
        history: records of the runs.
        runs: runs without their results, the newest first.
    """
    ended = (history.with_results(run) for run in runs if run.state in (DONE, SUBMITTED))
    return next((run for run in ended if run.state == DONE and inputs_of(run) is not None), None)


def inputs_of(run: Run) -> RunInputs | None:
    """Returns what a run, with its results, read; None: not known."""
    if run.data is None or run.data.input_fingerprint is None or run.deciding is None:
        return None
    return RunInputs(run.data, run.deciding)


def is_same_data(one: DataRead, other: DataRead) -> bool:
    """Returns whether both are the same files of the same span; the way in which their paths are written may differ."""
    return (one.order, one.input_fingerprint) == (other.order, other.input_fingerprint)


def data_name(data: DataRead) -> str:
    """Returns the name of data as its paths have it, such as `2026-11-21, version 2`, `span 7` or `the data`."""
    at = SpanVersion(data.span, data.version)
    return "the data" if at == NO_SPAN and not _SPAN_IN_PATHS.search(data.source) else at.name_in(data.source)


def compare(inputs: RunInputs, newest: Run | None) -> tuple[bool, str]:
    """Returns whether a run would change anything, and why or why not, as part of a sentence.

    Args:
        inputs: what it would read.
        newest: newest finished run; its report must still be there.

    Raises:
        DataError: Cloud Storage cannot be asked.
    """
    last = None if newest is None else inputs_of(newest)
    if newest is None or last is None:
        return True, "no run is done yet"
    if inputs.data.order != last.data.order:
        return True, f"{data_name(inputs.data)} is there, and run {newest.id} trained on {data_name(last.data)}"
    differs = {
        "the files of the data": not is_same_data(inputs.data, last.data),
        "the configuration": inputs.deciding != last.deciding,
    }
    if any(differs.values()):
        changed = " and ".join(what for what, is_so in differs.items() if is_so)
        return True, f"{changed} changed since run {newest.id}"
    if newest.evaluation is None or not is_file(join(newest.evaluation, REPORT_HTML)):
        return True, f"the report of run {newest.id} is missing"
    return False, f"neither {data_name(inputs.data)} nor the configuration changed since run {newest.id}"


class PlannedRun(NamedTuple):
    """A run that would change something: its configuration, pinned to the data, and its id."""

    config: Config
    data: DataRead
    run_id: str


def plan_run(
    config: Config, located: SpanSplits, root: str, use: FolderLock, *, run_id: str | None, settle: float, trigger: str
) -> PlannedRun | str:
    """Returns the run that `run --if-changed` executes; or why nothing is to do, as part of a sentence.

    Resumes the last run if it failed on the same data.  Records a run that would change nothing.

    Args:
        config: whole configuration.
        located: data that the run would read.
        root: `run.root`.
        use: lock of this folder.
        run_id: id of the run; None: a new one, or that of a failed run.
        settle: seconds without a change after which the files of the data are complete.
        trigger: why it runs, for the record.

    Raises:
        CocoflowError: a run with this id has finished or is still running.
        DataError: a file cannot be read, or the record cannot be written.
    """
    unfinished_run(root, use, run_id)
    history = History(root)
    runs = history.runs()
    inputs, changed = observe(config, located)
    would_change, reason = compare(inputs, newest_done(history, runs))
    age = time.time() - changed
    if would_change and 0 <= age < settle:
        would_change, reason = False, _unsettled(data_name(inputs.data), age, settle)
    if would_change:
        run_id = run_id or _failed_before(history, runs, inputs) or new_id()
        return PlannedRun(_pinned(config, inputs.data), inputs.data, run_id)
    skipped = Run(
        id=run_id or _equal_skip(runs, inputs.data) or new_id(),
        trigger=trigger,
        state=SKIPPED,
        attempt=0,
        started=now(),
        pipeline=config.run.name,
        data=inputs.data,
        skipped=reason,
    )
    write_run(root, skipped)
    return reason


def unsettled_data(config: Config, settle: float) -> str | None:
    """Returns why data that cannot be used is still being written, as part of a sentence; None: it is not."""
    named = config.data.root or next(iter(config.data.splits.values())).files[0]
    before, placeholder, _ = named.partition("{")
    begin = absolute(before)
    if not is_dir(begin):
        if before.endswith("/") or not (placeholder or config.data.splits):
            return None  # what lies beside a missing folder says nothing
        begin = parent(begin)
    age = time.time() - max((state.modified for state in walk_states(begin).values()), default=0.0)
    return _unsettled(named, age, settle) if 0 <= age < settle else None


def _unsettled(name: str, age: float, settle: float) -> str:
    return f"{name} may still be written: a file changed {age:.0f} s ago, less than --settle {settle:g}"


def _pinned(config: Config, data: DataRead) -> Config:
    """Returns the configuration of a run on this data, whatever newer spans appear in the meantime."""
    if not has_spans(config.data):
        return config
    pinned = config.data.model_copy(update={"span": data.span, "version": data.version})
    return config.model_copy(update={"data": pinned})


def _failed_before(history: History, runs: Sequence[Run], inputs: RunInputs) -> str | None:
    """Returns the id of the last run if it did not finish on what a run would read now."""
    last = next((run for run in runs if run.state != SKIPPED), None)
    if last is None or last.state not in UNFINISHED:
        return None
    before = inputs_of(history.with_results(last))
    is_same = before and is_same_data(before.data, inputs.data) and before.deciding == inputs.deciding
    return last.id if is_same else None


def _equal_skip(runs: Sequence[Run], data: DataRead) -> str | None:
    """Returns the id of the newest record if it is of a skipped run on the same span, which the next one replaces."""
    for newest in runs[:1]:
        is_same = newest.data is not None and newest.data.order == data.order
        return newest.id if newest.state == SKIPPED and is_same else None
    return None
