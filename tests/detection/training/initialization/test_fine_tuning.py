"""Fine-tuning a detector of some digits to others, beside the same training from random weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.to_examples import write_examples
from detection.datasets.demo_data import make_demo_data
from detection.training.train import train
from detection.training.validation.history import read_history
from schemas.artifacts import CHECKPOINTS, DATASET_JSON, HISTORY_JSON, VALIDATION, split_dir
from schemas.config.config_io import load_config

pytestmark = pytest.mark.extended  # two minutes

EVERY, STEPS = 40, 160


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data sets of the digits 0 to 4 and 5 to 9, with other images."""
    folders = {}
    for seed, (name, digits) in enumerate({"low": range(5), "high": range(5, 10)}.items()):
        folder = folders[name] = tmp_path_factory.mktemp(name)
        make_demo_data(folder / "data", train_images=200, eval_images=40, seed=seed)
        for path in (folder / "data").glob("*.json"):
            tree = json.loads(path.read_text())
            if "annotations" not in tree:
                continue
            ids = {one["id"] for one in tree["categories"] if one["name"] in map(str, digits)}
            assert len(ids) == 5
            tree["categories"] = [one for one in tree["categories"] if one["id"] in ids]
            tree["annotations"] = [one for one in tree["annotations"] if one["category_id"] in ids]
            path.write_text(json.dumps(tree))
    return folders


def _aps(folder: Path, output: Path, *assignments: str) -> list[float]:
    """Trains, and returns AP on the evaluation split after every EVERY steps."""
    keys = ("model.name=efficientdet-nano", "model.image_size=96", f"train.steps={STEPS}")
    validation = f"train.validation={{every: {EVERY}, split: eval, export: final}}"
    config = load_config(None, [f"data.root={folder / 'data'}", *keys, validation, *assignments])
    examples = folder / "examples"
    if not examples.is_dir():
        write_examples(config, str(examples))
    shards = {name: sorted(map(str, (examples / split_dir(name)).iterdir())) for name in ("train", "eval")}
    categories: list[dict[str, Any]] = json.loads((examples / DATASET_JSON).read_text())["categories"]
    train(config, shards=shards["train"], validation_shards=shards["eval"], categories=categories, output=output)
    return [entry.metrics["AP"] for entry in read_history(output / VALIDATION / HISTORY_JSON)]


def test_fine_tuning_starts_above_random_weights_and_never_falls_below(digits: dict[str, Path], tmp_path: Path) -> None:
    """With the default rate, frozen layers and augmentation: they do not depend on the kind of weights."""
    _aps(digits["low"], tmp_path / "low", "model.weights=none", "train.steps=400", "train.validation.every=400")
    random = _aps(digits["high"], tmp_path / "random", "model.weights=none")
    tuned = _aps(digits["high"], tmp_path / "tuned", f"train.init.checkpoint={tmp_path / 'low' / CHECKPOINTS}")
    assert all(ours > theirs for ours, theirs in zip(tuned, random, strict=True))
    assert len(tuned) == STEPS // EVERY
