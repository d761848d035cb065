"""Compares what a run would read with the newest finished run: whether it would change anything."""

import re
from datetime import datetime
from typing import NamedTuple

from components.coco_example_gen.spans.fingerprint import fingerprint
from components.coco_example_gen.spans.locate import locate, source_of
from components.coco_example_gen.spans.span_paths import NO_SPAN, SpanSplits, SpanVersion
from detection.storage.files import is_file
from detection.storage.lock import FolderLock
from detection.storage.paths import absolute, join
from pipelines.runs.history import RunHistory, deciding_digest, new_id, unfinished_run
from pipelines.runs.run_record import DONE, SKIPPED, DataRead, Plan, RunRecord, as_text
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


def observe(config: Config, located: SpanSplits) -> RunInputs:
    """Returns what a run would read now; reads annotation files, but no image.

    Raises:
        DataError: a file cannot be read.
    """
    label_map = config.data.label_map
    content = fingerprint(located.files.values(), label_map and absolute(label_map))
    return RunInputs(data_of(config, located, input_fingerprint=content), deciding_digest(config))


def newest_done(history: RunHistory) -> RunRecord | None:
    """Returns the newest finished run whose inputs are known; None: there is none.

    Warns of records that it cannot read.
    """
    return next((run for run in history.read_all() if run.state == DONE and inputs_of(run) is not None), None)


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


def skip_unchanged(
    config: Config, located: SpanSplits, history: RunHistory, use: FolderLock, *, run_id: str | None, trigger: str
) -> str | None:
    """Records that a run would change nothing; replaces the record of an equal decision before it.

    Args:
        config: whole configuration.
        located: data that the run would read.
        history: records below `run.root`.
        use: of this folder.
        run_id: id of the run; None: a new one.
        trigger: why it would run.

    Returns:
        Why nothing is to do, as part of a sentence; None: the run would change something, nothing was recorded.

    Raises:
        CocoflowError: the run of this id is done, or goes on.
        DataError: a file cannot be read, or the record not written.
    """
    earlier = unfinished_run(history, use, run_id)
    inputs = observe(config, located)
    would_change, reason = compare(inputs, newest_done(history))
    if would_change:
        return None
    plan = Plan(cause="unchanged", reason=reason)
    if earlier is not None and earlier.plan is not None:  # `watch` decided upon it
        plan = earlier.plan.model_copy(update={"reason": reason})
    history.write(
        RunRecord(
            id=run_id or _equal_skip(history, inputs.data) or new_id(),
            trigger=trigger,
            state=SKIPPED,
            attempt=0,
            started=as_text(datetime.now().astimezone()),
            pipeline=config.run.name,
            data=inputs.data,
            plan=plan,
        )
    )
    return reason


def _equal_skip(history: RunHistory, data: DataRead) -> str | None:
    """Returns the id of the newest record if it is of such a decision about the same data."""
    for newest in history.read_all()[:1]:
        is_skip = newest.state == SKIPPED and newest.plan is not None and newest.plan.cause == "unchanged"
        return newest.id if is_skip and is_same_data(newest.data, data) else None
    return None
