"""Resolves the spans of a training: the span that a run reads, and earlier ones within a window.

TFX's `SpanRangeStrategy` selects every `Examples` of a span, such as two versions of
it, or data that was corrected and read again.  It also counts from the newest span ever
read, not from this run's, and selects spans of other data that the pipeline once read.
Here a window has one `Examples` per span, none newer than this run's, and of the same data only.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common import resolver
from tfx.types import standard_artifacts

from components.history.read import ExamplesRecord, examples_record, read_outputs
from components.history.stand_ins import describe, resolve_to

_ID = "training_window"
_NEWEST = "newest"
_EXAMPLES = "examples"

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
    window = [by_span[span] for span in sorted(by_span, reverse=True) if newest.span - spans < span <= newest.span]
    read = ", ".join(str(one.span) for one in window)
    _LOGGER.info("training on a window of %d spans, of which runs have read %s", spans, read)
    return window


class SpanWindowStrategy(resolver.ResolverStrategy):
    """Resolves to the `Examples` of a window of spans.

    Args:
        spans: length of the window in span numbers, those without data included.
    """

    def __init__(self, spans: int) -> None:
        self._spans = spans

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]]:
        """Selects among the pipeline's examples; TFX calls it.

        Args:
            store: metadata store, not used.
            input_dict: `newest` of this run, and all `examples` of the pipeline.

        Returns:
            `examples`, one per span: the last read of the newest version; `newest` is empty.
        """
        # An interactive run passes all examples as newest: the last read is the real one.
        newest = max(input_dict[_NEWEST], key=lambda artifact: int(artifact.id))
        by_id = {int(artifact.id): artifact for artifact in [*input_dict[_EXAMPLES], newest]}
        records = {number: replace(_record(by_id[number]), uri=str(number)) for number in sorted(by_id)}
        window = window_of(list(records.values()), records[int(newest.id)], spans=self._spans)
        return {_NEWEST: [], _EXAMPLES: [by_id[int(one.uri)] for one in window]}


def spans_to_train_on(examples: types.OutputChannel, *, spans: int) -> resolver.Resolver:
    """Creates a node whose `outputs["examples"]` holds the examples of a window of spans, in any order.

    Compiled pipelines have `recorded_window` in its place: see `pipelines.resolvers.baseline`.

    Args:
        examples: output of the example gen.
        spans: length of the window, in span numbers.
    """
    return resolver.Resolver(
        strategy_class=SpanWindowStrategy,
        config={"spans": spans},
        newest=examples,
        # TFX's compiler identifies two channels of one producer.
        examples=types.Channel(type=standard_artifacts.Examples),
    ).with_id(_ID)


@component
def RecordedWindow(  # noqa: N802 (a component's name)
    newest: InputArtifact[standard_artifacts.Examples],
    examples: OutputArtifact[standard_artifacts.Examples],
    run_root: Parameter[str],
    spans: Parameter[int],
) -> None:
    """Resolves `examples` like `SpanWindowStrategy`, from the history in `run_root`."""
    recorded = read_outputs(run_root, "CocoExampleGen", "examples")
    outputs = {one.uri: one for one in (*recorded, describe(newest))}
    window = window_of([examples_record(one) for one in recorded], _record(newest), spans=spans)
    resolve_to(examples, [outputs[one.uri] for one in window])


def recorded_window(examples: types.BaseChannel, *, run_root: str, spans: int) -> BaseComponent:
    """Creates the component that takes the place of `spans_to_train_on` in a compiled pipeline.

    Args:
        examples: output of the example gen.
        run_root: folder of the run, with the history.
        spans: length of the window, in span numbers.
    """
    return RecordedWindow(newest=examples, run_root=run_root, spans=spans).with_id(_ID)


def _record(examples: types.Artifact) -> ExamplesRecord:
    return examples_record(describe(examples))
