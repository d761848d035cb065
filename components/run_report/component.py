"""The component `RunReport`: everything that a run made in, a report as properties of its output."""

import json

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.types import standard_artifacts
from tfx.types.experimental import simple_artifacts

from components.history.execution import run_of
from components.history.stand_ins import describe
from components.run_report.report import NODE, summarize
from components.selection.node import selecting


@selecting(NODE)
def RunReport(  # noqa: N802, PLR0917 (a component's name; its channels)
    examples: InputArtifact[standard_artifacts.Examples],
    model: InputArtifact[standard_artifacts.Model],
    model_run: InputArtifact[standard_artifacts.ModelRun],
    evaluation: InputArtifact[standard_artifacts.ModelEvaluation],
    pushed_model: InputArtifact[standard_artifacts.PushedModel],
    anomalies: InputArtifact[standard_artifacts.ExampleAnomalies],
    report: OutputArtifact[simple_artifacts.Metrics],
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
        anomalies: anomalies of the data; an input, so that this component is the last one on every runner.
        report: artifact that gets the properties.
        run_root: folder of the run, with the history.
        nodes: ids of the other components, a JSON list in the order of execution.
    """
    del model, model_run, anomalies
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
