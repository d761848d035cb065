"""An imported checkpoint of google/automl in the other commands, on real data."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from detection.inference.mean_losses import MeanLosses
from detection.inference.restore import load_trained
from detection.interop.automl.checkpoint import automl_name
from detection.storage.tfrecord import read_shard
from pipeline_runner import main
from schemas.artifacts import DETECTIONS_JSON, INIT_REPORT_JSON, LABELS_JSON, METRICS_JSON
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.interop.automl.checkpoints import save_named

pytestmark = pytest.mark.extended  # D0 is built and traced several times

ROOT = Path(__file__).parents[3]
SIDE = "model.image_size=128"  # the published input takes a minute per step


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """The two commands of the recipe in the docs."""
    text = (ROOT / "docs/initialization.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "import-checkpoint" in block]
    return [shlex.split(line)[1:] for line in block.splitlines()]


@pytest.fixture(scope="module")
def imported(commands: list[list[str]], oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("imported") / "d0"
    places = {"efficientdet-d0": str(oracle_dir / "efficientdet_d0" / "name_based"), "models/d0": str(output)}
    command = list(commands[0])
    for flag in ("--checkpoint", "--output"):
        place = command.index(flag) + 1
        command[place] = places[command[place]]
    assert main([*command, "--set", SIDE]) == 0
    return output


def test_the_recipe_of_the_docs(commands: list[list[str]], imported: Path, shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "coco2017_ccby"
    places = {
        "run": "train",
        "my_coco": str(data),
        "train.init.checkpoint=models/d0": f"train.init.checkpoint={imported}",
    }
    command = [places.get(word, word) for word in commands[1]]
    assert "train.init.checkpoint=models/d0" in commands[1]
    small = (SIDE, "train.steps=2", "train.batch_size=2", "train.log_every=1", "train.checkpoint_every=2")
    flags = [word for assignment in small for word in ("--set", assignment)]
    assert main([*command, "--output", str(tmp_path / "out"), *flags]) == 0
    report = json.loads((tmp_path / "out" / INIT_REPORT_JSON).read_text())["warm_start"]
    assert len(report["loaded"]) == report["averages"] == 709
    assert (report["loaded_in_part"], report["new_categories"], report["unused_there"]) == ([], [], [])
    assert report["class_outputs_taken_for_coco_ids"] is False


def test_fine_tuning_beats_training_from_scratch(shared_data: Path, tmp_path: Path) -> None:
    """A detector of masked faces learns raccoons in fewer steps than a new one; both take the same images."""
    model = ("model.name=efficientdet-nano", "model.image_size=128")
    keys = (*model, "train.batch_size=8", "train.checkpoint_every=1000", "train.schedule.warmup_steps=20")

    def train(name: str, output: str, *assignments: str) -> Path:
        flags = [word for assignment in (*keys, *assignments) for word in ("--set", assignment)]
        assert main(["train", "--data", str(shared_data / name), "--output", str(tmp_path / output), *flags]) == 0
        return tmp_path / output

    first = train("dali_masks", "first", "train.steps=300")
    raw, ema = (
        {automl_name(one.path): one.numpy() for one in load_trained(first, weights=kind).detector.variables}
        for kind in ("raw", "ema")
    )
    save_named(tmp_path / "automl" / "model.ckpt", raw, ema)
    names = [category["name"] for category in json.loads((first / LABELS_JSON).read_text())]
    labels = {"categories": [{"id": number, "name": name} for number, name in enumerate(names, 1)]}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    command = ["import-checkpoint", "--from", "automl", "--checkpoint", str(tmp_path / "automl")]
    command += ["--model", "efficientdet-nano", "--label-map", str(tmp_path / "labels.json")]
    assert main([*command, "--set", "model.image_size=128", "--output", str(tmp_path / "imported")]) == 0

    scratch = train("raccoon", "scratch", "train.steps=60")
    tuned = train("raccoon", "tuned", "train.steps=60", f"train.init.checkpoint={tmp_path / 'imported'}")
    examples = tmp_path / "examples"
    assert main(["to-examples", "--data", str(shared_data / "raccoon"), "--output", str(examples)]) == 0
    records = [record for shard in sorted((examples / "Split-eval").iterdir()) for record in read_shard(shard)]
    losses = []
    for folder in (tuned, scratch):
        trained = load_trained(folder, weights="raw")
        losses.append(MeanLosses(trained.detector, trained.categories, batch_size=8)(records)["loss"])
    assert losses[0] < losses[1]


def test_evaluate_and_predict(imported: Path, shared_data: Path, tmp_path: Path) -> None:
    """Both give the same detections, of COCO's 80 ids, and evaluate gives pycocotools' metrics of them."""
    data = shared_data / "coco2017_ccby"
    ground_truth = json.loads((data / "instances_val.json").read_text())
    out, detections = tmp_path / "evaluation", tmp_path / "detections.json"
    flags = ["--set", "evaluate.analysis.replicates=0", "--set", "evaluate.losses=false"]
    assert main(["evaluate", "--model", str(imported), "--examples", str(data), "--output", str(out), *flags]) == 0
    evaluated = json.loads((out / DETECTIONS_JSON).read_text())
    expected = pycocotools_eval(ground_truth, evaluated).stats
    np.testing.assert_allclose(json.loads((out / METRICS_JSON).read_text())["stats"], expected, rtol=0, atol=1e-12)
    assert len(evaluated) > 100 * 10
    assert {one["category_id"] for one in evaluated} <= {one["id"] for one in ground_truth["categories"]}
    images = ["--images", str(data / "images"), "--ground-truth", str(data / "instances_val.json")]
    assert main(["predict", "--model", str(imported), *images, "--output", str(detections)]) == 0
    predicted = json.loads(detections.read_text())
    assert len(predicted) == len(evaluated)
    for key in ("image_id", "category_id"):
        assert [one[key] for one in predicted] == [one[key] for one in evaluated]
    for key in ("score", "bbox"):
        np.testing.assert_allclose([one[key] for one in predicted], [one[key] for one in evaluated], atol=1e-3)
