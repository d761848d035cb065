"""One execution of the trainer, its files below a local or remote folder."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detection.storage import files
from detection.storage.atomic import write_json, write_text
from detection.storage.paths import join
from schemas.artifacts import CONFIG_YAML, DATASET_JSON, TRAIN_SPLIT, split_dir
from schemas.config.config_io import to_yaml
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.evaluation_records import CATEGORIES, write_coco_shards
from tests.detection.training.tiny_run import SMALL, tiny_config
from tests.storage_emulator.folders import upload

STEPS = 6
ASSIGNMENTS = (
    *SMALL,
    f"train.steps={STEPS}",
    "train.checkpoint_every=1",
    "train.keep_checkpoints=2",
    "train.validation={every: 3, split: eval}",
    "evaluate.batch_size=2",
    "evaluate.analysis.visualizations=0",
)


def write_inputs(folder: str) -> None:
    """Writes the examples and the configuration of an execution below a local or remote folder."""
    with tempfile.TemporaryDirectory() as temporary:
        for split, write in ((TRAIN_SPLIT, _write_training), ("eval", _write_evaluation)):
            local = Path(temporary, split_dir(split))
            local.mkdir()
            write(local)
        upload(temporary, join(folder, "examples"))
    write_json(join(folder, "examples", DATASET_JSON), {"categories": CATEGORIES})
    write_text(join(folder, "run", CONFIG_YAML), to_yaml(tiny_config(*ASSIGNMENTS)))


def _write_training(folder: Path) -> None:
    write_shards(folder, rectangles(6))


def _write_evaluation(folder: Path) -> None:
    write_coco_shards(folder, 4)


def execute(folder: str, assignments: Sequence[str] = ()) -> None:
    """Runs the trainer as TFX does, on what `write_inputs` wrote."""
    tiny_detector.register()
    from tfx.types import artifact_utils, standard_artifacts

    from components.detection_trainer.executor import Executor
    from components.detection_trainer.identity import trainer_properties

    examples = standard_artifacts.Examples()
    examples.uri = join(folder, "examples")
    examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT, "eval"])
    outputs: dict[str, list[Any]] = {
        "model": [standard_artifacts.Model()],
        "model_run": [standard_artifacts.ModelRun()],
    }
    for key, [artifact] in outputs.items():
        artifact.uri = join(folder, key, "1")
        files.make_folder(artifact.uri)
    config = tiny_config(*ASSIGNMENTS, *assignments)
    properties = {"run_root": join(folder, "run"), **trainer_properties(config, TRAIN_SPLIT)}
    Executor().Do({"examples": [examples]}, outputs, properties)
