"""What an `EvalConfig` may ask for, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from components.coco_evaluator.tfma.eval_config import (
    complete,
    eval_config_to_json,
    params_of,
    parse_eval_config,
    read_eval_config,
)
from detection.storage.atomic import write_text
from schemas.errors import ConfigError
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow  # importing TFMA takes most of it

OURS = 'class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics"'
THRESHOLD = 'thresholds { key: "AP" value { value_threshold { lower_bound { value: 0.5 } } } }'


def test_both_formats_are_read(tmp_path: Path) -> None:
    text = f'slicing_specs {{ feature_keys: "brightness" }} metrics_specs {{ metrics {{ {OURS} }} {THRESHOLD} }}'
    (tmp_path / "a.pbtxt").write_text(text)
    config = read_eval_config(tmp_path / "a.pbtxt")
    (tmp_path / "a.json").write_text(eval_config_to_json(config))
    assert read_eval_config(tmp_path / "a.json") == config
    assert config.slicing_specs[0].feature_keys == ["brightness"]


def test_options() -> None:
    assert params_of(parse_eval_config("")).max_dets == (1, 10, 100)
    options = '{"iou_type": "segm", "max_dets": [1, 2, 5], "use_cats": false, "area_ranges": {"all": [0, 50]}}'
    params = params_of(parse_eval_config(f"metrics_specs {{ metrics {{ {OURS} config: '{options}' }} }}"))
    assert (params.iou_type, params.max_dets, params.use_cats) == ("segm", (1, 2, 5), False)
    assert params.area_ranges == {"all": (0.0, 50.0)}


def test_metrics_besides_coco_s() -> None:
    options, name = '{"metrics": ["pascal_voc_AP50"]}', "pascal_voc_AP50"
    thresholds = THRESHOLD.replace("AP", name) + THRESHOLD.replace("AP", f"segm/{name}")
    text = f"metrics_specs {{ metrics {{ {OURS} config: '{options}' }} {thresholds} }}"
    assert params_of(parse_eval_config(text)).metrics == (name,)
    with pytest.raises(ConfigError, match=f"unknown metric {name}, segm/{name}"):
        parse_eval_config(text.replace(options, ""))


def names(config: Any, *, has_baseline: bool = False) -> tuple[list[str], list[str]]:
    completed = complete(parse_eval_config(config), has_baseline=has_baseline)
    return [spec.name for spec in completed.model_specs], list(completed.metrics_specs[0].model_names)


def test_models_are_named_as_tfma_names_them() -> None:
    assert names("") == ([""], [""])
    assert names("", has_baseline=True) == (["candidate", "baseline"],) * 2
    assert names('model_specs { name: "x" }', has_baseline=True) == (["candidate", "baseline"],) * 2
    two = 'model_specs { name: "x" } model_specs { name: "y" is_baseline: true }'
    assert names(two, has_baseline=True) == (["x", "y"],) * 2
    assert names(two) == ([""], [""])


def test_an_iou_type_is_for_a_config_without_metrics() -> None:
    assert params_of(complete(None, iou_type="segm")).iou_type == "segm"
    assert params_of(complete(parse_eval_config('slicing_specs { feature_keys: "a" }'))).iou_type == "bbox"
    given = f'metrics_specs {{ metrics {{ {OURS} config: \'{{"iou_type": "segm"}}\' }} }}'
    assert params_of(complete(parse_eval_config(given))).iou_type == "segm"


def test_completing_changes_nothing_given() -> None:
    config = parse_eval_config(f"metrics_specs {{ {THRESHOLD} }}")
    before = config.SerializeToString()
    completed = complete(config)
    assert config.SerializeToString() == before
    assert [metric.class_name for spec in completed.metrics_specs for metric in spec.metrics] == ["CocoMetrics"]
    assert len(completed.slicing_specs) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"slicingSpecs": [{"featureKey": ["a"]}]}', 'no EvalConfig: .* has no field named "featureKey"'),
        ("slicing_specs { feature_key: 3 }", "no EvalConfig: 1:17 : .* has no field"),
        ("cross_slicing_specs { }", "c: cross_slicing_specs is not honoured"),
        ('slicing_specs { slice_keys_sql: "a" }', r"slicing_specs\[0\]: slice_keys_sql is not honoured"),
        (
            'slicing_specs { feature_keys: "a" feature_values { key: "a" value: "b" } }',
            r"slicing_specs\[0\]: a stands in feature_keys and feature_values",
        ),
        ("options { min_slice_size { value: 3 } }", "options: min_slice_size is not honoured"),
        ("options { compute_confidence_intervals { value: true } }", "compute_confidence_intervals is not honoured"),
        ('model_specs { example_weight_key: "w" }', r"model_specs\[0\]: example_weight_key is not honoured"),
        ('model_specs { signature_name: "eval" }', r"signature_name: 'eval'; the evaluator calls 'serving_default'"),
        ("model_specs { is_baseline: true }", "model_specs: 1 models, 1 of them with is_baseline"),
        ('model_specs { name: "a" } model_specs { name: "b" }', "2 models, 0 of them with is_baseline"),
        (
            'model_specs { name: "a" } model_specs { name: "a" is_baseline: true }',
            "model_specs: two models of one name",
        ),
        ('metrics_specs { query_key: "a" }', r"metrics_specs\[0\]: query_key is not honoured"),
        ("metrics_specs { aggregate { } }", r"metrics_specs\[0\]: aggregate is not honoured"),
        (
            "metrics_specs { binarize { k_list { values: 1 } } }",
            r"metrics_specs\[0\]\.binarize: k_list is not honoured",
        ),
        (
            'metrics_specs { metrics { class_name: "AUC" } }',
            r"metrics\[0\]: unknown metric 'AUC' of the module ''\. Known are 'CocoMetrics' of .*'ExampleCount'",
        ),
        (
            'metrics_specs { metrics { class_name: "CocoMetrics" module: "mine" } }',
            r"metrics\[0\]: unknown metric 'CocoMetrics' of the module 'mine'\. Known are 'CocoMetrics'",
        ),
        (f"metrics_specs {{ metrics {{ {OURS} config: '[]' }} }}", "CocoMetrics: Input should be a valid dict"),
        (f"metrics_specs {{ metrics {{ {OURS} config: '{{' }} }}", r"config: '\{' is no JSON: "),
        (
            f"metrics_specs {{ metrics {{ {OURS} config: '{{\"max_dets\": 3}}' }} }}",
            r"config: max_dets: Input should be a valid tuple, not 3",
        ),
        (
            f"metrics_specs {{ metrics {{ {OURS} config: '{{\"max_dets\": [3]}}' }} }}",
            r"config: max_dets \(3,\): bbox takes 3 ascending",
        ),
        (
            f"metrics_specs {{ metrics {{ {OURS} config: '{{\"side\": 3}}' }} }}",
            r"config: side: Extra inputs are not permitted, not 3\. Options are iou_type, max_dets",
        ),
        (
            f"metrics_specs {{ metrics {{ {OURS} threshold {{ }} }} }}",
            r"metrics\[0\]: CocoMetrics has many metrics, so a threshold has to name one",
        ),
        (
            f"metrics_specs {{ {THRESHOLD.replace('AP', 'mAP')} }}",
            r"metrics_specs\[0\]\.thresholds: unknown metric mAP\. Known for bbox are AP, AP50, AP75, ",
        ),
        (
            f"metrics_specs {{ binarize {{ class_ids {{ values: 1 }} }} {THRESHOLD.replace('AP', 'AR1')} }}",
            r"unknown metric AR1\. Known for a category are AP, AP50, segm/AP, segm/AP50, keypoints/AP, ",
        ),
        (
            'metrics_specs { thresholds { key: "AP" value { } } }',
            r"thresholds\[AP\]: asks nothing\. Give a value_threshold or a change_threshold",
        ),
        (
            'metrics_specs { thresholds { key: "AP" value { value_threshold { } } } }',
            r"thresholds\[AP\]\.value_threshold: asks nothing\. Give lower_bound or upper_bound",
        ),
        (
            'metrics_specs { thresholds { key: "AP" value { change_threshold { } } } }',
            r"change_threshold: asks nothing\. Give absolute or relative",
        ),
        (
            'metrics_specs { thresholds { key: "AP" value { change_threshold { absolute { value: 1 } } } } }',
            r"change_threshold: has no direction\. Give HIGHER_IS_BETTER or LOWER_IS_BETTER",
        ),
        (
            'metrics_specs { per_slice_thresholds { key: "AP" value { thresholds { } } } }',
            r"per_slice_thresholds\[AP\]\.thresholds\[0\]: no slicing_specs\. Name the slices",
        ),
        (
            'metrics_specs { metrics { class_name: "ExampleCount" threshold { value_threshold { } } } }',
            r"metrics\[0\]\.threshold\.value_threshold: asks nothing",
        ),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^c: .*{message.removeprefix('c: ')}"):
        parse_eval_config(text, where="c")


def test_two_entries_have_the_same_options() -> None:
    text = f"metrics_specs {{ metrics {{ {OURS} }} metrics {{ {OURS} config: '{{\"use_cats\": false}}' }} }}"
    with pytest.raises(ConfigError, match=r"metrics\[1\]\.config: differs from that of EvalConfig: metrics_specs\[0\]"):
        parse_eval_config(text)
    parse_eval_config(f"metrics_specs {{ metrics {{ {OURS} }} metrics {{ {OURS} config: '{{}}' }} }}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot read the EvalConfig"):
        read_eval_config(tmp_path / "nowhere.json")


def test_a_file_on_cloud_storage(gcs: Bucket) -> None:
    path = f"{gcs.path}/eval_config.pbtxt"
    with pytest.raises(ConfigError, match=r"cannot read the EvalConfig: .*No such file"):
        read_eval_config(path)
    write_text(path, "slicing_specs {}")
    assert len(read_eval_config(path).slicing_specs) == 1
    with pytest.raises(ConfigError, match=r"evaluate\.eval_config s3://b/x: s3:// is not supported"):
        read_eval_config("s3://b/x")
