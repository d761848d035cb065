"""`evaluate` of a model, as a user calls it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline_runner
from components.coco_example_gen import to_examples
from schemas.artifacts import (
    ANALYSIS_JSON,
    BLESSING_JSON,
    DETECTIONS_JSON,
    EXTRA_FILES,
    LABELS_JSON,
    METRICS_JSON,
    REPORT_HTML,
)
from tests.components.coco_evaluator.generated_records import generate_ground_truth
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.fake_detector import save_fake_detector

pytestmark = pytest.mark.slow  # importing TFMA takes most of it


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [save_fake_detector(tmp_path_factory.mktemp("model"), shift=shift) for shift in (0, 1)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> Path:
    """A COCO data set."""
    root = tmp_path_factory.mktemp("data")
    ground_truth = generate_ground_truth(root / "val", models, seed=1)
    (root / "instances_val.json").write_text(json.dumps(ground_truth))
    return root


WHOLE = ["--model", "MODEL", "--examples", "DATA", "--output", "OUT"]


def evaluate(*arguments: str | Path) -> int:
    return pipeline_runner.main(["evaluate", *map(str, arguments)])


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_of_a_data_set_and_of_its_examples(
    tmp_path: Path, models: list[Path], data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both give the same files, and pycocotools' metrics."""
    flags = ["--set", "evaluate.analysis.replicates=10", "--set", "evaluate.thresholds.improvement={AP: 0.001}"]
    pair = ("--model", models[0], "--baseline", models[1])
    assert evaluate(*pair, "--examples", data, "--output", tmp_path / "a", *flags) == 0
    printed = capfd.readouterr()
    metrics = read(tmp_path / "a", METRICS_JSON)
    ground_truth = read(data, "instances_val.json")
    expected = pycocotools_eval(ground_truth, read(tmp_path / "a", DETECTIONS_JSON))
    np.testing.assert_allclose(metrics["stats"], expected.stats, rtol=0, atol=1e-12)
    assert f"{expected.stats[0]:.4f}" in printed.out
    assert read(tmp_path / "a", BLESSING_JSON)["reasons"][1] in printed.out
    assert printed.out.splitlines()[-1] == str(tmp_path / "a" / REPORT_HTML)
    assert not list((tmp_path / "a").glob(".*"))

    assert pipeline_runner.main(["to-examples", "--data", str(data), "--output", str(tmp_path / "examples")]) == 0
    out = tmp_path / "b"
    assert evaluate(*pair, "--examples", tmp_path / "examples", "--split", "eval", "--output", out, *flags) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "a").iterdir())
    for name in (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON):
        assert (out / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


def test_with_views(tmp_path: Path, models: list[Path], data: Path) -> None:
    """The detections are those of `predict` with the same views, and the metrics pycocotools' of them."""
    flags = ["--tta", "flip,0.8", "--set", "evaluate.analysis.replicates=0"]
    assert evaluate("--model", models[0], "--examples", data, "--output", tmp_path / "a", *flags) == 0
    out = tmp_path / "predicted.json"
    given = ["--model", models[0], "--images", data, "--ground-truth", data / "instances_val.json", "--output", out]
    assert pipeline_runner.main(["predict", *map(str, given), "--tta", "flip,0.8"]) == 0
    detections = read(tmp_path / "a", DETECTIONS_JSON)
    assert sorted(detections, key=str) == sorted(read(tmp_path, out.name), key=str)
    expected = pycocotools_eval(read(data, "instances_val.json"), detections)
    np.testing.assert_allclose(read(tmp_path / "a", METRICS_JSON)["stats"], expected.stats, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ([], 2, "evaluate needs --ground-truth and --detections, or --model and --examples."),
        (["--model", "m"], 2, "needs --model, --examples and --output; --examples is missing"),
        (["--examples", "e"], 2, "needs --model, --examples and --output; --model is missing"),
        (["--model", "m", "--examples", "e"], 2, "--output is missing"),
        (["--model", "m", "--examples", "e", "--no-cats", "--detections", "d"], 2, "detections, use_cats: for det"),
        ([*WHOLE[:4], "--output", "DATA"], 1, "cannot write: not a new or empty folder"),
        (["--model", "MODEL", "--examples", "none", "--output", "OUT"], 1, "none: no such file or folder"),
        ([*WHOLE, "--tta", "left"], 2, "--tta left: give `flip`, scales from 0.5 to 2"),
        (["--ground-truth", "g", "--detections", "d", "--tta", "flip"], 2, "--tta is for a model"),
        ([*WHOLE, "--model", "m"], 1, "m: no such file or folder"),
        ([*WHOLE, "--baseline", "m"], 1, "m: no such file or folder"),
        ([*WHOLE, "--split", "test"], 1, "no annotations of the split 'test'"),
        ([*WHOLE, "--set", "evaluate.eval_config=none.json"], 2, "none.json: cannot read the EvalConfig"),
        ([*WHOLE, "--set", "evaluate.eval_config=KEYPOINTS"], 1, "no output detection_keypoints, which the IoU type"),
    ],
)
def test_errors_leave_nothing(
    tmp_path: Path,
    data: Path,
    models: list[Path],
    capfd: pytest.CaptureFixture[str],
    *,
    flags: list[str],
    code: int,
    message: str,
) -> None:
    (tmp_path / "keypoints").write_text(
        'metrics_specs { metrics { class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics" '
        'config: \'{"iou_type": "keypoints"}\' } }'
    )
    places = {
        "DATA": str(data),
        "MODEL": str(models[0]),
        "OUT": str(tmp_path / "out"),
        "KEYPOINTS": str(tmp_path / "keypoints"),
    }
    replaced = [re.sub("|".join(places), lambda match: places[match[0]], flag) for flag in flags]
    assert evaluate(*replaced) == code
    assert message in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["keypoints"]


@pytest.mark.parametrize("converted", [False, True])
def test_categories_are_compared_before_the_data_is_converted(
    tmp_path: Path,
    data: Path,
    models: list[Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    converted: bool,
) -> None:
    """An `Examples` artifact tells its categories, too."""
    known = read(data, "instances_val.json")["categories"]
    model = Path(shutil.copytree(models[0], tmp_path / "model"))
    (model / EXTRA_FILES).mkdir()
    (model / EXTRA_FILES / LABELS_JSON).write_text(json.dumps([*known[1:], known[0] | {"name": "sofa\n"}]))
    place = data
    if converted:
        place = tmp_path / "examples"
        assert pipeline_runner.main(["to-examples", "--data", str(data), "--output", str(place)]) == 0
    else:
        monkeypatch.setattr(to_examples, "convert", lambda *_args, **_named: pytest.fail("converted"))
    assert evaluate("--model", model, "--examples", place, "--output", tmp_path / "out") == 1
    message = capfd.readouterr().err
    assert f"{place}: categories of the model {model} are missing: {known[0]['id']} 'sofa\\n'. " in message
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_load_is_told_before_the_data_is_converted(
    tmp_path: Path, data: Path, models: list[Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(models[0], tmp_path / "model"))
    (model / "saved_model.pb").write_bytes(b"\xff" * 40)
    monkeypatch.setattr(to_examples, "convert", lambda *_args, **_named: pytest.fail("converted"))
    assert evaluate("--model", models[0], "--baseline", model, "--examples", data, "--output", tmp_path / "out") == 1
    assert f"{model}: the SavedModel does not load" in capfd.readouterr().err
