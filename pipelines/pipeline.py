"""Defines the pipeline, once for every runner."""

import json
from collections.abc import Mapping

from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.data_types import RuntimeParameter
from tfx.orchestration.pipeline import Pipeline
from tfx.types import BaseChannel

from components.beam.pipelines import IN_MEMORY_RUNNER, beam_arguments
from components.coco_evaluator.component import CocoEvaluator
from components.coco_evaluator.tfma.eval_config import read_eval_config
from components.coco_example_gen.component import CocoExampleGen, RemoteCocoExampleGen
from components.coco_example_gen.spans.locate import division_of
from components.coco_example_gen.spans.span_paths import SpanSplits
from components.detection_trainer.component import DetectionTrainer, Remote
from components.record_schema_gen.component import RecordSchemaGen
from components.saved_model_pusher.component import SavedModelPusher
from components.saved_model_pusher.model_registry import Registration
from components.stock import ExampleValidator, StatisticsGen
from detection.storage.paths import is_remote
from pipelines.folders import RemoteLayout, RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.resolvers.base_model import model_to_start_from, recorded_base_model
from pipelines.resolvers.baseline import previous_blessed_model, recorded_baseline
from pipelines.resolvers.span_window import recorded_window, spans_to_train_on
from schemas.config.config import Config, DataConfig
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS, default_value

_OF_PIPELINES = {"caching", "failure_policy", "persistent_resource"}  # the trainer's job does not depend on these


def create_pipeline(
    config: Config, located: SpanSplits | None = None, *, database: MetadataDatabase | None = None
) -> Pipeline:
    """Creates the pipeline from a COCO data set to a pushed detector, for LocalDagRunner or BeamDagRunner.

    Data flows example_gen -> (statistics, validation) and trainer -> evaluator (with
    the last blessed model as baseline) -> pusher.  With `data.window`, a resolver between
    example_gen and trainer adds the examples of earlier spans; all other nodes use the
    newest.  With `train.init.from_previous_model`, a resolver passes the trainer its base
    model.

    Args:
        config: whole configuration; `data.root` or `data.splits` is set.
        located: files of the data set if the caller has located them; None: locates them.
        database: metadata database; None: that of `run.root`, and of a remote one with a SQLite file none.

    Raises:
        DataError: no recognised data set, or no weights at `train.init.checkpoint`.
    """
    layout = RunLayout(config)
    if database is None and not (is_remote(layout.root) and config.run.metadata.kind == "sqlite"):
        database = MetadataDatabase(config.run.metadata, root=layout.root, file=layout.metadata)
    return Pipeline(
        pipeline_name=config.run.name if database is None else database.pipeline_name(config),
        pipeline_root=layout.artifacts,
        components=_nodes(config, _Here(config, layout, located)),
        enable_cache=True,
        beam_pipeline_args=beam_arguments(config.run.beam_args),
        metadata_connection_config=None if database is None else database.connection(),
    )


def create_remote_pipeline(config: Config, *, custom_jobs: bool) -> Pipeline:
    """Creates the same pipeline for a compiler: no file of the data set, and none of an earlier run, is read.

    Components that read the history of the pipeline take the place of the resolvers, and the keys of
    `schemas.config.runtime_parameters` become parameters of a submission.

    Args:
        config: whole configuration; its paths are those of the containers.
        custom_jobs: whether the pipeline will run on Vertex AI, which has custom jobs.

    Raises:
        ConfigError: no data set, or `run.root` is a path that containers do not share.
    """
    layout = RemoteLayout(config)
    return Pipeline(
        pipeline_name=config.run.name,
        pipeline_root=layout.artifacts,
        components=_nodes(config, _Remote(config, layout, custom_jobs=custom_jobs)),
        enable_cache=True,
        beam_pipeline_args=_remote_beam_args(config),
    )


class _Here:
    """The nodes that differ between runners: in processes that share the run's folder and ML Metadata."""

    def __init__(self, config: Config, layout: RunLayout, located: SpanSplits | None) -> None:
        self._config = config
        self._layout = layout
        self._located = located
        self.push_directory = layout.push_directory
        self.thresholds: RuntimeParameter | None = None
        self.run_root = layout.root

    def example_gen(self) -> CocoExampleGen:
        data: DataConfig = self._config.data
        return CocoExampleGen(
            data_root=data.root,
            splits={name: split.files for name, split in data.splits.items()},
            on_fault=data.on_fault,
            max_pixels=data.max_pixels,
            label_map=data.label_map,
            division=division_of(data),
            span=data.span,
            version=data.version,
            located=self._located,
            run_root=self.run_root,
        )

    def window(self, examples: BaseChannel) -> BaseNode:
        return spans_to_train_on(examples, spans=self._config.data.window)

    def base_model(self, examples: BaseChannel) -> BaseNode:
        return model_to_start_from(examples, config=self._config)

    def trainer(self, examples: BaseChannel, base_model: BaseChannel | None) -> DetectionTrainer:
        return DetectionTrainer(examples=examples, config=self._config, run_root=self.run_root, base_model=base_model)

    def baseline(self, model: BaseChannel) -> BaseNode:
        return previous_blessed_model(model)


class _Remote:
    """The nodes that differ between runners: in containers that share nothing but storage."""

    def __init__(self, config: Config, layout: RemoteLayout, *, custom_jobs: bool) -> None:
        self._config = config
        self._layout = layout
        self._parameters = _parameters(config, layout)
        vertex, image = config.run.vertex, config.run.image
        self._trainer_job = None
        if custom_jobs and vertex.trainer_job.enabled:
            self._trainer_job = json.dumps(
                {"image": image, "vertex": vertex.model_dump(mode="json", exclude=_OF_PIPELINES)}
            )
        self.push_directory = self._parameters["push_directory"]
        self.thresholds = self._parameters["evaluate_thresholds"]
        self.run_root = layout.root

    def example_gen(self) -> RemoteCocoExampleGen:
        root, span = self._parameters["data_root"], self._parameters["data_span"]
        return RemoteCocoExampleGen(self._config.data, data_root=root, data_span=span, run_root=self.run_root)

    def window(self, examples: BaseChannel) -> BaseNode:
        return recorded_window(examples, run_root=self.run_root, spans=self._config.data.window)

    def base_model(self, examples: BaseChannel) -> BaseNode:
        return recorded_base_model(examples, config=self._config, run_root=self.run_root, parameters=self._parameters)

    def trainer(self, examples: BaseChannel, base_model: BaseChannel | None) -> DetectionTrainer:
        return DetectionTrainer(
            examples=examples,
            config=self._config,
            run_root=self.run_root,
            base_model=base_model,
            remote=Remote(self._parameters, self._trainer_job),
        )

    def baseline(self, model: BaseChannel) -> BaseNode:
        return recorded_baseline(model, run_root=self.run_root)


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


def _parameters(config: Config, layout: RemoteLayout) -> Mapping[str, RuntimeParameter]:
    defaults = {name: default_value(config, name) for name in RUNTIME_PARAMETERS}
    defaults["push_directory"] = layout.push_directory
    return {
        name: RuntimeParameter(name=name, ptype=RUNTIME_PARAMETERS[name].kind, default=default)
        for name, default in defaults.items()
    }


def _nodes(config: Config, places: _Here | _Remote) -> list[BaseNode]:
    evaluation = config.evaluate
    example_gen = places.example_gen()
    examples = example_gen.outputs["examples"]
    schema_gen = RecordSchemaGen(run_root=places.run_root)
    statistics_gen = StatisticsGen(examples=examples, schema=schema_gen.outputs["schema"], run_root=places.run_root)
    example_validator = ExampleValidator(
        statistics=statistics_gen.outputs["statistics"],
        schema=schema_gen.outputs["schema"],
        run_root=places.run_root,
    )
    window = [places.window(examples)] if config.data.window > 1 else []
    training_examples = window[0].outputs["examples"] if window else examples
    base = [places.base_model(training_examples)] if config.train.init.from_previous_model else []
    trainer = places.trainer(training_examples, base[0].outputs["model"] if base else None)
    model = trainer.outputs["model"]
    baseline = places.baseline(model)
    evaluator = CocoEvaluator(
        examples=examples,
        model=model,
        baseline_model=baseline.outputs["model"],
        config=evaluation,
        eval_config=None if evaluation.eval_config is None else read_eval_config(evaluation.eval_config),
        thresholds=places.thresholds,
        run_root=places.run_root,
        served_images=config.push.sample_images,
    )
    pusher = SavedModelPusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        model_evaluation=evaluator.outputs["evaluation"],
        push_directory=places.push_directory,
        run_root=places.run_root,
        config=config.push,
        score_thresholds=evaluation.tta.is_empty,  # fused boxes have scores of their own
        registration=Registration.of(config),
    )
    checks = [schema_gen, statistics_gen, example_validator]
    return [example_gen, *checks, *window, *base, trainer, baseline, evaluator, pusher]
