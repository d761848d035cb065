"""`run` from end to end, in this process: TFX takes half a minute to import, once."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.direct.direct_runner import SwitchingDirectRunner

import pipeline_runner
from components.history.queries import History
from components.history.store import config_path
from detection.inference.score_thresholds import read_score_thresholds
from detection.storage import files, paths
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.paths import join
from pipelines.runners.compiled import TARGETS
from pipelines.runs.comparison import find_data, inputs_of, is_same_data, observe
from pipelines.runs.recorded_run import deciding_digest
from schemas.artifacts import (
    ANALYSIS_JSON,
    CONFIG_YAML,
    DETECTIONS_JSON,
    LOGS,
    METRICS_JSON,
    REPORT_HTML,
    VALIDATION_JSON,
)
from schemas.config.config_io import load_config
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import SMALL
from tests.pipelines.runners.compiled_pipeline import CompiledPipeline
from tests.pipelines.small_run import FEW_STEPS, read_summary, run_pipeline
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

OWN = {"run_id": None, "seconds": None}  # of one run


# The network does not matter, but some of its detections have to be right: one object per image, and time to learn.
JITTER = "train.augment={scale_min: 0.5, scale_max: 1.5}"
DETECTOR = (*SMALL, "train.steps=100", "train.schedule.learning_rate=0.02", JITTER)


def run(root: Path, data: Path, *flags: str) -> int:
    return run_pipeline(root, data, *flags, assignments=DETECTOR)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """The digits, labelled as one large object per image, a little smaller in some than in others."""
    folder = tmp_path_factory.mktemp("data") / "data"
    shutil.copytree(digits, folder)
    for path in (folder / "annotations").iterdir():
        tree = json.loads(path.read_text())
        numbers = [image["id"] for image in tree["images"]]
        sides = [60 + number % 5 * 6 for number in numbers]
        tree["annotations"] = [
            {
                "id": number,
                "image_id": number,
                "category_id": 1,
                "bbox": [20, 20, side, side],
                "area": side**2,
                "iscrowd": 0,
            }
            for number, side in zip(numbers, sides, strict=True)
        ]
        path.write_text(json.dumps(tree))
    return folder


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    tiny_detector.register()
    root = tmp_path_factory.mktemp("first") / "run"
    assert run(root, data) == 0
    return root


def test_a_run_leaves_what_the_contract_says(first_run: Path) -> None:
    summary = read_summary(first_run)
    expected = "run_id metrics iou_type slices checkpoint blessed reasons pushed_path seconds"
    assert set(summary) == {*expected.split()}
    metrics = "AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl"
    assert list(summary["metrics"]) == metrics.split()
    assert summary["blessed"] is True
    assert {"CocoExampleGen", "DetectionTrainer", "CocoEvaluator", "SavedModelPusher"} <= set(summary["seconds"])
    assert Path(summary["pushed_path"], "saved_model.pb").is_file()
    assert Path(summary["pushed_path"]).parent == first_run / "serving"
    (model_config,) = first_run.glob(f"artifacts/DetectionTrainer/model/*/{CONFIG_YAML}")
    assert load_config(model_config).run.root == str(first_run)
    assert not list((first_run / "training").iterdir())
    _require_records(first_run, summary)
    (evaluation,) = first_run.glob("artifacts/CocoEvaluator/evaluation/*")
    analysis = json.loads((evaluation / ANALYSIS_JSON).read_text())
    assert analysis["sample"] == {"images": 6, "of": 6, "seed": 0}
    assert analysis["losses"]["loss"] == pytest.approx(sum(analysis["losses"].values()) / 2)
    assert "data:image/webp;base64" in (evaluation / REPORT_HTML).read_text()
    events = [
        event for path in (evaluation / LOGS).iterdir() for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    tags = {value.tag: event.step for event in events for value in event.summary.value}
    assert {tags["DetectionBoxes_Precision/mAP"], tags["Loss/total_loss"], tags["eval_side_by_side_0_0"]} == {100}


def _require_records(root: Path, summary: dict[str, Any]) -> None:
    """The records of a local run are those that a compiled pipeline writes."""
    history = History(str(root))
    [run] = map(history.with_results, history.runs())
    assert (run.id, run.state, run.trigger, run.runner) == (summary["run_id"], "done", "command", "local")
    assert (run.metrics, run.blessed, run.pushed_path) == (summary["metrics"], True, summary["pushed_path"])
    assert run.config is not None
    assert load_config(config_path(str(root), run.config)) == load_config(root / CONFIG_YAML)
    [examples], [model], [push] = history.examples.values(), history.models.values(), history.pushes.values()
    assert examples == run.data
    config = load_config(root / CONFIG_YAML)
    inputs = inputs_of(run)
    assert inputs is not None
    assert is_same_data(inputs.data, observe(config, find_data(config))[0].data)
    assert inputs.deciding == deciding_digest(config)
    assert (examples.span, examples.version) == (0, None)
    assert (model.uri, model.base_model, model.examples) == (run.model, None, [examples.examples])
    trained = Path(config_path(str(root), str(model.config))).read_text()
    assert trained == Path(model.uri, CONFIG_YAML).read_text()
    assert history.blessed == {model.uri}
    assert (push.destination, push.model) == (run.pushed_path, model.uri)
    assert push.version == Path(str(run.pushed_path)).name


def test_the_same_run_again_reuses_everything(first_run: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = read_summary(first_run)
    pushed = sorted((first_run / "serving").iterdir())
    assert run(first_run, data) == 0
    assert read_summary(first_run) | OWN == before | OWN
    assert sorted((first_run / "serving").iterdir()) == pushed
    shown = capfd.readouterr().err
    for node in ("CocoExampleGen", "StatisticsGen", "DetectionTrainer", "CocoEvaluator", "SavedModelPusher"):
        assert f"{node} reused" in shown
    history = History(str(first_run))
    last, first = map(history.with_results, history.runs())
    assert inputs_of(last) == inputs_of(first)
    assert run(first_run, data, "--if-changed") == 0
    told = f"nothing to do: neither the data nor the configuration changed since run {last.id}\n"
    assert capfd.readouterr().out == told
    assert read_summary(first_run)["run_id"] == last.id
    assert [run.state for run in history.runs()] == ["skipped", "done", "done"]


def test_a_pushed_model_that_was_removed_is_pushed_again(
    first_run: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = read_summary(first_run)
    shutil.rmtree(first_run / "serving")
    assert run(first_run, data) == 0
    summary = read_summary(first_run)
    assert summary | OWN | {"pushed_path": None} == before | OWN | {"pushed_path": None}
    assert Path(summary["pushed_path"], "saved_model.pb").is_file()
    assert list((first_run / "serving").iterdir()) == [Path(summary["pushed_path"])]
    shown = capfd.readouterr().err
    missing = Path(before["pushed_path"], "saved_model.pb")
    assert f"SavedModelPusher: {missing} is missing, so this result is not reused" in shown
    assert "CocoEvaluator reused" in shown


@pytest.mark.extended  # test_repair.py shows the same of other outputs with stubs
def test_removed_examples_are_made_again_with_all_that_depends_on_them(
    first_run: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = read_summary(first_run)
    shards = "artifacts/CocoExampleGen/examples/*/Split-train/*"
    for shard in first_run.glob(shards):
        shard.unlink()
    assert run(first_run, data) == 0
    shown = capfd.readouterr().err
    others = {"previous_blessed_model", "RecordSchemaGen"}
    assert {node for node in before["seconds"] if f"{node} done" in shown} - others == set(before["seconds"]) - others
    summary = read_summary(first_run)
    assert (summary["metrics"], summary["blessed"]) == (before["metrics"], True)
    assert Path(summary["pushed_path"], "saved_model.pb").is_file()
    assert list(first_run.glob(shards))
    assert "resuming from this finished training" in shown


def test_prediction_with_the_pushed_model_gives_the_detections_and_metrics(
    first_run: Path, data: Path, tmp_path: Path
) -> None:
    summary, [truth, found, metrics] = read_summary(first_run), _paths(data, tmp_path)
    model = ["--model", summary["pushed_path"], "--images", str(data / "val")]
    assert pipeline_runner.main(["predict", *model, "--ground-truth", truth, "--output", found]) == 0
    evaluated = min(first_run.glob(f"artifacts/CocoEvaluator/evaluation/*/{DETECTIONS_JSON}"))
    assert read_json(found) == read_json(evaluated)
    given = ["--ground-truth", truth, "--detections", found]
    assert pipeline_runner.main(["evaluate", *given, "--output", metrics]) == 0
    measured = list(summary["metrics"].values())
    assert read_json(metrics)["stats"] == pytest.approx(measured, abs=1e-12)
    assert measured == pytest.approx(pycocotools_eval(read_json(truth), read_json(found), "bbox").stats, abs=1e-9)
    assert 0.1 < measured[0] < 0.9


def _paths(data: Path, folder: Path) -> list[str]:
    paths = (data / "annotations/instances_val.json", folder / "detections.json", folder / "metrics.json")
    return [str(path) for path in paths]


def test_beam_runs_the_same_pipeline(
    first_run: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the examples and the model of the first run; test_mask_rcnn.py has runs on Beam from the start."""

    def refuse(*_: Any) -> None:
        raise AssertionError("Beam chose the runner, which may be Prism")

    monkeypatch.setattr(StandardOptions, "DEFAULT_RUNNER", "DirectRunner")
    monkeypatch.setattr(SwitchingDirectRunner, "run_pipeline", refuse)
    before = read_summary(first_run)
    for pattern in ("RecordSchemaGen/schema/*/schema.pbtxt", f"CocoEvaluator/evaluation/*/{METRICS_JSON}"):
        for path in first_run.glob(f"artifacts/{pattern}"):
            path.unlink()
    assert run(first_run, data, "--runner", "beam") == 0
    assert read_summary(first_run)["metrics"] == before["metrics"]
    shown = capfd.readouterr().err
    for node in ("RecordSchemaGen", "StatisticsGen", "ExampleValidator", "CocoEvaluator", "SavedModelPusher"):
        assert f"{node} done" in shown
    for node in ("CocoExampleGen", "DetectionTrainer"):
        assert f"{node} reused" in shown


@pytest.mark.parametrize("target", ["vertex", pytest.param("kubeflow", marks=pytest.mark.extended)])
def test_a_compiled_pipeline_gives_the_same_metrics(
    *, target: str, installed_programs: Path, gcs: Bucket, tmp_path: Path, first_run: Path, data: Path
) -> None:
    """Executed with the wheel alone, on gs:// alone, and with other parameters than it was compiled with.

    The tiny detector is in no wheel: each Python of the tasks registers it at its start.
    """
    validated = 4 if target == "kubeflow" else 0  # in a process that imports TensorFlow
    start = tmp_path / "start" / "sitecustomize.py"
    start.parent.mkdir()
    start.write_text(f"{Path(tiny_detector.__file__).read_text()}\n\nregister()\n")
    compiled = tmp_path / f"pipeline{TARGETS[target].suffix}"
    root = f"{gcs.path}/runs/compiled"
    settings = (
        *FEW_STEPS,
        *DETECTOR,
        f"run.root={root}",
        "run.image=image:1",
        "data.root=gs://bucket/data",
        "train.steps=500",
        "train.batch_size=2",
        "evaluate.thresholds.absolute={AP: 0.99}",
        "evaluate.losses=false",
        f"push.validation.images={validated}",
    )
    assignments = [part for key in settings for part in ("--set", key)]
    assert pipeline_runner.main(["compile", "--runner", target, "--output", str(compiled), *assignments]) == 0
    pipeline = CompiledPipeline(
        compiled,
        programs=installed_programs,
        root=join(root, "artifacts"),
        scratch=tmp_path / "scratch",
        environment={**gcs.emulator.environment(), "PYTHONPATH": str(start.parent)},
        runs_drivers=target == "vertex",
        forks=target == "vertex",  # the other starts a Python for each task
    )
    outputs = pipeline.run(
        data_root=upload(data, f"{gcs.path}/data"),
        train_steps=100,
        train_batch_size=4,
        evaluate_thresholds="{absolute: {AP: 0.0}}",
        push_directory=f"{gcs.path}/pushed",
    )
    evaluation = outputs["CocoEvaluator"]["evaluation"]["uri"]
    assert read_json(join(evaluation, METRICS_JSON))["metrics"] == read_summary(first_run)["metrics"]
    pushed = outputs["SavedModelPusher"]["pushed_model"]["metadata"]["pushed_destination"]
    assert paths.parent(pushed) == f"{gcs.path}/pushed"
    assert files.is_file(join(pushed, "saved_model.pb"))
    if validated:
        validation = read_json(join(outputs["SavedModelPusher"]["pushed_model"]["uri"], VALIDATION_JSON))
        assert (validation["images"], validation["detections"]) == (4, 4)
    assert read_score_thresholds(pushed).images == 6
    model = local_copy(outputs["DetectionTrainer"]["model"]["uri"])
    assert load_config(model / CONFIG_YAML).train.steps == 100
    for component in ("CocoExampleGen", "DetectionTrainer", "CocoEvaluator", "SavedModelPusher"):
        (name,) = files.list_folder(join(root, "history", component))
        assert read_json(join(root, "history", component, name))["state"] == "done"
    history = History(root)
    [executed] = map(history.with_results, history.runs())
    assert (executed.state, executed.metrics, executed.pushed_path) == (
        "done",
        read_summary(first_run)["metrics"],
        pushed,
    )
