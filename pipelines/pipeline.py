"""Defines the pipeline, once for every runner."""

from pathlib import Path

from tfx.components import ExampleValidator, StatisticsGen
from tfx.components.schema_gen.import_schema_gen.component import ImportSchemaGen
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration import metadata
from tfx.orchestration.pipeline import Pipeline

import schemas
from components.coco_evaluator.component import CocoEvaluator
from components.coco_evaluator.tfma.eval_config import read_eval_config
from components.coco_example_gen.component import CocoExampleGen
from components.coco_example_gen.spans import SpanSplits
from components.detection_trainer.component import DetectionTrainer
from components.saved_model_pusher.component import SavedModelPusher
from detection.storage.paths import is_remote
from pipelines.dataset_files import division_of
from pipelines.folders import RunLayout
from pipelines.resolvers.base_model import model_to_start_from
from pipelines.resolvers.baseline import previous_blessed_model
from pipelines.resolvers.span_window import spans_to_train_on
from schemas.config.config import Config

_SCHEMA_FILE = str(Path(schemas.__file__).parent / "records.pbtxt")


def create_pipeline(config: Config, located: SpanSplits | None = None, *, database: Path | None = None) -> Pipeline:
    """Creates the pipeline from a COCO data set to a pushed detector.

    Data flows example_gen -> (statistics, validation) and trainer -> evaluator (with
    the last blessed model as baseline) -> pusher.  With `data.window`, a resolver between
    example_gen and trainer adds the examples of earlier spans; all other nodes use the
    newest.  With `train.init.from_previous_model`, a resolver passes the trainer its base
    model.

    Args:
        config: whole configuration; `data.root` or `data.splits` is set.
        located: files of the data set if the caller has located them; None: locates them.
        database: local metadata database; None: that of a local `run.root`, and of a remote one none.

    Returns:
        A pipeline for LocalDagRunner or BeamDagRunner, with caching.

    Raises:
        DataError: no recognised data set, or no weights at `train.init.checkpoint`.
    """
    layout = RunLayout(config)
    if database is None and not is_remote(layout.root):
        database = Path(layout.metadata)
    return Pipeline(
        pipeline_name=config.run.name,
        pipeline_root=layout.artifacts,
        components=_nodes(config, layout, located),
        enable_cache=True,
        beam_pipeline_args=list(config.run.beam_args),
        metadata_connection_config=(
            None if database is None else metadata.sqlite_metadata_connection_config(str(database))
        ),
    )


def _nodes(config: Config, layout: RunLayout, located: SpanSplits | None) -> list[BaseNode]:
    data, evaluation = config.data, config.evaluate
    example_gen = CocoExampleGen(
        data_root=data.root,
        splits={name: split.files for name, split in data.splits.items()},
        on_fault=data.on_fault,
        max_pixels=data.max_pixels,
        label_map=data.label_map,
        division=division_of(data),
        span=data.span,
        version=data.version,
        located=located,
    )
    examples = example_gen.outputs["examples"]
    schema_gen = ImportSchemaGen(schema_file=_SCHEMA_FILE)
    statistics_gen = StatisticsGen(examples=examples, schema=schema_gen.outputs["schema"])
    example_validator = ExampleValidator(
        statistics=statistics_gen.outputs["statistics"], schema=schema_gen.outputs["schema"]
    )
    window = [spans_to_train_on(examples, spans=data.window)] if data.window > 1 else []
    training_examples = window[0].outputs["examples"] if window else examples
    base = [model_to_start_from(training_examples, config=config)] if config.train.init.from_previous_model else []
    trainer = DetectionTrainer(
        examples=training_examples,
        config=config,
        run_root=layout.root,
        base_model=base[0].outputs["model"] if base else None,
    )
    model = trainer.outputs["model"]
    baseline = previous_blessed_model(model)
    evaluator = CocoEvaluator(
        examples=examples,
        model=model,
        baseline_model=baseline.outputs["model"],
        config=evaluation,
        eval_config=None if evaluation.eval_config is None else read_eval_config(evaluation.eval_config),
    )
    pusher = SavedModelPusher(
        model=model, model_blessing=evaluator.outputs["blessing"], push_directory=layout.push_directory
    )
    checks = [schema_gen, statistics_gen, example_validator]
    return [example_gen, *checks, *window, *base, trainer, baseline, evaluator, pusher]
