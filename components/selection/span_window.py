"""Selects the spans of a training: the span that a run reads, and earlier ones within a window.

TFX's `SpanRangeStrategy` selects every `Examples` of a span, such as two versions of
it, or data that was corrected and read again.  It also counts from the newest span ever
read, not from this run's, and selects spans of other data that the pipeline once read.
Here a window has one `Examples` per span, none newer than this run's, and of the same data only.
"""

import logging
from collections.abc import Sequence

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import standard_artifacts

from components.coco_example_gen.spans.span_paths import SpanVersion, spans_there
from components.history.facts import ExamplesRecord
from components.history.files import damage_of
from components.history.read import examples_record
from components.history.records import read_records
from components.history.stand_ins import describe, resolve_to
from components.selection.node import selecting
from schemas.quoting import first_of

_ID = "training_window"
_LISTED = 5  # max named spans

_LOGGER = logging.getLogger("cocoflow.window")


def window_of(examples: Sequence[ExamplesRecord], newest: ExamplesRecord, *, spans: int) -> list[ExamplesRecord]:
    """Returns the examples of a window, one per span, the newest span first: the last read of the newest version.

    Args:
        examples: examples of the pipeline, in the order in which they were made.
        newest: the run's own examples, with which the window ends.
        spans: length of the window in span numbers, those without data included.
    """
    same = [one for one in examples if one.source == newest.source]
    ordered = sorted(same, key=lambda one: -1 if one.version is None else one.version)
    by_span = {one.span: one for one in ordered} | {newest.span: newest}
    return [by_span[span] for span in sorted(by_span, reverse=True) if newest.span - spans < span <= newest.span]


def passed_over(read: Sequence[int], newest: ExamplesRecord, *, spans: int) -> str:
    """Says which spans of a window are there, but were read by no run; "": none.

    Args:
        read: spans that runs have read.
        newest: the run's own examples, with which the window ends.
        spans: length of the window in span numbers.
    """
    there = spans_there(newest.source)
    missing = [span for span in range(newest.span, newest.span - spans, -1) if span in there and span not in read]
    if not missing:
        return ""
    names = [SpanVersion(span, None).name_in(newest.source) for span in missing]
    return (
        f"{first_of(names, _LISTED)} of the window: there, but no run has read it, so it is passed over. Run once for "
        f"each, the first with --set data.span={names[-1].removeprefix('span ')}"
    )


@selecting(_ID)
def Window(  # noqa: N802 (a component's name)
    newest: InputArtifact[standard_artifacts.Examples],
    examples: OutputArtifact[standard_artifacts.Examples],
    run_root: Parameter[str],
    spans: Parameter[int],
) -> None:
    """Resolves `examples` to those of a window of spans that ends with `newest`."""
    made = (record for record in read_records(run_root, "CocoExampleGen") if record.state == "done")
    records = {record.output("examples").uri: record for record in made}
    own = describe(newest)
    while True:
        outputs = {uri: record.output("examples") for uri, record in records.items()}
        window = window_of([*map(examples_record, outputs.values())], examples_record(own), spans=spans)
        damaged = {one.uri: damage_of(records[one.uri]) for one in window if one.uri != own.uri}
        lost = {uri: damage for uri, damage in damaged.items() if damage is not None}
        if not lost:
            break
        for uri, damage in lost.items():
            _LOGGER.warning("%s, so these examples are left out", damage)
            del records[uri]
    said = passed_over([one.span for one in window], examples_record(own), spans=spans)
    names = ", ".join(SpanVersion(one.span, one.version).name_in(one.source) for one in window)
    _LOGGER.info("training on a window of %d spans, of which runs have read %s", spans, names)
    if said:
        _LOGGER.warning("%s", said)
    resolve_to(examples, [outputs.get(one.uri, own) for one in window])


def training_window(examples: types.BaseChannel, *, run_root: str, spans: int) -> BaseComponent:
    """Creates a node whose `outputs["examples"]` stands for the examples of a window of spans, the newest first.

    Args:
        examples: output of the example gen.
        run_root: folder of the run, with the history.
        spans: length of the window, in span numbers.
    """
    return Window(newest=examples, run_root=run_root, spans=spans).with_id(_ID)
