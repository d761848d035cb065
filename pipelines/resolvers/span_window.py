"""Resolves the spans of a training: the span that a run reads, and earlier ones within a window.

TFX's `SpanRangeStrategy` alone selects every `Examples` of a span, such as two versions of
it, or data that was corrected and read again.  It also counts from the newest span ever
read, not from this run's, and selects spans of other data that the pipeline once read.
Here it gets one `Examples` per span, none newer than this run's, and of the same data only.
"""

import logging
from collections.abc import Iterable
from typing import Any

from tfx import types
from tfx.components.example_gen import utils
from tfx.dsl.components.common import resolver
from tfx.dsl.input_resolution.strategies.span_range_strategy import SpanRangeStrategy
from tfx.proto import range_config_pb2
from tfx.types import standard_artifacts

from components.coco_example_gen.driver import DATA_SOURCE_KEY

_NEWEST = "newest"
_EXAMPLES = "examples"

_LOGGER = logging.getLogger("cocoflow.window")


class SpanWindowStrategy(resolver.ResolverStrategy):
    """Resolves to the `Examples` of a window of spans.

    Args:
        spans: length of the window in span numbers, those without data included.
    """

    def __init__(self, spans: int) -> None:
        self._spans = spans
        window = range_config_pb2.RollingRange(num_spans=spans)
        self._range = SpanRangeStrategy(range_config_pb2.RangeConfig(rolling_range=window))

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]] | None:
        """Selects among the pipeline's examples; TFX calls it.

        Args:
            store: metadata store.
            input_dict: `newest` of this run, and all `examples` of the pipeline.

        Returns:
            `examples`, one per span: the last read of the newest version; `newest` is empty.
        """
        # An interactive run passes all examples as newest: the last read is the real one.
        newest = max(input_dict[_NEWEST], key=lambda artifact: artifact.id)
        same = [artifact for artifact in input_dict[_EXAMPLES] if _source(artifact) == _source(newest)]
        by_span = _best_of_each_span(same) | {_span(newest): newest}
        candidates = [artifact for span, artifact in by_span.items() if span <= _span(newest)]
        resolved: dict[str, list[types.Artifact]] | None = self._range.resolve_artifacts(store, {_EXAMPLES: candidates})
        if resolved is None:
            return None
        read = ", ".join(str(_span(artifact)) for artifact in resolved[_EXAMPLES])
        _LOGGER.info("training on a window of %d spans, of which runs have read %s", self._spans, read)
        return {_NEWEST: [], **resolved}


def spans_to_train_on(examples: types.OutputChannel, *, spans: int) -> resolver.Resolver:
    """Creates a node whose `outputs["examples"]` holds the examples of a window of spans, in any order.

    KFP cannot compile it: see `pipelines.resolvers.baseline`.

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
    ).with_id("training_window")


def _best_of_each_span(artifacts: Iterable[types.Artifact]) -> dict[int, types.Artifact]:
    return {_span(artifact): artifact for artifact in sorted(artifacts, key=lambda one: (_version(one), one.id))}


def _source(artifact: types.Artifact) -> str:
    return str(artifact.get_string_custom_property(DATA_SOURCE_KEY))


def _span(artifact: types.Artifact) -> int:
    return int(artifact.get_int_custom_property(utils.SPAN_PROPERTY_NAME))


def _version(artifact: types.Artifact) -> int:
    if not artifact.has_custom_property(utils.VERSION_PROPERTY_NAME):
        return -1
    return int(artifact.get_int_custom_property(utils.VERSION_PROPERTY_NAME))
