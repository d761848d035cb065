"""The component `RunReport`: everything that a run made in, a report as properties of its output."""

import json

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.types import standard_artifacts

from components.history.execution import run_of
from components.history.stand_ins import describe
from components.run_report.report import NODE, summarize
from components.selection.node import selecting


class Report(types.Artifact):  # type: ignore[misc, unused-ignore]
    """A report on a run, in custom properties."""

    TYPE_NAME = "RunReport"


@selecting(NODE)
def RunReport(  # noqa: N802, PLR0917 (a component's name; its channels)
    examples: InputArtifact[standard_artifacts.Examples],
    model: InputArtifact[standard_artifacts.Model],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    evaluation: InputArtifact[standard_artifacts.ModelEvaluation],
    pushed_model: InputArtifact[standard_artifacts.PushedModel],
    report: OutputArtifact[Report],
    run_root: Parameter[str],
    nodes: Parameter[str],
) -> None:
    """Reports on the run that makes `report`, which ends with this component.

    Args:
        examples: data of the run.
        model: model of the run; recorded as an input.
        model_run: logs of its training, likewise.
        evaluation: evaluation of the model.
        pushed_model: push of the model.
        report: artifact that gets the properties.
        run_root: folder of the run, with the history.
        nodes: ids of the other components, a JSON list in the order of execution.
    """
    del model, model_run
    run, attempt = run_of(report.uri, run_root)
    properties = summarize(
        run_root,
        run,
        attempt,
        nodes=json.loads(nodes),
        examples=describe(examples),
        evaluation=evaluation.uri,
        pushed=describe(pushed_model),
    )
    for name, value in properties.items():
        report.set_string_custom_property(name, value)
