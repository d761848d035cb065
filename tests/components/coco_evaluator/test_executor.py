"""The evaluator as TFX runs it, on generated data and a model with known answers."""

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from components.beam import progress
from components.coco_evaluator import evaluation
from components.coco_evaluator.beam import evaluate as beam_evaluate
from detection import coco
from detection.analysis.instances import sample_ids
from detection.datasets.annotations.packed_entries import pack_entries
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.predict import predict
from detection.inference.serving_sample import read_serving_sample
from detection.storage.atomic import write_json
from detection.types import EncodedImage
from schemas import features
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
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.fake_detector import CATEGORY_IDS, save_fake_detector, write_images

pytestmark = pytest.mark.slow  # importing TFX takes most of it

CATEGORIES = [{"id": id_, "name": f"category {id_}"} for id_ in (*CATEGORY_IDS, 31)]
IMAGES = 13


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two `Model` artifacts' folders."""
    root = tmp_path_factory.mktemp("models")
    for number in range(2):
        save_fake_detector(root / str(number) / "Format-Serving", shift=number)
    return [root / "0", root / "1"]


@pytest.fixture(scope="module")
def ground_truth(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> dict[str, Any]:
    """A data set whose objects lie near some of the first model's detections; `folder` has the images."""
    folder = tmp_path_factory.mktemp("images")
    entries = write_images(folder, IMAGES)
    detector = SavedModelDetector(folder=models[0] / "Format-Serving", batch_size=IMAGES)
    encoded = [(folder / entry["file_name"]).read_bytes() for entry in entries]
    images = [
        EncodedImage(entry["id"], "", data, entry["height"], entry["width"])
        for entry, data in zip(entries, encoded, strict=True)
    ]
    rng = np.random.default_rng(3)
    annotations: list[dict[str, Any]] = []
    for rows in [results.rows for results in detector.detect(images)[1:]]:
        for image_id, *box, _, category in rows[::2].tolist():
            bbox = [max(0.01, value + float(rng.normal(0, 0.5))) for value in box]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": int(image_id),
                    "category_id": int(category),
                    "bbox": bbox,
                    "area": bbox[2] * bbox[3],
                    "iscrowd": int(rng.random() < 0.2),
                }
            )
    return {"images": entries, "annotations": annotations, "categories": CATEGORIES, "folder": folder}


def write_examples(root: Path, ground_truth: dict[str, Any], *, shards: int = 2, broken: bytes | None = None) -> Path:
    """An `Examples` artifact's folder; images lie over the shards in no order, one shard is gzipped."""
    records = []
    for entry in ground_truth["images"]:
        own = [annotation for annotation in ground_truth["annotations"] if annotation["image_id"] == entry["id"]]
        data = broken or (ground_truth["folder"] / entry["file_name"]).read_bytes()
        feature = {
            features.ENCODED: _bytes(data),
            features.FILENAME: _bytes(entry["file_name"].encode()),
            features.HEIGHT: tf.train.Feature(int64_list=tf.train.Int64List(value=[entry["height"]])),
            features.WIDTH: tf.train.Feature(int64_list=tf.train.Int64List(value=[entry["width"]])),
            features.COCO: _bytes(pack_entries(entry, own)),
        }
        records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    random.Random(0).shuffle(records)
    write_shards(root, records, shards)
    (root / DATASET_JSON).write_text(json.dumps({"info": {}, "licenses": [], "categories": ground_truth["categories"]}))
    return root


def write_shards(root: Path, records: list[bytes], shards: int) -> None:
    (root / "Split-eval").mkdir(parents=True)
    for shard in range(shards):
        name, compression = ("part.gz", "GZIP") if shard else ("part.tfrecord", "")
        with tf.io.TFRecordWriter(str(root / "Split-eval" / f"{shard}-{name}"), compression) as writer:
            for record in records[shard::shards]:
                writer.write(record)


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def artifact(kind: str, uri: Path, identifier: int, **properties: str) -> Any:
    from tfx.types import standard_artifacts

    made = getattr(standard_artifacts, kind)()
    made.uri, made.id = str(uri), identifier
    for name, value in properties.items():
        setattr(made, name, value)
    return made


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


def test_equals_pycocotools_and_can_be_read(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cocoflow.evaluator")
    folder, blessing = evaluate(tmp_path, examples, models[0])
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
    assert f"candidate: 13 images, {len(ids)} detections, AP " in caplog.text
    _check_tfma(folder, content)
    _check_blessing(blessing, models[0])
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


def test_an_emptied_shard_is_refused(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    written = write_examples(tmp_path / "examples", ground_truth)
    dataset = read(written, DATASET_JSON)
    (written / DATASET_JSON).write_text(json.dumps(dataset | {"splits": {"eval": {"images": IMAGES}}}))
    (written / "Split-eval/0-part.tfrecord").write_bytes(b"")
    with pytest.raises(DataError, match=f"Split-eval: 6 images, but dataset.json has {IMAGES}"):
        evaluate(tmp_path / "out", written, models[0])


def test_predict_finds_the_same(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    """On the image files of the split, bit for bit."""
    folder, _ = evaluate(tmp_path / "run", examples, models[0])
    (tmp_path / "gt.json").write_text(json.dumps({"images": ground_truth["images"]}))
    out = tmp_path / "detections.json"
    model = models[0] / "Format-Serving"
    predict(
        model=model, images=[ground_truth["folder"]], ground_truth=tmp_path / "gt.json", output=out, console=Console()
    )
    assert out.read_bytes() == (folder / DETECTIONS_JSON).read_bytes()


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
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    first, _ = evaluate(tmp_path / "1", examples, models[0])
    other_examples = write_examples(tmp_path / "examples", ground_truth, shards=5)
    few = {"replicates": 0, "visualizations": 2}
    second, _ = evaluate(tmp_path / "2", other_examples, models[0], batch_size=3, analysis=few)
    for name in (METRICS_JSON, DETECTIONS_JSON):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert _pictures(first) == [f"eval_side_by_side_{number}_0" for number in range(10)]
    assert _pictures(second) == ["eval_side_by_side_0_0", "eval_side_by_side_1_0"]


def _pictures(evaluation: Path) -> list[str]:
    """Tags of TensorBoard's pictures."""
    (path,) = (evaluation / LOGS).iterdir()
    tags = [value.tag for event in tf.compat.v1.train.summary_iterator(str(path)) for value in event.summary.value]
    return [tag for tag in tags if tag.startswith("eval_side_by_side")]


def test_compared_with_the_last_blessed_model(
    tmp_path: Path,
    examples: Path,
    models: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first model is the better one: objects lie where it finds them."""
    from tfx.dsl.input_resolution.strategies import latest_blessed_model_strategy

    thresholds: dict[str, Any] = {"thresholds": {"absolute": {}, "improvement": {"AP": 0.01}}}
    baseline = artifact("Model", models[1], 2)
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.01)
    progress._COUNTS.clear()
    with caplog.at_level(logging.INFO, "cocoflow.beam"):
        better, blessed = evaluate(tmp_path / "better", examples, models[0], baseline, model_id=3, **thresholds)
    assert [count.images for count in progress._COUNTS.values()] == [IMAGES]  # once, not for each model
    lines = [record.getMessage() for record in caplog.records if record.name == "cocoflow.beam"]
    assert lines[-1] == f"{IMAGES} of {IMAGES} images"
    assert read(better, BLESSING_JSON)["blessed"] is True
    assert read(better, BLESSING_JSON)["baseline"]["AP"] < read(better, METRICS_JSON)["metrics"]["AP"]
    assert blessed.get_string_custom_property("baseline_model") == str(models[1])
    assert blessed.get_int_custom_property("baseline_model_id") == 2
    baseline = artifact("Model", models[0], 3)
    worse, refused = evaluate(tmp_path / "worse", examples, models[1], baseline, model_id=4, **thresholds)
    verdict = read(worse, BLESSING_JSON)
    assert verdict["blessed"] is False
    assert "of the last blessed model: a change below +0.01" in verdict["reasons"][0]
    assert [path.name for path in Path(refused.uri).iterdir()] == ["NOT_BLESSED"]
    candidates = {
        "model": [artifact("Model", models[0], 3), artifact("Model", models[1], 4)],
        "model_blessing": [blessed, refused],
    }
    resolved = latest_blessed_model_strategy.LatestBlessedModelStrategy().resolve_artifacts(None, candidates)
    assert [model.id for model in resolved["model"]] == [3]


def test_further_metrics_are_judged_and_reported(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    name = "pascal_voc_AP50"
    thresholds = {"absolute": {name: 0.999}, "not_worse": [name]}
    folder, _ = evaluate(
        tmp_path, examples, models[0], artifact("Model", models[1], 2), metrics=[name], thresholds=thresholds
    )
    expected = coco.evaluate(ground_truth, read(folder, DETECTIONS_JSON), metrics=[name])
    content, analysis = read(folder, METRICS_JSON), read(folder, ANALYSIS_JSON)
    assert content["metrics"] == expected.by_name
    assert content["per_category"] == expected.per_category
    assert analysis["intervals"][name]["value"] == pytest.approx(expected.by_name[name])
    reasons = " ".join(read(folder, BLESSING_JSON)["reasons"])
    assert f"{name} {round(expected.by_name[name], 4):g} is below 0.999" in reasons
    assert f"{name}: a change of" in reasons
    assert name in (folder / REPORT_HTML).read_text()


def test_a_baseline_may_know_categories_that_are_gone(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    old = tmp_path / "old"
    save_fake_detector(old / "Format-Serving", category_ids=(7, 2, 91))
    with pytest.raises((CocoflowError, RuntimeError)) as caught:
        evaluate(tmp_path / "candidate", examples, old)
    assert "91" in str(find_user_error(caught.value))
    folder, _ = evaluate(tmp_path / "baseline", examples, models[0], artifact("Model", old, 2), model_id=3)
    assert read(folder, BLESSING_JSON)["baseline"]["AP"] >= 0


def test_a_baseline_whose_ids_mean_other_things_stops_or_is_compared_by_name(
    tmp_path: Path, examples: Path, models: list[Path]
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
    same, _ = evaluate(tmp_path / "same", examples, models[1], artifact("Model", models[0], 4), model_id=3)
    assert read(accepted, BLESSING_JSON)["baseline"] == read(same, BLESSING_JSON)["baseline"]


@pytest.mark.parametrize("tta", [{}, {"flip": True}], ids=["plain", "augmented"])
def test_images_are_kept_with_what_the_model_gave_for_them(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any], tta: dict[str, Any]
) -> None:
    """As a server answers, without augmentation; the choice depends on the ids alone."""
    folder, _ = evaluate(tmp_path, examples, models[0], artifact("Model", models[1], 2), served_images=5, tta=tta)
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


@pytest.mark.parametrize("by", ["uri", "id"])
def test_never_compared_with_itself(tmp_path: Path, examples: Path, models: list[Path], by: str) -> None:
    itself = artifact("Model", models[0], 9) if by == "uri" else artifact("Model", models[1], 1)
    thresholds: dict[str, Any] = {"thresholds": {"absolute": {}, "improvement": {"AP": 0.5}}}
    folder, blessing = evaluate(tmp_path, examples, models[0], itself, **thresholds)
    assert read(folder, BLESSING_JSON) == {
        "blessed": True,
        "reasons": ["AP: no earlier blessed model to compare with"],
        "baseline": None,
        "checkpoint": f"judged on {IMAGES} images of eval",
    }
    assert not blessing.has_custom_property("baseline_model")


def test_only_more_than_chance_is_a_gain(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    thresholds: dict[str, Any] = {"thresholds": {"absolute": {}, "significant": ["AP"]}}
    folder, _ = evaluate(tmp_path / "better", examples, models[0], artifact("Model", models[1], 2), **thresholds)
    verdict, analysis = read(folder, BLESSING_JSON), read(folder, ANALYSIS_JSON)
    gain = analysis["differences"]["AP"]
    assert gain["low"] > 0.01
    assert verdict["blessed"] is True
    [reason] = verdict["reasons"]
    assert reason.startswith(
        f"AP: a change of {gain['value']:+.4f} ({gain['low']:+.4f} to {gain['high']:+.4f}) against"
    )
    same = shutil.copytree(models[0], tmp_path / "same")
    folder, _ = evaluate(tmp_path / "equal", examples, models[0], artifact("Model", same, 2), **thresholds)
    verdict = read(folder, BLESSING_JSON)
    assert verdict["blessed"] is False
    assert verdict["reasons"] == [
        "AP: a change of +0.0000 (+0.0000 to +0.0000) against the last blessed model: no significant gain "
        "(to accept it: --set 'evaluate.thresholds.significant=[]')"
    ]


def test_by_default_a_low_ap_and_a_significant_loss_refuse(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    """The second model detects nothing where the objects lie."""
    baseline = artifact("Model", models[0], 2)
    folder, blessing = evaluate(tmp_path / "worse", examples, models[1], baseline, thresholds={})
    verdict, loss = read(folder, BLESSING_JSON), read(folder, ANALYSIS_JSON)["differences"]["AP"]
    assert loss["high"] < 0
    assert (verdict["blessed"], blessing.get_int_custom_property("blessed")) == (False, 0)
    assert verdict["reasons"] == [
        "AP 0 is below 0.05 (to accept it: --set evaluate.thresholds.absolute.AP=0)",
        f"AP: a change of {loss['value']:+.4f} ({loss['low']:+.4f} to {loss['high']:+.4f}) against the last blessed "
        "model: a significant loss (to accept it: --set 'evaluate.thresholds.not_worse=[]')",
    ]
    same = shutil.copytree(models[0], tmp_path / "same")
    folder, _ = evaluate(tmp_path / "equal", examples, same, baseline, thresholds={})
    assert read(folder, BLESSING_JSON)["blessed"] is True


def test_neither_division_nor_counting_matters(
    tmp_path: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    """The number of images told or counted, one state or many: the same files."""
    baseline = artifact("Model", models[1], 2)
    folders = []
    for number, (counts, images_per_state) in enumerate([(None, 100), (None, 12), (IMAGES, 13)]):
        examples = write_examples(tmp_path / f"examples-{number}", ground_truth)
        if counts:
            dataset = json.loads((examples / DATASET_JSON).read_text())
            write_json(examples / DATASET_JSON, dataset | {"splits": {"eval": {"images": counts}}})
        out = tmp_path / f"{number}"
        folders.append(evaluate(out, examples, models[0], baseline, images_per_state=images_per_state)[0])
    for folder in folders[1:]:
        for name in (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON):
            assert (folder / name).read_bytes() == (folders[0] / name).read_bytes()


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
    for least, asked, blessed in [(0.0, 0.1, True), (0.99, 0.1, False), (0.0, 0.99, False)]:
        thresholds["absolute"]["AP"] = asked
        folder, blessing = evaluate(
            tmp_path / f"{least}-{asked}", examples, models[0], eval_config=config % least, thresholds=thresholds
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


def test_a_killed_evaluator_blesses_nothing(
    tmp_path: Path, examples: Path, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kill would leave when all is evaluated and before the verdict is written."""
    left: list[set[str]] = []

    def look(*arguments: Any, **options: Any) -> None:
        left.append({path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")})

    monkeypatch.setattr(evaluation, "write_evaluation_report", look)
    evaluate(tmp_path, examples, models[0])
    assert left
    assert f"evaluation/{METRICS_JSON}" in left[0]
    assert f"evaluation/{BLESSING_JSON}" not in left[0]
    assert not [name for name in left[0] if name.startswith("blessing/")]
    assert (tmp_path / "evaluation" / BLESSING_JSON).exists()


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
    broken = write_examples(
        tmp_path / "broken", {**ground_truth, "images": ground_truth["images"][:1]}, broken=b"no image"
    )
    assert "picture_00.png: the model cannot read the image (id 500)" in message_of("broken", broken)
    twice = write_examples(tmp_path / "twice", {**ground_truth, "images": ground_truth["images"][:1] * 2}, shards=1)
    assert "ground truth of the examples: duplicate id: image 500" in message_of("twice", twice)
    with monkeypatch.context() as patched:
        patched.setattr(beam_evaluate, "_CHUNK", 1)
        assert "image 500 was added more than once" in message_of("apart", twice, batch_size=1)
    none = write_examples(tmp_path / "none", {**ground_truth, "images": []})
    assert "no record. Evaluate on a split that has images." in message_of("none", none)
    assert "not a SavedModel" in message_of("model", examples, tmp_path / "no model")
    imported = write_examples(tmp_path / "foreign", {**ground_truth, "images": []}, shards=1)
    for path in (imported / "Split-eval").iterdir():
        path.unlink()
    (imported / "Split-eval").rmdir()
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
