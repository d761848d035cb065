"""Defines the pipeline, once for every runner."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as mlmd
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.data_types import RuntimeParameter
from tfx.orchestration.pipeline import Pipeline

from components.beam.pipelines import IN_MEMORY_RUNNER, beam_arguments
from components.coco_evaluator.component import CocoEvaluator
from components.coco_evaluator.tfma.eval_config import read_eval_config
from components.coco_example_gen.component import CocoExampleGen
from components.detection_trainer.component import DetectionTrainer
from components.detection_trainer.identity import REMOTE_PARAMETERS
from components.record_schema_gen.component import RecordSchemaGen
from components.run_report import RunReport
from components.saved_model_pusher.component import SavedModelPusher
from components.saved_model_pusher.model_registry import Registration
from components.selection import model_to_start_from, previous_blessed_model, training_window
from components.stock import ExampleValidator, StatisticsGen
from pipelines.folders import RunLayout
from schemas.config.config import Config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS, default_value

_OF_PIPELINES = {"caching", "failure_policy", "persistent_resource"}  # the trainer's job does not depend on these


def create_pipeline(
    config: Config,
    *,
    compiled: bool = False,
    custom_jobs: bool = False,
    connection: mlmd.ConnectionConfig | None = None,
    scratch: Path | None = None,
) -> Pipeline:
    """Creates the pipeline from a COCO data set to a pushed detector; no file of the data set is read.

    Data flows example_gen -> (statistics, validation) and trainer -> evaluator (with
    the last blessed model as baseline) -> pusher.  With `data.window`, a node between
    example_gen and trainer adds the examples of earlier spans; all other nodes use the
    newest.  With `train.init.from_previous_model`, a node passes the trainer its base
    model.  `RunReport` is the last node.

    In this process, the records below `run.root` decide what is reused, see `components.history.driver`.  In
    containers, the backend's cache does, and the keys of `schemas.config.runtime_parameters` are parameters of a
    submission.

    Args:
        config: complete configuration; the paths of a compiled pipeline are those of the containers.
        compiled: whether the pipeline will run in containers, not in this process.
        custom_jobs: whether the trainer may be a job of its own on Vertex AI.
        connection: to the metadata database that TFX fills during a run; None: the caller has one, as a notebook.
        scratch: local folder for files of TFX; None: they are below `run.root`.

    Raises:
        ConfigError: no data set; for containers, `run.root` is a path that they do not share.
    """
    layout = RunLayout(config, compiled=compiled)
    parameters: dict[str, Any] = {name: default_value(config, name) for name in RUNTIME_PARAMETERS}
    parameters["push_directory"] = layout.push_directory
    if compiled:
        parameters = {
            name: RuntimeParameter(name=name, ptype=RUNTIME_PARAMETERS[name].kind, default=default)
            for name, default in parameters.items()
        }
    return Pipeline(
        pipeline_name=config.run.name,
        pipeline_root=layout.artifacts if scratch is None else str(scratch),
        components=_nodes(config, layout.root, parameters, trainer_job=_trainer_job(config) if custom_jobs else None),
        enable_cache=compiled,
        beam_pipeline_args=_remote_beam_args(config) if compiled else beam_arguments(config.run.beam_args),
        metadata_connection_config=connection,
    )


def _trainer_job(config: Config) -> str | None:
    vertex = config.run.vertex
    if not vertex.trainer_job.enabled:
        return None
    return json.dumps({"image": config.run.image, "vertex": vertex.model_dump(mode="json", exclude=_OF_PIPELINES)})


def _remote_beam_args(config: Config) -> list[str]:
    """Returns the Beam options with a runner, by default the one in memory.

    Workers on Dataflow get the pipeline's own image unless the options say otherwise.  In memory, where there are
    no workers, that option keeps TFX from packaging itself for them.
    """
    arguments = beam_arguments(config.run.beam_args)
    in_memory = f"--runner={IN_MEMORY_RUNNER}"
    if not any(one.startswith("--runner") for one in arguments):
        arguments.insert(0, in_memory)
    shipped = any(one.startswith(("--sdk_container_image", "--setup_file")) for one in arguments)
    if config.run.image is not None and {"--runner=DataflowRunner", in_memory} & {*arguments} and not shipped:
        arguments.append(f"--sdk_container_image={config.run.image}")
    return arguments


def _nodes(config: Config, root: str, parameters: Mapping[str, Any], *, trainer_job: str | None) -> list[BaseNode]:
    evaluation, spans = config.evaluate, config.data.window
    training = {name: parameters[name] for name in REMOTE_PARAMETERS}
    example_gen = CocoExampleGen(
        config.data, data_root=parameters["data_root"], data_span=parameters["data_span"], run_root=root
    )
    examples = example_gen.outputs["examples"]
    schema_gen = RecordSchemaGen(run_root=root)
    schema = schema_gen.outputs["schema"]
    statistics_gen = StatisticsGen(examples=examples, schema=schema, run_root=root)
    example_validator = ExampleValidator(statistics=statistics_gen.outputs["statistics"], schema=schema, run_root=root)
    window = [training_window(examples, run_root=root, spans=spans)] if spans > 1 else []
    training_examples = window[0].outputs["examples"] if window else examples
    base = []
    if config.train.init.from_previous_model:
        base = [model_to_start_from(training_examples, config=config, run_root=root, parameters=training)]
    trainer = DetectionTrainer(
        examples=training_examples,
        config=config,
        run_root=root,
        base_model=base[0].outputs["model"] if base else None,
        parameters=training,
        job=trainer_job,
    )
    model = trainer.outputs["model"]
    baseline = previous_blessed_model(model, run_root=root)
    evaluator = CocoEvaluator(
        examples=examples,
        model=model,
        baseline_model=baseline.outputs["model"],
        config=evaluation,
        eval_config=None if evaluation.eval_config is None else read_eval_config(evaluation.eval_config),
        thresholds=parameters["evaluate_thresholds"],
        run_root=root,
        served_images=config.push.sample_images,
    )
    pusher = SavedModelPusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        model_evaluation=evaluator.outputs["evaluation"],
        push_directory=parameters["push_directory"],
        run_root=root,
        config=config.push,
        score_thresholds=evaluation.tta.is_empty,  # fused boxes have scores of their own
        registration=Registration.of(config),
    )
    checks = [schema_gen, statistics_gen, example_validator]
    nodes = [example_gen, *checks, *window, *base, trainer, baseline, evaluator, pusher]
    report = RunReport(
        examples=examples,
        model=model,
        model_run=trainer.outputs["model_run"],
        evaluation=evaluator.outputs["evaluation"],
        pushed_model=pusher.outputs["pushed_model"],
        anomalies=example_validator.outputs["anomalies"],
        run_root=root,
        nodes=json.dumps([node.id for node in nodes]),
    )
    return [*nodes, report]
