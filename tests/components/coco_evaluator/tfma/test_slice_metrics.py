"""Files for TFMA, and thresholds judged by TFMA, over metrics that are made up."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from components.coco_evaluator.tfma.eval_config import complete, parse_eval_config
from components.coco_evaluator.tfma.slice_metrics import (
    BASELINE,
    CANDIDATE,
    OVERALL,
    SliceKey,
    SliceMetrics,
    write_slices,
)
from components.coco_evaluator.tfma.verdict import Judged, judge_by_config, without_thresholds

pytestmark = pytest.mark.slow  # importing TFMA takes most of it

DARK: SliceKey = (("brightness", "dark"), ("coco/image/license", 3))
BRIGHT: SliceKey = (("brightness", "bright"), ("coco/image/license", 4))


def metrics(ap: float, ap50: float, small: float = -1.0, *, images: int = 9) -> SliceMetrics:
    per_category = [
        {"id": 7, "name": "dog", "AP": ap / 2, "AP50": ap50 / 2},
        {"id": 90, "name": "cat", "AP": -1.0, "AP50": -1.0},
    ]
    return SliceMetrics(images, {"AP": ap, "AP50": ap50, "APs": small}, per_category)


SLICES = {
    OVERALL: {CANDIDATE: metrics(0.5, 0.75), BASELINE: metrics(0.4375, 0.875)},
    DARK: {CANDIDATE: metrics(0.25, 0.5, 0.125, images=4), BASELINE: metrics(0.5, 0.5)},
    BRIGHT: {CANDIDATE: metrics(0.625, 0.75, images=5), BASELINE: metrics(0.0, 0.75)},
}


def alone(slices: Any = SLICES) -> dict[SliceKey, dict[str, SliceMetrics]]:
    return {key: {CANDIDATE: models[CANDIDATE]} for key, models in slices.items()}


def judged(config: str, *, baseline: bool = False, slices: Any = SLICES) -> Judged:
    completed = complete(parse_eval_config(config), has_baseline=baseline)
    return judge_by_config(slices if baseline else alone(slices), completed)


def test_what_tfma_loads(tmp_path: Path) -> None:
    import tensorflow_model_analysis as tfma

    write_slices(
        tmp_path,
        alone(),
        config=complete(None),
        validation=without_thresholds(blessed=True),
        models={CANDIDATE: "models/3"},
        data="records",
    )
    result = tfma.load_eval_result(str(tmp_path))
    assert (result.model_location, result.data_location) == ("models/3", "records")
    assert [key for key, _ in result.slicing_metrics] == [OVERALL, DARK, BRIGHT]
    assert result.get_metrics_for_slice() == {
        "AP": {"doubleValue": 0.5},
        "AP50": {"doubleValue": 0.75},
        "APs": {"doubleValue": "NaN"},
        "example_count": {"doubleValue": 9.0},
    }
    assert result.get_metrics_for_slice(DARK)["APs"] == {"doubleValue": 0.125}
    assert result.get_metrics_for_slice(DARK, class_id=7) == {
        "AP": {"doubleValue": 0.125},
        "AP50": {"doubleValue": 0.25},
    }
    assert result.get_metrics_for_slice(class_id=90)["AP"] == {"doubleValue": "NaN"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "eval_config.json",
        "metrics-00000-of-00001.tfrecord",
        "validations.tfrecord",
    ]


def test_both_models_and_their_difference(tmp_path: Path) -> None:
    import tensorflow_model_analysis as tfma

    config = complete(parse_eval_config('slicing_specs { feature_keys: "brightness" }'), has_baseline=True)
    models = {CANDIDATE: "models/3", BASELINE: "models/2"}
    write_slices(
        tmp_path, SLICES, config=config, validation=without_thresholds(blessed=True), models=models, data="records"
    )
    candidate = tfma.load_eval_result(str(tmp_path), model_name="candidate")
    assert candidate.get_metrics_for_slice(DARK)["AP_diff"] == {"doubleValue": -0.25}
    assert candidate.get_metrics_for_slice(DARK)["APs_diff"] == {"doubleValue": "NaN"}
    assert candidate.get_metrics_for_slice(class_id=7)["AP50_diff"] == {"doubleValue": -0.0625}
    baseline = tfma.load_eval_result(str(tmp_path), model_name="baseline")
    assert baseline.get_metrics_for_slice(BRIGHT)["AP"] == {"doubleValue": 0.0}
    assert (candidate.model_location, baseline.model_location) == ("models/3", "models/2")
    assert [(spec.name, spec.is_baseline) for spec in candidate.config.model_specs] == [
        ("candidate", False),
        ("baseline", True),
    ]


def test_the_viewer_shows_it(tmp_path: Path) -> None:
    """What the notebook's widgets are given; they need no front end for that."""
    import tensorflow_model_analysis as tfma

    write_slices(
        tmp_path,
        alone(),
        config=complete(None),
        validation=without_thresholds(blessed=True),
        models={CANDIDATE: "m"},
        data="d",
    )
    result = tfma.load_eval_result(str(tmp_path))
    spec = tfma.SlicingSpec(feature_keys=["brightness", "coco/image/license"])
    assert [row["slice"] for row in tfma.view.render_slicing_metrics(result, slicing_spec=spec).data] == [
        "brightness_X_coco/image/license:dark_X_3",
        "brightness_X_coco/image/license:bright_X_4",
    ]
    shown = tfma.view.render_slicing_metrics(result)
    overall = shown.data[0]["metrics"][""]
    assert set(overall) == {"", "classId:7", "classId:90"}
    assert overall[""]["AP"] == {"doubleValue": 0.5}
    assert overall[""][shown.config["weightedExamplesColumn"]] == {"doubleValue": 9.0}
    json.dumps(shown.data, allow_nan=False)
    over_time = tfma.view.render_time_series(tfma.make_eval_results([result, result], tfma.MODEL_CENTRIC_MODE))
    assert len(over_time.data) == 2


@pytest.mark.parametrize(
    ("bounds", "ok", "reason"),
    [
        ("lower_bound { value: 0.5 }", True, "AP is 0.5, at least 0.5"),
        ("lower_bound { value: 0.51 }", False, "AP is 0.5, not at least 0.51"),
        ("upper_bound { value: 0.5 }", True, "AP is 0.5, at most 0.5"),
        ("lower_bound { value: 0.1 } upper_bound { value: 0.4 }", False, "AP is 0.5, not at least 0.1 and at most 0.4"),
    ],
)
def test_value_thresholds(bounds: str, ok: bool, reason: str) -> None:
    text = f'metrics_specs {{ thresholds {{ key: "AP" value {{ value_threshold {{ {bounds} }} }} }} }}'
    judgement = judged(text, slices={OVERALL: SLICES[OVERALL]})
    assert judgement.verdict == (ok, [reason])
    assert judgement.validation is not None
    assert judgement.validation.validation_ok is ok


@pytest.mark.parametrize(
    ("change", "ok", "asked"),
    [
        ("absolute { value: 0.0625 } direction: HIGHER_IS_BETTER", True, "at least +0.0625"),
        ("absolute { value: 0.07 } direction: HIGHER_IS_BETTER", False, "not at least +0.07"),
        ("relative { value: 0.14 } direction: HIGHER_IS_BETTER", True, "at least +0.14 of the baseline's"),
        ("relative { value: 0.15 } direction: HIGHER_IS_BETTER", False, "not at least +0.15 of the baseline's"),
        ("absolute { value: 0.01 } direction: LOWER_IS_BETTER", False, "not at most +0.01"),
        (
            "absolute { value: 0.06 } relative { value: 0.2 } direction: HIGHER_IS_BETTER",
            False,
            "not at least +0.06 and +0.2 of the baseline's",
        ),
    ],
)
def test_change_thresholds(change: str, ok: bool, asked: str) -> None:
    text = f'metrics_specs {{ thresholds {{ key: "AP" value {{ change_threshold {{ {change} }} }} }} }}'
    judgement = judged(text, baseline=True, slices={OVERALL: SLICES[OVERALL]})
    reason = f"AP is 0.5 against 0.4375 of the baseline, a change of +0.0625 (+14.29%), {asked}"
    assert judgement.verdict == (ok, [reason])


def test_change_thresholds_ask_nothing_without_a_baseline() -> None:
    text = """metrics_specs { thresholds { key: "AP" value {
        value_threshold { lower_bound { value: 0.1 } }
        change_threshold { absolute { value: 0.3 } direction: HIGHER_IS_BETTER } } } }"""
    slices = {OVERALL: SLICES[OVERALL]}
    assert judged(text, slices=slices).verdict == (True, ["AP is 0.5, at least 0.1"])
    assert judged(text, slices=slices, baseline=True).verdict.blessed is False
    only = text.replace("value_threshold { lower_bound { value: 0.1 } }", "")
    assert judged(only, slices=slices) == (None, (True, ["no threshold is set"]))


def test_a_threshold_without_slices_holds_for_each() -> None:
    text = """metrics_specs { thresholds { key: "AP" value { value_threshold { lower_bound { value: 0.3 } } } } }"""
    judgement = judged(text)
    assert judgement.verdict == (
        False,
        [
            "brightness = dark, coco/image/license = 3: AP is 0.25, not at least 0.3",
            "AP is at least 0.3 on 2 of 3 slices",
        ],
    )


def test_thresholds_of_slices() -> None:
    text = """metrics_specs { per_slice_thresholds { key: "AP" value { thresholds {
        slicing_specs { feature_keys: ["brightness", "coco/image/license"] }
        slicing_specs { feature_values { key: "brightness" value: "dim" } }
        threshold { value_threshold { lower_bound { value: 0.6 } } } } } } }"""
    judgement = judged(text)
    assert judgement.verdict == (
        False,
        [
            "brightness = dark, coco/image/license = 3: AP is 0.25, not at least 0.6",
            "AP: no image is in a slice by brightness = dim, where it should be at least 0.6",
            "brightness = bright, coco/image/license = 4: AP is 0.625, at least 0.6",
        ],
    )
    assert judgement.validation is not None
    assert [dict(spec.feature_values) for spec in judgement.validation.missing_slices] == [{"brightness": "dim"}]


def test_thresholds_of_categories() -> None:
    text = """metrics_specs { binarize { class_ids { values: [7, 90, 8] } }
        thresholds { key: "AP50" value { value_threshold { lower_bound { value: 0.2 } } } } }"""
    judgement = judged(text, slices={OVERALL: SLICES[OVERALL]})
    assert judgement.verdict == (
        False,
        [
            "AP50 of category 90 (cat) is undefined: there is no ground truth to measure it on",
            "AP50 of category 8: there is no such metric. Are these the data set's category ids?",
            "AP50 of category 7 (dog) is 0.375, at least 0.2",
        ],
    )


def test_an_undefined_metric_is_never_met() -> None:
    value = 'metrics_specs { thresholds { key: "APs" value { value_threshold { lower_bound { value: -2 } } } } }'
    slices = {OVERALL: SLICES[OVERALL]}
    undefined = ["APs is undefined: there is no ground truth to measure it on"]
    assert judged(value, slices=slices).verdict == (False, undefined)
    change = value.replace(
        "value_threshold { lower_bound { value: -2 } }",
        "change_threshold { absolute { value: -2 } direction: HIGHER_IS_BETTER }",
    )
    assert judged(change, slices=slices, baseline=True).verdict == (False, undefined)


def test_how_many_images_a_slice_has_may_be_asked() -> None:
    text = """metrics_specs { metrics { class_name: "ExampleCount" per_slice_thresholds {
        slicing_specs { feature_keys: ["brightness", "coco/image/license"] }
        threshold { value_threshold { lower_bound { value: 5 } } } } } }"""
    assert judged(text).verdict == (
        False,
        [
            "brightness = dark, coco/image/license = 3: example_count is 4, not at least 5",
            "brightness = bright, coco/image/license = 4: example_count is 5, at least 5",
        ],
    )


def test_models_may_have_other_names(tmp_path: Path) -> None:
    text = """model_specs { name: "new" } model_specs { name: "old" is_baseline: true }
        metrics_specs { thresholds { key: "AP" value {
            change_threshold { absolute { value: 0.06 } direction: HIGHER_IS_BETTER } } } }"""
    assert judged(text, baseline=True, slices={OVERALL: SLICES[OVERALL]}).verdict.blessed is True
    lone = text.replace('model_specs { name: "old" is_baseline: true }', "")
    assert judged(lone, baseline=True, slices={OVERALL: SLICES[OVERALL]}).verdict.blessed is True


def test_the_validation_is_loaded_back(tmp_path: Path) -> None:
    import tensorflow_model_analysis as tfma

    text = 'metrics_specs { thresholds { key: "AP" value { value_threshold { lower_bound { value: 0.3 } } } } }'
    config = complete(parse_eval_config(text))
    judgement = judge_by_config(alone(), config)
    write_slices(tmp_path, alone(), config=config, validation=judgement.validation, models={CANDIDATE: "m"}, data="d")
    loaded = tfma.load_validation_result(str(tmp_path))
    assert loaded == judgement.validation
    assert loaded.validation_ok is False
    assert len(loaded.metric_validations_per_slice) == 1
    failure = loaded.metric_validations_per_slice[0].failures[0]
    assert (failure.metric_key.name, failure.metric_value.double_value.value) == ("AP", 0.25)
    assert math.isclose(failure.metric_threshold.value_threshold.lower_bound.value, 0.3)
