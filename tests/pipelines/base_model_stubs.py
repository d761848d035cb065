"""Example gen, the real trainer component with a training that only writes its files, and the stub evaluator."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx.orchestration import metadata, pipeline

from components.coco_example_gen.component import CocoExampleGen
from components.detection_trainer.component import DetectionTrainer
from detection.storage.atomic import write_text
from pipelines.resolvers.base_model import model_to_start_from
from pipelines.resolvers.baseline import previous_blessed_model
from pipelines.resolvers.span_window import spans_to_train_on
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, LABELS_JSON, LOGS, SAVED_MODEL
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from tests.pipelines.baseline_stubs import StubEvaluator


def train(
    config: Config, *, categories: Sequence[Mapping[str, Any]], output: Path, base_model: Path | None, **_records: Any
) -> None:
    for name in (CHECKPOINTS, LOGS):
        (output / name).mkdir(parents=True)
    write_text(output / CONFIG_YAML, to_yaml(config))
    write_text(output / LABELS_JSON, json.dumps(categories))
    write_text(output / SAVED_MODEL / "saved_model.pb", str(base_model))


def create_pipeline(root: Path, config: Config, *, blessed: int) -> pipeline.Pipeline:
    write_text(root / CONFIG_YAML, to_yaml(config))
    example_gen = CocoExampleGen(data_root=config.data.root)
    examples = example_gen.outputs["examples"]
    window = [spans_to_train_on(examples, spans=config.data.window)] if config.data.window > 1 else []
    if window:
        examples = window[0].outputs["examples"]
    base = model_to_start_from(examples, config=config)
    trainer = DetectionTrainer(examples=examples, config=config, run_root=str(root), base_model=base.outputs["model"])
    model = trainer.outputs["model"]
    baseline = previous_blessed_model(model)
    evaluator = StubEvaluator(model=model, baseline_model=baseline.outputs["model"], blessed=blessed)
    return pipeline.Pipeline(
        pipeline_name="base",
        pipeline_root=str(root / "artifacts"),
        components=[example_gen, *window, base, trainer, baseline, evaluator],
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(str(root / "metadata.sqlite")),
    )
