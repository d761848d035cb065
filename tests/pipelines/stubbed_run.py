"""Runs of the whole pipeline that die where a test says; the executors that take long can be stubs.

`run` is for `tests.forked_calls`: it changes the executors of its process.
"""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detection.storage.atomic import write_json, write_text
from detection.storage.paths import join
from schemas.artifacts import split_dir
from schemas.errors import DataError

MODULES = (
    "pipelines.pipeline",
    "pipelines.runs.execute",
    "pipelines.runs.results",
    "tfx.orchestration.local.local_dag_runner",
    "tfx.components.statistics_gen.executor",
    "tfx.components.example_validator.executor",
)
# The components with an executor, in the order in which they run.
NODES = (
    "CocoExampleGen",
    "RecordSchemaGen",
    "DetectionTrainer",
    "StatisticsGen",
    "ExampleValidator",
    "CocoEvaluator",
    "SavedModelPusher",
)
Do = Callable[..., None]


def run(root: str, data: str, options: dict[str, Any]) -> None:
    """The program's command `run` with few steps.

    Args:
        root: `run.root`.
        data: data set.
        options: "flags" and "assignments" of the command; "stubs": whether executors are stubs; "log": file that
            gets a line "NODE start" and "NODE end" from each executor; "kill": absent, or [node, "start" or "end"],
            or [node, "error"] for an exception.
    """
    import pipelines.runs.execute
    from tests.pipelines.small_run import run_pipeline

    stubs = _STUBS if options["stubs"] else {}
    if stubs:
        pipelines.runs.execute.check_run = lambda *_, **__: None
    kill = options.get("kill")
    for node, executor in (_executors() | (_report() if kill and kill[0] == "RunReport" else {})).items():
        _replace(executor, node, stubs.get(node), options["log"], kill)
    code = run_pipeline(root, data, *options.get("flags", ()), assignments=tuple(options.get("assignments", ())))
    assert code == 0


def lines(log: Path) -> list[str]:
    """The lines of the executors."""
    return log.read_text().splitlines() if log.exists() else []


def _executors() -> dict[str, Any]:
    import components.coco_evaluator.executor
    import components.coco_example_gen.executor
    import components.detection_trainer.executor
    import components.record_schema_gen.executor
    import components.saved_model_pusher.executor
    import components.stock

    return {
        "CocoExampleGen": components.coco_example_gen.executor.Executor,
        "RecordSchemaGen": components.record_schema_gen.executor.Executor,
        "DetectionTrainer": components.detection_trainer.executor.Executor,
        "StatisticsGen": components.stock.StatisticsExecutor,
        "ExampleValidator": components.stock.ValidatorExecutor,
        "CocoEvaluator": components.coco_evaluator.executor.Executor,
        "SavedModelPusher": components.saved_model_pusher.executor.Executor,
    }


def _report() -> dict[str, Any]:
    from components.run_report import RunReport

    return {"RunReport": RunReport.EXECUTOR_SPEC.executor_class}


def _replace(executor: Any, node: str, stub: Do | None, log: str, kill: list[str] | None) -> None:
    from components import stock
    from components.coco_example_gen.spans import resolution
    from components.detection_trainer import identity
    from components.history.execution import DEFAULT_RULE, recorded

    work = stub or executor.Do.__wrapped__
    # As the executors themselves have it.
    rules = {
        "CocoExampleGen": resolution.REUSE_RULE,
        "DetectionTrainer": identity.REUSE_RULE,
        "StatisticsGen": stock.Driver.RULE,
        "ExampleValidator": stock.Driver.RULE,
    }

    @recorded(node, rules.get(node, DEFAULT_RULE))
    def executed(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
        _tell(log, f"{node} start")
        if kill == [node, "start"]:
            write_text(join(next(iter(outputs.values()))[0].uri, "half"), "written")
            os.kill(os.getpid(), signal.SIGKILL)
        if kill == [node, "error"]:
            raise DataError(f"{node} is broken")
        work(self, inputs, outputs, properties)

    def do(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
        executed(self, inputs, outputs, properties)
        if kill == [node, "end"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if not next(iter(outputs.values()))[0].is_external:
            _tell(log, f"{node} end")

    executor.Do = do


def _tell(log: str, line: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{line}\n")


def _statistics(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
    _per_split(inputs["examples"][0], outputs["statistics"][0], "FeatureStats.pb")


def _anomalies(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
    _per_split(inputs["statistics"][0], outputs["anomalies"][0], "SchemaDiff.pb")


def _per_split(source: Any, output: Any, name: str) -> None:
    from tfx.types import artifact_utils

    output.split_names = source.split_names
    for split in artifact_utils.decode_split_names(source.split_names):
        write_text(join(output.uri, split_dir(split), name), "")


def _train(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
    from tests.pipelines.baseline_stubs import write_model

    write_model(outputs["model"][0].uri, "train: {}\n")
    for name in ("identity", "training"):
        outputs["model"][0].set_string_custom_property(name, "stub")
    for name in ("categories.json", "checkpoints/ckpt-3.index"):
        write_text(join(outputs["model_run"][0].uri, name), "{}")


def _evaluate(self: Any, inputs: Any, outputs: Any, properties: Any) -> None:
    from detection.analysis.analysis_file import write_analysis
    from tests.components.saved_model_pusher.served_models import analysis

    [evaluation], [blessing], [model] = outputs["evaluation"], outputs["blessing"], inputs["model"]
    contents: dict[str, Any] = {
        "metrics.json": {"metrics": {"AP": 0.5}, "iou_type": "bbox", "per_category": []},
        "blessing.json": {"blessed": True, "reasons": ["AP 0.5 is at least 0"], "baseline": _baseline(inputs)},
    }
    for name in ("metrics.json", "blessing.json", "detections.json", "report.html"):
        write_json(join(evaluation.uri, name), contents.get(name, {}))
    write_analysis(join(evaluation.uri, "analysis.json"), analysis())
    blessing.set_int_custom_property("blessed", 1)
    blessing.set_int_custom_property("current_model_id", model.id)
    write_text(join(blessing.uri, "BLESSED"), "")


def _baseline(inputs: Any) -> list[str]:
    return [model.uri for model in inputs.get("baseline_model", [])]


_STUBS: Mapping[str, Do] = {
    "StatisticsGen": _statistics,
    "ExampleValidator": _anomalies,
    "DetectionTrainer": _train,
    "CocoEvaluator": _evaluate,
}
