"""The report on a run: its data, model, verdict and push, and what became of each component.

The component `RunReport` keeps it as properties of its output, so that one record tells it, on every runner.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.history.read import (
    FINGERPRINT_PROPERTY,
    PUSHED_PROPERTY,
    RecordedVerdict,
    examples_record,
    read_executions,
    read_verdict,
)
from components.history.records import DESTINATION_PROPERTY, Output, Record, time_of
from detection.coco.summary import read_metrics
from detection.storage.paths import join
from schemas.artifacts import BLESSING_JSON, METRICS_JSON
from schemas.errors import DataError

NODE = "RunReport"
DONE, REUSED = "done", "reused"

_OUTPUT = "report"
# Custom properties of the output.
_SUMMARY = "summary"  # JSON: what `summarize` returns
_PUSHED_PATH = "pushed_path"  # folder of the pushed version; absent: not pushed


def summarize(
    root: str, run: str, attempt: int, *, nodes: Sequence[str], examples: Output, evaluation: str, pushed: Output
) -> dict[str, str]:
    """Returns the report as properties.

    Args:
        root: `run.root`.
        run: id of the run.
        attempt: of the run.
        nodes: ids of the other components, in the order of execution.
        examples: `Examples` of the run.
        evaluation: URI of the `ModelEvaluation`.
        pushed: `PushedModel` of the run.

    Raises:
        DataError: the evaluation or a record cannot be read.
    """
    executed = executions(root, run, attempt)
    verdict: RecordedVerdict = read_verdict(join(evaluation, BLESSING_JSON))
    summary = {
        "started": min((one.started for one in executed.values()), default=""),
        "data": _data(examples),
        "metrics": read_metrics(join(evaluation, METRICS_JSON)).by_name,
        "blessed": verdict.blessed,
        "reasons": verdict.reasons,
        "components": component_states(executed, nodes),
    }
    properties = {_SUMMARY: json.dumps(summary)}
    if pushed.properties.get(PUSHED_PROPERTY):
        properties[_PUSHED_PATH] = str(pushed.properties[DESTINATION_PROPERTY])
    return properties


def executions(root: str, run: str, attempt: int) -> dict[str, Record]:
    """Returns the records of the components that an attempt of a run executed, by id."""
    return {record.component: record for record in read_executions(root, {run}) if record.attempt == attempt}


def component_states(executed: Mapping[str, Record], nodes: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns state and wall-clock seconds by component; those of `nodes` that were not executed are reused."""
    states = {node: {"state": REUSED, "seconds": 0.0} for node in nodes}
    return states | {node: {"state": one.state, "seconds": one.seconds} for node, one in executed.items()}


def fields_so_far(executed: Mapping[str, Record]) -> dict[str, Any]:
    """Returns the fields of a run, as `run_fields`, that the executions of an unfinished attempt tell."""
    fields: dict[str, Any] = {"components": component_states(executed)}
    for node, name in {"DetectionTrainer": "model", "CocoEvaluator": "evaluation"}.items():
        for output in _made(executed, node, name):
            fields[name] = output.uri
    for examples in _made(executed, "CocoExampleGen", "examples"):
        fields["data"] = _data(examples) | {"examples": examples.uri}
    return fields


def _made(executed: Mapping[str, Record], node: str, name: str) -> Sequence[Output]:
    return executed[node].outputs.get(name, []) if node in executed else []


def _data(examples: Output) -> dict[str, Any]:
    record = examples_record(examples)
    return {
        "source": record.source,
        "span": record.span,
        "version": record.version,
        "identity": record.identity,
        "input_fingerprint": examples.properties.get(FINGERPRINT_PROPERTY),
    }


def run_fields(record: Record) -> dict[str, Any]:
    """Returns the fields of a run that its report tells: see `pipelines.runs.run_record.RunRecord`.

    Args:
        record: record of `RunReport`.

    Raises:
        DataError: the report has another form.
    """
    try:
        properties = record.output(_OUTPUT).properties
        summary = json.loads(str(properties[_SUMMARY]))
        [examples], [model], [evaluation] = (record.inputs[name] for name in ("examples", "model", "evaluation"))
        return {
            "components": summary["components"],
            "data": {**summary["data"], "examples": examples},
            "model": model,
            "evaluation": evaluation,
            "metrics": summary["metrics"],
            "blessed": summary["blessed"],
            "reasons": summary["reasons"],
            "pushed_path": properties.get(_PUSHED_PATH),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(record, error) from error


def started(record: Record) -> str:
    """Returns when the first component of a run started, in ISO format, as its report says.

    Raises:
        DataError: the report has another form.
    """
    try:
        return time_of(json.loads(str(record.output(_OUTPUT).properties[_SUMMARY]))["started"]).isoformat()
    except (KeyError, TypeError, ValueError) as error:
        raise _invalid(record, error) from error


def _invalid(record: Record, error: Exception) -> DataError:
    return DataError(f"the report on the run {record.run} is invalid: {error}. Remove its record.")
