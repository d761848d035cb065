"""Nodes that select from the history: the window of spans, the base model of a training, the baseline of an evaluation.

TFX's own strategies would select other artifacts:

- `SpanRangeStrategy` selects every `Examples` of a span, such as two versions of it, or data that was corrected and
  read again.  It also counts from the newest span ever read, not from this run's, and selects spans of other data that
  the pipeline once read.  Here a window has one `Examples` per span, none newer than this run's, and of the same data.
- `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a pipeline runs again unchanged, that is
  the candidate itself: an improvement threshold would refuse the model against itself.  Here only models before the
  first training of the candidate's identity count, so that a repeated run has the same baseline, and so has a
  candidate that is trained again because its files were lost.

The base model of a finished training is its earlier base model.  So a repeated run trains nothing: its training would
otherwise start from its own result.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import standard_artifacts

from components.coco_example_gen.spans.span_paths import SpanVersion, spans_there
from components.detection_trainer.identity import trainer_properties, training_identity, training_of
from components.history.driver import selection_component
from components.history.execution import describe, resolve_to, resolved
from components.history.queries import History
from components.history.records import IDENTITY_PROPERTY, DataRead, Model
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.quoting import first_of

_WINDOW_ID, _BASE_MODEL_ID, _BASELINE_ID = "training_window", "model_to_start_from", "previous_blessed_model"
_LISTED = 5  # max named spans

_LOGGER = logging.getLogger("cocoflow.window")


def passed_over(read: Sequence[int], newest: DataRead, *, spans: int) -> str:
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


@selection_component(_WINDOW_ID)
def Window(  # noqa: N802 (a component's name)
    newest: InputArtifact[standard_artifacts.Examples],
    examples: OutputArtifact[standard_artifacts.Examples],
    run_root: Parameter[str],
    spans: Parameter[int],
) -> None:
    """Resolves `examples` to those of a window of spans that ends with `newest`."""
    own = describe(newest)
    outputs = History(run_root).window(own, spans=spans)
    window = [*map(DataRead.of, outputs)]
    names = ", ".join(SpanVersion(one.span, one.version).name_in(one.source) for one in window)
    _LOGGER.info("training on a window of %d spans, of which runs have read %s", spans, names)
    warning = passed_over([one.span for one in window], DataRead.of(own), spans=spans)
    if warning:
        _LOGGER.warning("%s", warning)
    resolve_to(examples, outputs)


@selection_component(_BASE_MODEL_ID)
def BaseModel(  # noqa: N802, PLR0917 (a component's name, and TFX's form of its parameters)
    examples: InputArtifact[standard_artifacts.Examples],
    model: OutputArtifact[standard_artifacts.Model],
    run_root: Parameter[str],
    settings: Parameter[str],
    other_settings: Parameter[str],
    split: Parameter[str],
    data_root: Parameter[str],
    model_name: Parameter[str],
    train_steps: Parameter[int],
    train_batch_size: Parameter[int],
) -> None:
    """Resolves `model` to the base model, or to no model; the other parameters are those of the trainer."""
    given = {
        "settings": settings,
        "other_settings": other_settings,
        "split": split,
        "data_root": data_root,
        "model_name": model_name,
        "train_steps": train_steps,
        "train_batch_size": train_batch_size,
    }
    training = training_identity(training_of(given)[1], resolved([examples]))
    _resolve_to_model(model, History(run_root).base_model(training))


@selection_component(_BASELINE_ID)
def Baseline(  # noqa: N802 (a component's name)
    candidate: InputArtifact[standard_artifacts.Model],
    model: OutputArtifact[standard_artifacts.Model],
    run_root: Parameter[str],
) -> None:
    """Resolves `model` to the baseline for `candidate`, or to no model."""
    identity = candidate.get_string_custom_property(IDENTITY_PROPERTY)
    _resolve_to_model(model, History(run_root).baseline(candidate.uri, identity=identity))


def _resolve_to_model(output: types.Artifact, model: Model | None) -> None:
    resolve_to(output, [] if model is None else [model.execution.output("model")])


def training_window(examples: types.BaseChannel, *, run_root: str, spans: int) -> BaseComponent:
    """Creates a node whose `outputs["examples"]` stands for the examples of a window of spans, the newest first.

    Args:
        examples: output of the example gen.
        run_root: folder of the run, with the history.
        spans: length of the window, in span numbers.
    """
    return Window(newest=examples, run_root=run_root, spans=spans).with_id(_WINDOW_ID)


def model_to_start_from(
    examples: types.BaseChannel, *, config: Config, run_root: str, parameters: Mapping[str, Any]
) -> BaseComponent:
    """Creates a node whose `outputs["model"]` stands for the base model, or for no model.

    Args:
        examples: examples channel of the trainer.
        config: whole configuration.
        run_root: folder of the run, with the history.
        parameters: values of `REMOTE_PARAMETERS`, or parameters of the submission.
    """
    properties = trainer_properties(config, TRAIN_SPLIT)
    return BaseModel(examples=examples, run_root=run_root, **properties, **parameters).with_id(_BASE_MODEL_ID)


def previous_blessed_model(candidate: types.BaseChannel, *, run_root: str) -> BaseComponent:
    """Creates a node whose `outputs["model"]` stands for the baseline for `candidate`, or for no model.

    Args:
        candidate: `Model` channel of the trainer.
        run_root: folder of the run, with the history.
    """
    return Baseline(candidate=candidate, run_root=run_root).with_id(_BASELINE_ID)
