"""Compares what a run would read with the newest finished run: whether it would change anything."""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from components.coco_example_gen.spans.fingerprint import data_state
from components.coco_example_gen.spans.locate import has_spans, locate, source_of
from components.coco_example_gen.spans.span_paths import NO_SPAN, SpanSplits, SpanVersion
from detection.storage.file_system import FolderLock
from detection.storage.files import is_dir, is_file, walk_states
from detection.storage.paths import absolute, join, parent
from pipelines.runs.history import RunHistory, deciding_digest, new_id, now, unfinished_run
from pipelines.runs.run_record import DONE, SKIPPED, UNFINISHED, DataRead, RunRecord
from schemas.artifacts import REPORT_HTML, TRAIN_SPLIT
from schemas.config.config import Config

_SPAN_IN_PATHS = re.compile(r"\{(SPAN|YYYY)")


class RunInputs(NamedTuple):
    """What decides about the result of a run.

    Attributes:
        data: with its fingerprint.
        deciding: `ConfigCopy.deciding`.
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


def pinned(config: Config, data: DataRead) -> Config:
    """Returns the configuration of a run on this data, whatever newer spans appear in the meantime.

    Raises:
        ConfigError: placeholders that name no span.
    """
    if not has_spans(config.data):
        return config
    return config.model_copy(
        update={"data": config.data.model_copy(update={"span": data.span, "version": data.version})}
    )


def newest_done(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Returns the newest finished run whose inputs are known; None: there is none.

    Args:
        runs: the newest first.
    """
    return next((run for run in runs if run.state == DONE and inputs_of(run) is not None), None)


def inputs_of(run: RunRecord) -> RunInputs | None:
    """Returns what a run read; None: not known."""
    if run.data is None or run.data.input_fingerprint is None or run.config is None or run.config.deciding is None:
        return None
    return RunInputs(run.data, run.config.deciding)


def order_of(data: DataRead) -> tuple[int, int]:
    """Returns a key that orders data by age."""
    return data.span, -1 if data.version is None else data.version


def is_same_data(one: DataRead | None, other: DataRead | None) -> bool:
    """Returns whether both are the same files of the same span; the way in which their paths are written may differ."""
    if one is None or other is None:
        return one is other
    return (order_of(one), one.input_fingerprint) == (order_of(other), other.input_fingerprint)


def data_name(data: DataRead) -> str:
    """Returns the name of data as its paths have it, such as `2026-11-21, version 2`, `span 7` or `the data`."""
    at = SpanVersion(data.span, data.version)
    return "the data" if at == NO_SPAN and not _SPAN_IN_PATHS.search(data.source) else at.name_in(data.source)


def compare(inputs: RunInputs, newest: RunRecord | None) -> tuple[bool, str]:
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
    if order_of(inputs.data) != order_of(last.data):
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


class Decision(NamedTuple):
    """Whether `run --if-changed` runs.

    inputs: what it would read.
    skipped: why nothing is to do, as part of a sentence; None: it runs.
    run_id: id of the run, or of the record of a skipped one.
    """

    inputs: RunInputs
    skipped: str | None
    run_id: str


def decide(
    config: Config, located: SpanSplits, history: RunHistory, use: FolderLock, *, run_id: str | None, settle: float
) -> Decision:
    """Decides whether a run would change anything; takes up the last one if it failed on the same data.

    Args:
        config: whole configuration.
        located: data that the run would read.
        history: records below `run.root`.
        use: of this folder.
        run_id: id of the run; None: a new one, or that of a failed run.
        settle: seconds without a change after which the files of the data are complete.

    Raises:
        CocoflowError: the run of this id is done, or goes on.
        DataError: a file cannot be read.
    """
    unfinished_run(history, use, run_id)
    runs = history.read_all()
    inputs, changed = observe(config, located)
    would_change, reason = compare(inputs, newest_done(runs))
    age = time.time() - changed
    if would_change and 0 <= age < settle:
        would_change, reason = False, _unsettled(data_name(inputs.data), age, settle)
    if not would_change:
        return Decision(inputs, reason, run_id or _equal_skip(runs, inputs.data) or new_id())
    return Decision(inputs, None, run_id or _failed_before(runs, inputs) or new_id())


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


def record_skip(config: Config, history: RunHistory, decision: Decision, *, trigger: str) -> None:
    """Records that nothing was to do.

    Raises:
        DataError: the record cannot be written.
    """
    history.write(
        RunRecord(
            id=decision.run_id,
            trigger=trigger,
            state=SKIPPED,
            attempt=0,
            started=now(),
            pipeline=config.run.name,
            data=decision.inputs.data,
            skipped=decision.skipped,
        )
    )


def _failed_before(runs: Sequence[RunRecord], inputs: RunInputs) -> str | None:
    """Returns the id of the last run if it did not finish on what a run would read now."""
    last = next((run for run in runs if run.state != SKIPPED), None)
    before = None if last is None or last.state not in UNFINISHED else inputs_of(last)
    return (
        last.id
        if last and before and is_same_data(before.data, inputs.data) and before.deciding == inputs.deciding
        else None
    )


def _equal_skip(runs: Sequence[RunRecord], data: DataRead) -> str | None:
    """Returns the id of the newest record if it is of a skipped run on the same span, which the next one replaces."""
    for newest in runs[:1]:
        is_same = newest.data is not None and order_of(newest.data) == order_of(data)
        return newest.id if newest.state == SKIPPED and is_same else None
    return None
