"""Selects the baseline of an evaluation: the newest usable model that is older than the candidate.

TFX's `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a pipeline runs again unchanged,
that is the candidate itself: an improvement threshold would refuse the model against itself.  Here only models before
the first training of the candidate's identity count, so that a repeated run has the same baseline, and so has a
candidate that is trained again because its files were lost.
"""

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import standard_artifacts

from components.history.read import IDENTITY_PROPERTY, read_models
from components.history.stand_ins import resolve_to
from components.selection.node import selecting
from components.selection.usable import models_before, newest_usable

_ID = "previous_blessed_model"


@selecting(_ID)
def Baseline(  # noqa: N802 (a component's name)
    candidate: InputArtifact[standard_artifacts.Model],
    model: OutputArtifact[standard_artifacts.Model],
    run_root: Parameter[str],
) -> None:
    """Resolves `model` to the baseline for `candidate`, or to no model."""
    identity = candidate.get_string_custom_property(IDENTITY_PROPERTY)
    baseline = newest_usable(run_root, models_before(read_models(run_root), candidate.uri, identity=identity))
    resolve_to(model, [] if baseline is None else [baseline.record.output("model")])


def previous_blessed_model(candidate: types.BaseChannel, *, run_root: str) -> BaseComponent:
    """Creates a node whose `outputs["model"]` stands for the baseline for `candidate`, or for no model.

    Args:
        candidate: `Model` channel of the trainer.
        run_root: folder of the run, with the history.
    """
    return Baseline(candidate=candidate, run_root=run_root).with_id(_ID)
