"""The component `RunReport`: ends a pipeline with a record of the run, so that `status` knows it on every platform."""

import json
from datetime import UTC, datetime

from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.types import standard_artifacts
from tfx.types.experimental import simple_artifacts

from components.history.driver import selection_component
from components.history.execution import describe, run_of
from components.history.queries import executions_of, read_blessing, states_of
from components.history.records import (
    DESTINATION_PROPERTY,
    DONE,
    PUSHED_PROPERTY,
    REUSED,
    ComponentState,
    DataRead,
    Run,
    time_of,
)
from components.history.store import REPORTS, write_run
from detection.coco.summary import read_metrics
from detection.storage.paths import join
from schemas.artifacts import METRICS_JSON

_UNRECORDED = "not recorded"  # trigger of a run without a record of its own, such as that of a schedule in the cloud


@selection_component("RunReport")
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
    """Records the run that makes `report`, which ends with this component.

    Args:
        examples: data of the run.
        model: model of the run.
        model_run: logs of its training.
        evaluation: evaluation of the model.
        pushed_model: push of the model.
        anomalies: anomalies of the data; an input, so that this component is the last one on every runner.
        report: has no content; its place names the run.
        run_root: folder of the run, with the history.
        nodes: ids of the other components, a JSON list in the order of execution; those not executed are reused.
    """
    del anomalies
    run, attempt = run_of(report.uri, run_root)
    executed = executions_of(run_root, run, attempt)
    reused = {node: ComponentState(REUSED, 0.0) for node in json.loads(nodes)}
    verdict, pushed, ended = read_blessing(evaluation.uri), describe(pushed_model).properties, datetime.now(UTC)
    record = Run(
        id=run,
        trigger=_UNRECORDED,
        state=DONE,
        attempt=attempt,
        started=min([ended, *(time_of(one.started) for one in executed)]).isoformat(),
        ended=ended.isoformat(),
        runner="",
        components=reused | states_of(executed),
        data=DataRead.of(describe(examples)),
        model=model.uri,
        model_run=model_run.uri,
        evaluation=evaluation.uri,
        metrics=read_metrics(join(evaluation.uri, METRICS_JSON)).by_name,
        blessed=verdict.blessed,
        reasons=tuple(verdict.reasons),
        pushed_path=str(pushed[DESTINATION_PROPERTY]) if pushed.get(PUSHED_PROPERTY) else None,
    )
    write_run(run_root, record, folder=REPORTS)
