"""Example gen, the real trainer component with a training that only writes its files, and the stub evaluator."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.coco_example_gen.component import CocoExampleGen
from components.detection_trainer.component import DetectionTrainer
from components.detection_trainer.identity import REMOTE_PARAMETERS
from components.selection import model_to_start_from, previous_blessed_model, training_window
from detection.storage.atomic import write_text
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, LABELS_JSON, LOGS, SAVED_MODEL
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.config.runtime_parameters import default_value
from tests.pipelines.baseline_stubs import StubEvaluator


def train(
    config: Config, *, categories: Sequence[Mapping[str, Any]], output: Path, base_model: Path | None, **_records: Any
) -> None:
    for name in (CHECKPOINTS, LOGS):
        (output / name).mkdir(parents=True)
    write_text(output / CONFIG_YAML, to_yaml(config))
    write_text(output / LABELS_JSON, json.dumps(categories))
    write_text(output / SAVED_MODEL / "saved_model.pb", str(base_model))


def make_nodes(root: str, config: Config, *, blessed: int) -> list[Any]:
    example_gen = CocoExampleGen(config.data, run_root=root)
    examples, spans = example_gen.outputs["examples"], config.data.window
    window = [training_window(examples, run_root=root, spans=spans)] if spans > 1 else []
    if window:
        examples = window[0].outputs["examples"]
    parameters = {name: default_value(config, name) for name in REMOTE_PARAMETERS}
    base = model_to_start_from(examples, config=config, run_root=root, parameters=parameters)
    trainer = DetectionTrainer(
        examples=examples, config=config, run_root=root, base_model=base.outputs["model"], parameters=parameters
    )
    model = trainer.outputs["model"]
    baseline = previous_blessed_model(model, run_root=root)
    evaluator = StubEvaluator(model=model, baseline_model=baseline.outputs["model"], blessed=blessed, run_root=root)
    return [example_gen, *window, base, trainer, baseline, evaluator]
