"""Our metrics in TFX's own Evaluator, against pycocotools."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import schemas
from components.coco_evaluator.beam.models_pass import EvaluationRequest
from components.coco_evaluator.evaluation import evaluate_models
from components.coco_evaluator.tfma.eval_config import eval_config_to_json, parse_eval_config
from components.coco_evaluator.tfma.slice_metrics import OVERALL
from components.coco_evaluator.tfma.slicing import Slicer
from detection.coco import evaluate
from detection.coco.io.results import results_from_rows
from detection.datasets.annotations.packed_entries import pack_entries
from detection.inference.results import results_from_outputs
from detection.input_pipeline.evaluation_records import parse_record
from detection.storage.files import copy_file, list_folder, make_folder
from detection.storage.paths import join
from detection.types import EncodedImage
from schemas.config.evaluate import AnalysisConfig, EvaluateConfig, ThresholdsConfig
from schemas.errors import CocoflowError, ConfigError, DataError, find_user_error
from schemas.metrics import METRIC_DEFINITIONS
from tests.components.coco_evaluator.generated_records import (
    CATEGORIES,
    annotations_of,
    artifact,
    detect,
    generate_ground_truth,
    save_models,
    served,
    write_records,
)
from tests.detection.coco.generated_cases import generate, pycocotools_eval
from tests.detection.fake_detector import save_fake_detector
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

pytestmark = pytest.mark.slow  # importing TFX takes most of it

SCHEMA = Path(schemas.__file__).parent / "records.pbtxt"
NAMES = [metric.name for metric in METRIC_DEFINITIONS["bbox"]]
MODULE = "components.coco_evaluator.stock_evaluator"
SLICING = [("brightness",), ("image/object/class/text",), ("coco/image/license", "num_objects")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two `Model` artifacts' folders."""
    return save_models(tmp_path_factory.mktemp("models"))


def stock(
    out: str | Path,
    config: Any,
    examples: str | Path,
    model: str | Path,
    baseline: str | Path | None = None,
    *,
    schema: bool = False,
) -> tuple[str, Any]:
    """Runs TFX's Evaluator, maybe with the records' schema; returns the evaluation's folder and the blessing."""
    from google.protobuf import json_format
    from tfx.components.evaluator.executor import Executor

    for name in ("evaluation", "blessing"):
        make_folder(join(out, name))
    split = artifact("Examples", examples, 5, split_names='["eval"]')
    inputs = {"examples": [split], "model": [artifact("Model", model, 1)]}
    if baseline:
        inputs["baseline_model"] = [artifact("Model", baseline, 2)]
    if schema:
        copy_file(SCHEMA, join(out, "schema", "schema.pbtxt"))
        inputs["schema"] = [artifact("Schema", join(out, "schema"), 6)]
    blessing = artifact("ModelBlessing", join(out, "blessing"), 8)
    outputs = {"evaluation": [artifact("ModelEvaluation", join(out, "evaluation"), 7)], "blessing": [blessing]}
    given = {"eval_config": json_format.MessageToJson(config), "module_path": MODULE, "example_splits": '["eval"]'}
    Executor().Do(inputs, outputs, given)
    return join(out, "evaluation"), blessing


def config_of(**arguments: Any) -> Any:
    from components.coco_evaluator.stock_evaluator import stock_eval_config

    return stock_eval_config(CATEGORIES, **arguments)


def check_slice(loaded: Any, key: Any, ground_truth: dict[str, Any], rows: list[Any], ids: set[int]) -> None:
    """Every metric of a slice, and of each category in it, against pycocotools on the slice's images alone."""
    part = {
        "images": [image for image in ground_truth["images"] if image["id"] in ids],
        "annotations": [annotation for annotation in ground_truth["annotations"] if annotation["image_id"] in ids],
    }
    detections = [row for row in results_from_rows(np.concatenate(rows)) if row["image_id"] in ids]
    reference = pycocotools_eval({**part, "categories": CATEGORIES}, detections)
    metrics = loaded.get_metrics_for_slice(key)
    np.testing.assert_allclose(values(metrics, NAMES), reference.stats, rtol=0, atol=1e-12)
    assert metrics["example_count"] == {"doubleValue": len(ids)}
    precision = reference.eval["precision"][:, :, :, 0, -1]
    for position, category_id in enumerate(reference.params.catIds):
        own = values(loaded.get_metrics_for_slice(key, class_id=category_id), ["AP", "AP50"])
        expected = [mean(precision[:, :, position]), mean(precision[:1, :, position])]
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-12)


def values(metrics: dict[str, Any], names: list[str]) -> list[float]:
    """Numbers as pycocotools has them: -1 where undefined."""
    numbers = [float(metrics[name]["doubleValue"]) for name in names]
    return [-1.0 if math.isnan(value) else value for value in numbers]


def mean(precision: Any) -> float:
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else -1.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2))])
def test_equals_pycocotools_overall_per_class_and_per_slice(tmp_path: Path, models: list[Path], seed: int) -> None:
    """Both models, with crowds, ties and empty images; the slices are those of our own evaluator."""
    import tensorflow as tf
    import tensorflow_model_analysis as tfma
    from tfx.components.util.model_utils import is_model_blessed

    ground_truth = generate_ground_truth(tmp_path / "images", served(models), seed=seed)
    assert any(annotation["iscrowd"] for annotation in ground_truth["annotations"])
    examples = write_records(tmp_path / "examples", ground_truth, tmp_path / "images", shards=1 + seed)
    config = config_of(slicing=SLICING, batch_size=4, absolute={"AP50": 0.1}, improvement={"AP": 0.01})
    folder, blessing = stock(tmp_path / "out", config, examples, models[0], models[1], schema=seed == 0)
    assert is_model_blessed(blessing)
    assert tfma.load_validation_result(folder).validation_ok
    members: dict[Any, set[int]] = {}
    slicer = Slicer(config.slicing_specs)
    for file in (examples / "Split-eval").iterdir():
        for record in tf.data.TFRecordDataset(str(file), "GZIP" if file.suffix == ".gz" else "").as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            entry = next(e for e in ground_truth["images"] if e["file_name"] == name_of(example))
            for key in slicer.slice_keys(parse_record(record)):
                members.setdefault(key, set()).add(entry["id"])
    for name, model in zip(("candidate", "baseline"), served(models), strict=True):
        loaded = tfma.load_eval_result(folder, model_name=name)
        assert {key for key, _ in loaded.slicing_metrics} == set(members)
        rows = detect(model, ground_truth["images"], tmp_path / "images")
        for key, ids in members.items():
            check_slice(loaded, key, ground_truth, rows, ids)
    assert len(members) > 6
    assert len(members[OVERALL]) == 13


def name_of(example: Any) -> str:
    return str(example.features.feature["image/filename"].bytes_list.value[0].decode())


@pytest.fixture(scope="module")
def ground_truth(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("images")
    return {**generate_ground_truth(folder, served(models), seed=5), "folder": folder}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, ground_truth: dict[str, Any]) -> Path:
    return write_records(tmp_path_factory.mktemp("examples"), ground_truth, ground_truth["folder"])


def test_not_blessed_by_change_and_by_category(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tfx.components.util.model_utils import is_model_blessed

    config = config_of(absolute={"AP": 0.01}, improvement={"AP": 0.01})
    of_category = text_format.Parse(
        """binarize { class_ids { values: 7 } }
           thresholds { key: "AP50" value { value_threshold { lower_bound { value: 0.99 } } } }""",
        config.metrics_specs.add(),
    )
    of_category.metrics.append(config.metrics_specs[0].metrics[0])
    folder, blessing = stock(tmp_path, config, examples, models[1], models[0])
    assert not is_model_blessed(blessing)
    result = tfma.load_validation_result(folder)
    failed = [failure.metric_key for failure in result.metric_validations_per_slice[0].failures]
    assert sorted((key.name, key.is_diff, key.sub_key.class_id.value) for key in failed) == [
        ("AP", True, 0),
        ("AP50", False, 7),
    ]
    better = tfma.load_eval_result(folder, model_name="baseline").get_metrics_for_slice()["AP"]["doubleValue"]
    loaded = tfma.load_eval_result(folder, model_name="candidate").get_metrics_for_slice()
    assert 0 < loaded["AP"]["doubleValue"] < better
    assert loaded["AP_diff"]["doubleValue"] == loaded["AP"]["doubleValue"] - better


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory, examples: Path, models: list[Path]) -> tuple[Any, str]:
    """An `EvalConfig` with slices and thresholds of both kinds, and the folder of its evaluation."""
    config = config_of(slicing=[*SLICING, ("nowhere",)], absolute={"AP": 0.01}, improvement={"AP": 0.01})
    of_slices = config.metrics_specs[0].per_slice_thresholds["AP50"].thresholds.add()
    of_slices.slicing_specs.add(feature_keys=["brightness"])
    of_slices.threshold.value_threshold.lower_bound.value = 0.99
    folder, blessing = stock(tmp_path_factory.mktemp("sliced"), config, examples, models[0], models[1])
    assert blessing.get_int_custom_property("blessed") == 0
    return config, folder


def test_on_cloud_storage(
    *,
    gcs: Bucket,
    tmp_path: Path,
    examples: Path,
    models: list[Path],
    sliced: tuple[Any, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tensorflow_model_analysis as tfma

    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    config, local = sliced
    remote = [upload(folder, f"{gcs.path}/{number}") for number, folder in enumerate((examples, *models))]
    folder, _ = stock(f"{gcs.path}/out", config, *remote)
    slices = [tfma.load_eval_result(one, model_name="candidate").slicing_metrics for one in (local, folder)]
    assert len(slices[0]) > 1
    assert dict(slices[0]) == dict(slices[1])
    assert list_folder(f"{gcs.path}/out/blessing") == ["NOT_BLESSED"]


def test_our_evaluator_writes_the_same(
    tmp_path: Path, examples: Path, models: list[Path], sliced: tuple[Any, str]
) -> None:
    """The same `EvalConfig`: equal to the last bit in all slices, both models and their differences."""
    import tensorflow_model_analysis as tfma

    config, folder = sliced
    parts = dict(zip(("candidate", "baseline"), map(str, served(models)), strict=True))
    task = EvaluationRequest(
        records=str(examples / "Split-eval" / "*"),
        images=13,
        categories=CATEGORIES,
        models=parts,
        locations={**parts, "data": str(examples)},
        config=EvaluateConfig(thresholds=ThresholdsConfig(absolute={}), analysis=AnalysisConfig(replicates=0)),
        eval_config=parse_eval_config(eval_config_to_json(config)),
    )
    ours = tmp_path / "ours"
    verdict = evaluate_models(task, ours, beam_args=()).verdict
    for part in parts:
        expected = tfma.load_eval_result(folder, model_name=part)
        written = tfma.load_eval_result(str(ours), model_name=part)
        assert dict(written.slicing_metrics) == dict(expected.slicing_metrics)
        assert written.config == expected.config
    assert not verdict.blessed
    assert len(verdict.reasons) > 3
    assert any(reason.startswith("brightness = ") for reason in verdict.reasons)
    loaded = tfma.load_validation_result(str(ours)), tfma.load_validation_result(folder)
    assert [sorted(map(str, result.metric_validations_per_slice)) for result in loaded[:1]] == [
        sorted(map(str, result.metric_validations_per_slice)) for result in loaded[1:]
    ]
    details = [sorted(map(str, result.validation_details.slicing_details)) for result in loaded]
    assert details[0] == details[1]


@pytest.mark.extended  # test_bundles_and_orders_do_not_matter shows that states are merged
def test_confidence_intervals_by_jackknife(
    tmp_path: Path, examples: Path, models: list[Path], ground_truth: dict[str, Any]
) -> None:
    import tensorflow_model_analysis as tfma

    config = config_of()
    config.options.compute_confidence_intervals.value = True
    folder, _ = stock(tmp_path / "jackknife", config, examples, models[0])
    bounds = tfma.load_eval_result(folder).get_metrics_for_slice()["AP"]["boundedValue"]
    rows = np.concatenate(detect(served(models)[0], ground_truth["images"], ground_truth["folder"]))
    assert bounds["value"] == evaluate(ground_truth, rows).by_name["AP"]
    assert bounds["lowerBound"] < bounds["value"] < bounds["upperBound"]


def test_a_baseline_may_know_categories_that_are_gone(tmp_path: Path, examples: Path, models: list[Path]) -> None:
    old = tmp_path / "old"
    save_fake_detector(old / "Format-Serving", category_ids=(7, 2, 91))
    stock(tmp_path / "baseline", config_of(), examples, models[0], old)


def test_a_broken_image_is_named(tmp_path: Path, ground_truth: dict[str, Any], models: list[Path]) -> None:
    first = {**ground_truth, "images": ground_truth["images"][:1]}
    examples = write_records(tmp_path / "examples", first, ground_truth["folder"], shards=1, broken=True)
    with pytest.raises((CocoflowError, RuntimeError)) as caught:
        stock(tmp_path / "out", config_of(), examples, models[0])
    assert "picture_00.png: the model cannot read the image" in str(find_user_error(caught.value))


def elements(ground_truth: dict[str, Any], seed: int) -> tuple[list[Any], list[Any]]:
    """TFMA's inputs for each image with made-up outputs of a model; and the same as COCO rows."""
    from tensorflow_model_analysis.metrics.metric_types import StandardMetricInputs

    rng = np.random.default_rng(seed)
    inputs, rows = [], []
    for image in ground_truth["images"]:
        own = annotations_of(ground_truth, image["id"])
        near = np.array([annotation["bbox"] for annotation in own]).reshape(-1, 4)
        near = near[rng.integers(0, len(near), 6)] if len(near) else rng.uniform(0, 90, (6, 4))
        corners = np.column_stack([near[:, 1], near[:, 0], near[:, 1] + near[:, 3], near[:, 0] + near[:, 2]])
        outputs = {
            "detection_boxes": (corners / image["height"]).astype(np.float32),
            "detection_scores": rng.choice([0.25, 0.5, 0.75], 6).astype(np.float32),
            "detection_classes": rng.choice([7, 2, 90], 6),
            "num_detections": np.array(rng.integers(0, 7), np.int32),
        }
        encoded = EncodedImage(image["id"], "", b"", image["height"], image["width"])
        batch = {name: value[None] for name, value in outputs.items()}
        rows += [results.rows for results in results_from_outputs(batch, [encoded])]
        features = {
            "coco/annotations": np.array([pack_entries({"file_name": "a.png", **image}, own)], object),
            "image/height": np.array([image["height"]]),
            "image/width": np.array([image["width"]]),
        }
        inputs.append(StandardMetricInputs({"features": features, "predictions": outputs}))
    return inputs, rows


@pytest.mark.parametrize("seed", range(5))
def test_bundles_and_orders_do_not_matter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from components.coco_evaluator import tfma_metrics
    from components.coco_evaluator.tfma_metrics import CocoMetrics

    monkeypatch.setattr(tfma_metrics, "_PENDING", 1 + seed)  # images matched at a time
    ground_truth, _ = generate(seed)
    inputs, rows = elements(ground_truth, seed)
    options: dict[str, Any] = {
        "categories": [category["id"] for category in ground_truth["categories"]],
        "max_dets": [1, 2, 4],
    }
    combiner = CocoMetrics(**options).computations()[0].combiner
    rng = np.random.default_rng(seed)
    states = [combiner.create_accumulator() for _ in range(4)]
    for position in rng.permutation(len(inputs)):
        chosen = rng.integers(4)
        states[chosen] = combiner.add_input(states[chosen], inputs[position])
        if rng.random() < 0.3:  # as where a state travels to another worker
            states[chosen] = combiner.compact(pickle.loads(pickle.dumps(states[chosen])))
    merged = combiner.merge_accumulators([states[i] for i in rng.permutation(4)])
    items = combiner.extract_output(merged).items()
    overall = {key.name: -1.0 if math.isnan(value) else value for key, value in items if key.sub_key is None}
    whole = evaluate(ground_truth, np.concatenate(rows), max_dets=(1, 2, 4)).by_name
    assert overall == whole
    assert whole["AP"] > 0


def message_of(config: Any, **options: Any) -> str:
    from components.coco_evaluator.tfma_metrics import CocoMetrics

    with pytest.raises(ConfigError) as caught:
        CocoMetrics(**options).computations(eval_config=config)
    return str(caught.value)


def test_errors_of_the_config() -> None:
    assert message_of(config_of()).startswith("CocoMetrics: no categories. Give the data set's category ids")
    assert "CocoMetrics: max_det: Extra inputs are not permitted, not 3. Options are iou_type, " in message_of(
        config_of(), max_det=3
    )
    twice = config_of()
    twice.metrics_specs.add().CopyFrom(config_of(max_dets=[1, 2, 3]).metrics_specs[0])
    assert "metrics_specs[1].metrics[0].config: differs from that of EvalConfig: metrics_specs[0]" in message_of(twice)
    alone = config_of()
    alone.metrics_specs[0].metrics[0].threshold.value_threshold.lower_bound.value = 0.5
    assert "has many metrics, so a threshold has to name one" in message_of(alone)
    averaged = config_of()
    averaged.metrics_specs[0].aggregate.micro_average = True
    assert "metrics_specs[0]: aggregate is not honoured" in message_of(averaged)
    with pytest.raises(ConfigError, match=r"stock_eval_config: .*: max_dets \(3,\): bbox takes 3 ascending"):
        config_of(max_dets=[3])


def test_errors_of_the_data() -> None:
    from components.coco_evaluator.tfma_metrics import CocoMetrics

    ground_truth, _ = generate(0)
    combiner = CocoMetrics(categories=[7, 2, 90, 31]).computations()[0].combiner
    element = elements(ground_truth, 0)[0][0]
    lacking = type(element)({**element, "features": {}})
    with pytest.raises(DataError, match=r"CocoMetrics: a record lacks coco/annotations\. Write the examples with"):
        combiner.add_input(combiner.create_accumulator(), lacking)
    other = type(element)({**element, "predictions": {"detection_boxes": np.zeros((1, 4))}})
    with pytest.raises(DataError, match=r"the model's outputs lack detection_scores, detection_classes, num_"):
        combiner.add_input(combiner.create_accumulator(), other)
    gone = {**element["predictions"], "detection_classes": np.full(6, 91), "num_detections": np.array(1, np.int32)}
    state = combiner.add_input(combiner.create_accumulator(), type(element)({**element, "predictions": gone}))
    with pytest.raises(DataError, match="unknown category_id"):
        combiner.extract_output(state)
    state = combiner.add_input(combiner.add_input(combiner.create_accumulator(), element), element)
    with pytest.raises(DataError, match="ground truth of the examples: duplicate id: image"):
        combiner.extract_output(state)


def test_options_reach_the_metric() -> None:
    config = json.loads(config_of(max_dets=[1, 2, 3]).metrics_specs[0].metrics[0].config)
    assert config == {"categories": [7, 2, 90, 31], "max_dets": [1, 2, 3]}
