"""The evaluator as TFX runs it, on generated data and a model with known answers."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from components.beam import progress
from components.coco_evaluator.beam import evaluate as beam_evaluate
from detection import coco
from detection.analysis.instances import sample_ids
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.predict import predict
from detection.inference.serving_sample import read_serving_sample
from detection.storage.atomic import write_json
from detection.types import EncodedImage
from schemas.artifacts import (
    ANALYSIS_JSON,
    BLESSING_JSON,
    DATASET_JSON,
    DETECTIONS_JSON,
    EXTRA_FILES,
    LABELS_JSON,
    LOGS,
    METRICS_JSON,
    REPORT_HTML,
    SERVING_SAMPLE,
)
from schemas.config.evaluate import EvaluateConfig
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.errors import CocoflowError, ConfigError, DataError, find_user_error
from tests.components.coco_evaluator.generated_records import (
    artifact,
    generate_ground_truth,
    save_models,
    served,
    write_records,
    write_shards,
)
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.fake_detector import CATEGORY_IDS, save_fake_detector

pytestmark = pytest.mark.slow  # importing TFX takes most of it

IMAGES = 13
VOC = "pascal_voc_AP50"  # a metric besides COCO's


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two `Model` artifacts' folders."""
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def ground_truth(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> dict[str, Any]:
    """A data set whose objects lie near some of the first model's detections; `folder` has the images."""
    folder = tmp_path_factory.mktemp("images")
    return {**generate_ground_truth(folder, served(models), seed=3, found=(0.3, 0.0)), "folder": folder}


def write_examples(root: Path, ground_truth: dict[str, Any], **options: Any) -> Path:
    return write_records(root, ground_truth, ground_truth["folder"], **options)


def evaluate(
    out: Path, examples: Path, model: Path, baseline: Any = None, *, model_id: int = 1, **properties: Any
) -> tuple[Path, Any]:
    """Runs the executor; returns the evaluation's folder and the blessing."""
    from components.coco_evaluator.executor import Executor

    for name in ("evaluation", "blessing"):
        (out / name).mkdir(parents=True)
    blessing = artifact("ModelBlessing", out / "blessing", 8)
    inputs = {
        "examples": [artifact("Examples", examples, 5, split_names='["train", "eval"]')],
        "model": [artifact("Model", model, model_id)],
    }
    if baseline:
        inputs["baseline_model"] = [baseline]
    outputs = {"evaluation": [artifact("ModelEvaluation", out / "evaluation", 7)], "blessing": [blessing]}
    defaults = {"batch_size": 4, "thresholds": {"absolute": {}}, "analysis": {"replicates": 20}}
    more: dict[str, Any] = {key: properties.pop(key) for key in ("eval_config", "served_images") if key in properties}
    config = EvaluateConfig(**(defaults | properties)).model_dump_json()
    Executor().Do(inputs, outputs, {"config": config, **more})
    return out / "evaluation", blessing


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, ground_truth: dict[str, Any]) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples"), ground_truth)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, examples: Path, models: list[Path]) -> tuple[Path, Any]:
    """The first model's evaluation, without a baseline, and its blessing."""
    return evaluate(tmp_path_factory.mktemp("plain"), examples, models[0])


@pytest.fixture(scope="module")
def better(tmp_path_factory: pytest.TempPathFactory, examples: Path, models: list[Path]) -> tuple[Path, Any]:
    """The first model's evaluation against the second: objects lie where the first one finds them."""
    thresholds = {"absolute": {VOC: 0.01}, "improvement": {"AP": 0.01}, "significant": ["AP"], "not_worse": [VOC]}
    options: dict[str, Any] = {"metrics": [VOC], "thresholds": thresholds, "served_images": 5}
    baseline = artifact("Model", models[1], 2)
    return evaluate(tmp_path_factory.mktemp("better"), examples, models[0], baseline, model_id=3, **options)


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory, examples: Path, models: list[Path]) -> tuple[Path, Any]:
    """The second model's evaluation against the first, with the default thresholds."""
    baseline = artifact("Model", models[0], 3)
    return evaluate(tmp_path_factory.mktemp("worse"), examples, models[1], baseline, model_id=4, thresholds={})


def test_equals_pycocotools_and_can_be_read(
    plain: tuple[Path, Any], models: list[Path], ground_truth: dict[str, Any]
) -> None:
    folder, blessing = plain
    detections = read(folder, DETECTIONS_JSON)
    content = read(folder, METRICS_JSON)
    reference = pycocotools_eval(
        {key: ground_truth[key] for key in ("images", "annotations", "categories")}, detections
    )
    assert 0.1 < content["metrics"]["AP"] < 0.99
    np.testing.assert_allclose(content["stats"], reference.stats, rtol=0, atol=1e-12)
    ids = [detection["image_id"] for detection in detections]
    assert ids == sorted(ids)
    assert len(set(ids)) > 5
    _check_tfma(folder, content)
    _check_blessing(blessing, models[0])
    assert read(folder, BLESSING_JSON)["baseline"] is None
    assert sorted(path.name for path in folder.iterdir()) == [
        ANALYSIS_JSON,
        BLESSING_JSON,
        DETECTIONS_JSON,
        "eval_config.json",
        LOGS,
        "metrics-00000-of-00001.tfrecord",
        METRICS_JSON,
        REPORT_HTML,
        "validations.tfrecord",
    ]


def test_an_emptied_shard_is_refused(tmp_path: Path, models: list[Path], ground_truth: dict[str, Any]) -> None:
    written = write_examples(tmp_path / "examples", ground_truth)
    (written / "Split-eval/1-part").write_bytes(b"")
    with pytest.raises(DataError, match=f"Split-eval: 7 images, but dataset.json has {IMAGES}"):
        evaluate(tmp_path / "out", written, models[0])


def test_predict_finds_the_same(
    tmp_path: Path, plain: tuple[Path, Any], models: list[Path], ground_truth: dict[str, Any]
) -> None:
    """On the image files of the split, bit for bit."""
    (tmp_path / "gt.json").write_text(json.dumps({"images": ground_truth["images"]}))
    out = tmp_path / "detections.json"
    model, _ = served(models)
    predict(
        model=model, images=[ground_truth["folder"]], ground_truth=tmp_path / "gt.json", output=out, console=Console()
    )
    assert out.read_bytes() == (plain[0] / DETECTIONS_JSON).read_bytes()


def _check_tfma(folder: Path, content: dict[str, Any]) -> None:
    import tensorflow_model_analysis as tfma

    def in_tfma(metrics: dict[str, float]) -> dict[str, Any]:
        return {name: {"doubleValue": "NaN" if value == -1 else value} for name, value in metrics.items()}

    result = tfma.load_eval_result(str(folder))
    validation = tfma.load_validation_result(str(folder))
    assert (validation.validation_ok, validation.missing_thresholds) == (True, True)
    values = result.get_metrics_for_slice()
    del values["example_count"]
    assert values == in_tfma(content["metrics"])
    for category in content["per_category"]:
        metrics = {name: category[name] for name in ("AP", "AP50")}
        assert result.get_metrics_for_slice(class_id=category["id"]) == in_tfma(metrics)


def _check_blessing(blessing: Any, model: Path) -> None:
    from tfx.components.util import model_utils

    assert model_utils.is_model_blessed(blessing)
    assert blessing.get_string_custom_property("current_model") == str(model)
    assert blessing.get_int_custom_property("current_model_id") == 1
    assert [path.name for path in Path(blessing.uri).iterdir()] == ["BLESSED"]


def test_batches_and_shards_do_not_matter(
    tmp_path: Path,
    plain: tuple[Path, Any],
    models: list[Path],
    ground_truth: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "cocoflow.evaluator")
    first, _ = plain
    other_examples = write_examples(tmp_path / "examples", ground_truth, shards=5)
    few = {"replicates": 0, "visualizations": 2}
    second, _ = evaluate(tmp_path / "2", other_examples, models[0], batch_size=3, analysis=few)
    for name in (METRICS_JSON, DETECTIONS_JSON):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert _pictures(first) == [f"eval_side_by_side_{number}_0" for number in range(10)]
    assert _pictures(second) == ["eval_side_by_side_0_0", "eval_side_by_side_1_0"]
    assert f"candidate: 13 images, {len(read(first, DETECTIONS_JSON))} detections, AP " in caplog.text


def _pictures(evaluation: Path) -> list[str]:
    """Tags of TensorBoard's pictures."""
    (path,) = (evaluation / LOGS).iterdir()
    tags = [value.tag for event in tf.compat.v1.train.summary_iterator(str(path)) for value in event.summary.value]
    return [tag for tag in tags if tag.startswith("eval_side_by_side")]


def test_compared_with_the_last_blessed_model(
    better: tuple[Path, Any], worse: tuple[Path, Any], models: list[Path]
) -> None:
    from tfx.dsl.input_resolution.strategies import latest_blessed_model_strategy

    folder, blessed = better
    verdict, gain = read(folder, BLESSING_JSON), read(folder, ANALYSIS_JSON)["differences"]["AP"]
    assert verdict["blessed"] is True
    assert verdict["baseline"]["AP"] < read(folder, METRICS_JSON)["metrics"]["AP"]
    assert gain["low"] > 0.01
    change = f"AP: a change of {gain['value']:+.4f} ({gain['low']:+.4f} to {gain['high']:+.4f}) against"
    assert change in " ".join(verdict["reasons"])
    assert blessed.get_string_custom_property("baseline_model") == str(models[1])
    assert blessed.get_int_custom_property("baseline_model_id") == 2
    _, refused = worse
    assert [path.name for path in Path(refused.uri).iterdir()] == ["NOT_BLESSED"]
    candidates = {
        "model": [artifact("Model", models[0], 3), artifact("Model", models[1], 4)],
        "model_blessing": [blessed, refused],
    }
    resolved = latest_blessed_model_strategy.LatestBlessedModelStrategy().resolve_artifacts(None, candidates)
    assert [model.id for model in resolved["model"]] == [3]


def test_by_default_a_low_ap_and_a_significant_loss_refuse(worse: tuple[Path, Any]) -> None:
    """The second model detects nothing where the objects lie."""
    folder, blessing = worse
    verdict, loss = read(folder, BLESSING_JSON), read(folder, ANALYSIS_JSON)["differences"]["AP"]
    assert loss["high"] < 0
    assert (verdict["blessed"], blessing.get_int_custom_property("blessed")) == (False, 0)
    [low, change] = verdict["reasons"]
    assert low.startswith("AP 0 is below 0.05")
    assert change.startswith(f"AP: a change of {loss['value']:+.4f} ({loss['low']:+.4f} to {loss['high']:+.4f})")


def test_further_metrics_are_judged_and_reported(better: tuple[Path, Any], ground_truth: dict[str, Any]) -> None:
    folder, _ = better
    expected = coco.evaluate(ground_truth, read(folder, DETECTIONS_JSON), metrics=[VOC])
    content, analysis = read(folder, METRICS_JSON), read(folder, ANALYSIS_JSON)
    assert content["metrics"] == expected.by_name
    assert content["per_category"] == expected.per_category
    assert analysis["intervals"][VOC]["value"] == pytest.approx(expected.by_name[VOC])
    reasons = " ".join(read(folder, BLESSING_JSON)["reasons"])
    assert f"{VOC} {round(expected.by_name[VOC], 4):g} is at least 0.01" in reasons
    assert f"{VOC}: a change of" in reasons
    assert VOC in (folder / REPORT_HTML).read_text()


def test_a_baseline_may_know_categories_that_are_gone(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    old = tmp_path / "old"
    save_fake_detector(old / "Format-Serving", category_ids=(7, 2, 91))
    with pytest.raises((CocoflowError, RuntimeError)) as caught:
        evaluate(tmp_path / "candidate", examples, old)
    assert "91" in str(find_user_error(caught.value))
    folder, _ = evaluate(tmp_path / "baseline", examples, models[0], artifact("Model", old, 2), model_id=3)
    assert read(folder, BLESSING_JSON)["baseline"]["AP"] >= 0


def test_a_baseline_whose_ids_mean_other_things_stops_or_is_compared_by_name(
    tmp_path: Path, examples: Path, models: list[Path], worse: tuple[Path, Any]
) -> None:
    first, second, third = CATEGORY_IDS
    old = tmp_path / "old"
    save_fake_detector(old / "Format-Serving", category_ids=(second, first, third))
    names = [(second, first), (first, second), (third, third)]  # id in the old model, id in the data set
    write_json(
        old / "Format-Serving" / EXTRA_FILES / LABELS_JSON, [{"id": a, "name": f"category {b}"} for a, b in names]
    )
    baseline = artifact("Model", old, 2)
    message = f"{first} was 'category {second}' and is 'category {first}'"
    with pytest.raises(DataError, match=rf"{message}.*accept_renumbered_categories=true"):
        evaluate(tmp_path / "stopped", examples, models[1], baseline, model_id=3)
    accepted, _ = evaluate(
        tmp_path / "accepted", examples, models[1], baseline, model_id=3, accept_renumbered_categories=True
    )
    assert read(accepted, BLESSING_JSON)["baseline"] == read(worse[0], BLESSING_JSON)["baseline"]


@pytest.mark.parametrize("augmented", [False, True])
def test_images_are_kept_with_what_the_model_gave_for_them(
    *,
    tmp_path: Path,
    better: tuple[Path, Any],
    examples: Path,
    models: list[Path],
    ground_truth: dict[str, Any],
    augmented: bool,
) -> None:
    """As a server answers, without augmentation; the choice depends on the ids alone."""
    folder, _ = evaluate(tmp_path, examples, models[0], served_images=5, tta={"flip": True}) if augmented else better
    sample = read_serving_sample(folder / SERVING_SAMPLE)
    entries = {entry["id"]: entry for entry in ground_truth["images"]}
    assert [image.image_id for image in sample] == sample_ids(entries, 5, 0)
    detector = SavedModelDetector(folder=models[0] / "Format-Serving", batch_size=1)
    for image in sample:
        entry = entries[image.image_id]
        assert image.name == entry["file_name"]
        assert image.encoded == (ground_truth["folder"] / entry["file_name"]).read_bytes()
        expected = detector.outputs([EncodedImage(1, "", image.encoded, entry["height"], entry["width"])])
        count = int(expected.pop("num_detections")[0])
        assert set(image.outputs) == set(expected)
        for name, rows in image.outputs.items():
            np.testing.assert_array_equal(rows, expected[name][0, :count])
    assert any(len(image.outputs["detection_scores"]) for image in sample)


def test_never_compared_with_itself() -> None:
    from components.coco_evaluator.executor import find_baseline

    model, other = artifact("Model", "/models/1", 1), artifact("Model", "/models/2", 2)
    for itself in (artifact("Model", "/models/1", 9), artifact("Model", "/models/3", 1)):
        assert find_baseline(model, [itself]) is None
        assert find_baseline(model, [itself, other]) is other


def test_neither_division_nor_counting_matters(
    tmp_path: Path,
    models: list[Path],
    ground_truth: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The number of images told or counted, one state or two: the same files; progress counts each image once."""
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "cocoflow.beam")
    baseline = artifact("Model", models[1], 2)
    folders = []
    for counted, images_per_state in [(False, 12), (True, 13)]:
        progress._COUNTS.clear()
        examples = write_examples(tmp_path / f"examples-{counted}", ground_truth, counted=counted)
        out = tmp_path / f"{counted}"
        folders.append(evaluate(out, examples, models[0], baseline, images_per_state=images_per_state)[0])
    for name in (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert [count.images for count in progress._COUNTS.values()] == [IMAGES]  # once, not for each model
    lines = [record.getMessage() for record in caplog.records if record.name == "cocoflow.beam"]
    assert lines[-1] == f"{IMAGES} of {IMAGES} images"


def test_of_many_images_a_sample_is_analysed(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    """The same that one process would take, and only of what lies beyond the metrics."""
    options: dict[str, Any] = {"analysis": {"images": 5, "replicates": 20, "score": 0.0, "seed": 3}}
    baseline = artifact("Model", models[1], 2)
    folder, _ = evaluate(tmp_path, examples, models[0], baseline, **options)
    analysis, verdict = read(folder, ANALYSIS_JSON), read(folder, BLESSING_JSON)
    assert analysis["sample"] == {"images": 5, "of": IMAGES, "seed": 3}
    assert analysis["metrics"] == read(folder, METRICS_JSON)["metrics"]
    assert analysis["baseline_metrics"] == verdict["baseline"]
    assert analysis["intervals"]["AP"]["value"] != analysis["metrics"]["AP"]
    chosen = sample_ids([500 - 7 * number for number in range(IMAGES)], 5, 3)
    shown = {image["image_id"] for image in analysis["worst"]}
    assert shown
    assert shown <= set(chosen)
    detections = [detection for detection in read(folder, DETECTIONS_JSON) if detection["image_id"] in chosen]
    assert sum(category["detections"] for category in analysis["categories"]) == len(detections)
    page = (folder / REPORT_HTML).read_text()
    assert "random sample of 5 images (seed 3)" in page
    assert page.count("data:image/webp;base64") >= len(shown)


def test_an_eval_config_slices_and_judges(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    """Blessed where both our thresholds and those of the EvalConfig are met."""
    import tensorflow_model_analysis as tfma

    config = """
        slicing_specs {} slicing_specs { feature_keys: "num_objects" }
        metrics_specs {
          metrics { class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics" }
          per_slice_thresholds { key: "AR100" value { thresholds {
            slicing_specs {} threshold { value_threshold { lower_bound { value: %s } } } } } }
        }"""
    thresholds = {"absolute": {"AP": 0.1}}
    for least, blessed in [(0.0, True), (0.99, False)]:
        folder, blessing = evaluate(
            tmp_path / f"{least}", examples, models[0], eval_config=config % least, thresholds=thresholds
        )
        verdict = read(folder, BLESSING_JSON)
        assert verdict["blessed"] is blessed
        assert any(reason.startswith("AP 0.") for reason in verdict["reasons"])
        assert any("AR100 is" in reason for reason in verdict["reasons"])
        assert blessing.get_int_custom_property("blessed") == blessed
        assert tfma.load_validation_result(str(folder)).validation_ok is (least == 0)
    slices = dict(tfma.load_eval_result(str(folder)).slicing_metrics)
    assert len(slices) > 2
    assert slices[()][""][""]["AP"]["doubleValue"] == read(folder, METRICS_JSON)["metrics"]["AP"]


def test_options_of_an_eval_config(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    """Other IoU thresholds and numbers of detections."""
    config = """metrics_specs { metrics {
        class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics" config: '%s' } }"""
    options: dict[str, Any] = {"iou_thresholds": [0.6, 0.75], "max_dets": [1, 2, 3]}
    thresholds = {"absolute": {"AR100": 0.0}}
    folder, _ = evaluate(
        tmp_path / "a", examples, models[0], eval_config=config % json.dumps(options), thresholds=thresholds
    )
    metrics, analysis = read(folder, METRICS_JSON)["metrics"], read(folder, ANALYSIS_JSON)
    assert metrics["AP50"] == -1
    assert metrics["AR3"] > 0
    assert analysis["iou"] == 0.6
    assert read(folder, BLESSING_JSON)["blessed"] is False
    assert read(folder, BLESSING_JSON)["reasons"][0].startswith("AR100 is undefined: ")


def test_errors(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def message_of(name: str, examples: Path, model: Path = models[0], **properties: Any) -> str:
        with pytest.raises((CocoflowError, RuntimeError)) as caught:
            evaluate(tmp_path / "out" / name, examples, model, **properties)
        error = find_user_error(caught.value)
        assert isinstance(error, CocoflowError), caught.value
        assert not (tmp_path / "out" / name / "evaluation" / ".work").exists()
        return str(error)

    assert "no split 'test', only train, eval. Correct evaluate.split" in message_of("split", examples, split="test")
    assert "Split-train: no record files" in message_of("empty", examples, split="train")
    first = {**ground_truth, "images": ground_truth["images"][:1]}
    broken = write_examples(tmp_path / "broken", first, shards=1, broken=True)
    assert "picture_00.png: the model cannot read the image (id 500)" in message_of("broken", broken)
    twice = write_examples(tmp_path / "twice", {**ground_truth, "images": ground_truth["images"][:1] * 2}, shards=1)
    assert "ground truth of the examples: duplicate id: image 500" in message_of("twice", twice)
    with monkeypatch.context() as patched:
        patched.setattr(beam_evaluate, "_CHUNK", 1)
        assert "image 500 was added more than once" in message_of("apart", twice, batch_size=1)
    none = write_examples(tmp_path / "none", {**ground_truth, "images": []}, counted=False)
    assert "no record. Evaluate on a split that has images." in message_of("none", none)
    assert "not a SavedModel" in message_of("model", examples, tmp_path / "no model")
    imported = write_examples(tmp_path / "foreign", {**ground_truth, "images": []}, shards=1, counted=False)
    write_shards(imported, [tf.train.Example().SerializeToString()], 1)
    assert "record without a name: the record has no image/encoded, coco/annotations" in message_of("foreign", imported)
    (none / DATASET_JSON).write_text("{}")
    assert "no list `categories`" in message_of("dataset", none)


def test_the_component_checks_its_parameters() -> None:
    from tfx import types
    from tfx.types import standard_artifacts

    from components.coco_evaluator.component import CocoEvaluator
    from components.coco_evaluator.stock_evaluator import stock_eval_config
    from components.coco_evaluator.tfma.eval_config import parse_eval_config

    channels: dict[str, Any] = {
        "examples": types.Channel(type=standard_artifacts.Examples),
        "model": types.Channel(type=standard_artifacts.Model),
    }
    made = CocoEvaluator(**channels, config=EvaluateConfig(batch_size=3))
    assert EvaluateConfig.model_validate_json(made.exec_properties["config"]).batch_size == 3
    assert set(made.outputs) == {"evaluation", "blessing"}
    assert made.exec_properties["eval_config"] is None
    config = stock_eval_config([7], slicing=[("num_objects",)], absolute={"AP": 0.5})
    made = CocoEvaluator(**channels, eval_config=config)
    assert parse_eval_config(made.exec_properties["eval_config"]) == config


def test_a_container_without_its_accelerator_does_not_evaluate_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from components.coco_evaluator.executor import Executor

    monkeypatch.setenv(ACCELERATOR_VARIABLE, "nvidia.com/gpu")
    with pytest.raises(
        ConfigError, match=r"was given nvidia\.com/gpu \(COCOFLOW_ACCELERATOR\), but TensorFlow sees no"
    ):
        Executor().Do({}, {}, {})
