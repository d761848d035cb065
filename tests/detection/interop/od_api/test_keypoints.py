"""A CenterNet with keypoints in a pipeline.config: its network, its losses, its post-processing, its metric."""

from pathlib import Path
from typing import Any

import pytest

from detection.interop.od_api.configuration.pipeline_config import convert_pipeline_config
from detection.models.registry import detector_config
from schemas.metrics import COCO_KEYPOINTS
from tests.detection.interop.od_api.test_pipeline_config import zoo_texts

NAME = "centernet_resnet50_v1_fpn_512x512_kpts_coco17_tpu-8"
# COCO's, of `pycocotools.cocoeval.Params`.
SIGMAS = [0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89]


@pytest.fixture
def text(oracle_dir: Path) -> str:
    return zoo_texts(oracle_dir)[NAME]


def test_the_zoo_s_keypoints_convert(text: str) -> None:
    conversion = convert_pipeline_config(text)
    assert conversion.unsupported == ()
    assert conversion.keys["model.name"] == "centernet-r50-kpts"
    assert conversion.keys["evaluate.iou_types"] == ["bbox", "keypoints"]
    assert list(conversion.keys["evaluate.oks_sigmas"]) == ["person"]
    sigmas = dict(zip(COCO_KEYPOINTS, [sigma / 10 for sigma in SIGMAS], strict=True))
    assert conversion.keys["evaluate.oks_sigmas"]["person"] == pytest.approx(sigmas)
    model = conversion.config("a pipeline.config").model
    found = detector_config(model.name, overrides=model.overrides, postprocess=model.postprocess)
    preset = detector_config(model.name, overrides={"padding": "black"}, postprocess={"score_threshold": 0.0})
    assert found.model_dump() == preset.model_dump()


def test_other_values_of_the_task(text: str) -> None:
    start = text.index("keypoint_label_to_std {")
    end = text.index("keypoint_regression_loss_weight")
    task = """keypoint_label_to_std { key: "nose" value: 0.5 }
      candidate_ranking_mode: "gaussian_weighted" std_dev_multiplier: 2.0 rescore_instances: true
      """
    changed = text[:start] + task + text[end:].replace("offset_peak_radius: 3", "offset_peak_radius: 1", 1)
    changed = changed.replace('task_name: "human_pose"\n      task_loss_weight: 1.0', "task_loss_weight: 2.0", 1)
    conversion = convert_pipeline_config(changed)
    assert conversion.unsupported == ()
    model = conversion.config("a pipeline.config").model
    config = detector_config(
        model.name, image_size=model.image_size, overrides=model.overrides, postprocess=model.postprocess
    )
    assert config.keypoints.spread == {"nose": 0.5}
    weights = {name: getattr(config.keypoints, f"{name}_loss_weight") for name in ("heatmap", "offset", "regression")}
    assert weights == pytest.approx({"heatmap": 2.0, "offset": 2.0, "regression": 0.2})
    assert (config.keypoints.radius, config.keypoints.per_keypoint_offset) == (1, True)
    changes: dict[str, Any] = {"candidate_ranking_mode": "gaussian_weighted", "std_dev_multiplier": 2.0}
    expected = detector_config("centernet-r50-kpts").postprocess.keypoints.model_copy(
        update=changes | {"rescore_instances": True}
    )
    assert config.postprocess.keypoints == expected


def test_heads_of_other_channels(text: str) -> None:
    heads = {
        "object_center_params {": ["center"],
        "object_detection_task {": ["scale", "offset"],
        "keypoint_estimation_task {": ["heatmap", "offset", "regress"],
    }
    for message, names in heads.items():
        assert text.count(message) == 1
        layers = " ".join(f"{name}_head_params {{ num_filters: 64 kernel_sizes: 3 }}" for name in names)
        text = text.replace(message, f"{message} {layers}")
    conversion = convert_pipeline_config(text)
    assert conversion.unsupported == ()
    assert conversion.keys["model.overrides.head.filters"] == 64
    same = "_head_params { num_filters: 64 kernel_sizes: 3 }"
    text = text.replace(f"scale{same}", "").replace(f"regress{same}", "regress_head_params {}")
    text = text.replace(f"center{same}", "center_head_params { num_filters: [32, 64] kernel_sizes: [5, 3] }")
    conversion = convert_pipeline_config(text)
    assert conversion.unsupported == ()
    config = conversion.config("a pipeline.config").model
    convs = {"center": ((32, 5), (64, 3)), "size": ((256, 3),), "keypoint_regression": ()}
    assert detector_config(config.name, overrides=config.overrides).head.convs == convs


def test_each_category_s_sigmas(text: str) -> None:
    metrics = """
  parameterized_metric { coco_keypoint_metrics {
      class_label: "dog"
      keypoint_label_to_sigmas { key: "tail" value: 0.5 }
      keypoint_label_to_sigmas { key: "snout" value: 0.25 } } }
  parameterized_metric { coco_keypoint_metrics { class_label: "cat" } }
"""
    conversion = convert_pipeline_config(text.replace("eval_config: {", "eval_config: {" + metrics, 1))
    assert conversion.unsupported == ()
    config = conversion.config("a pipeline.config").evaluate
    assert isinstance(config.oks_sigmas, dict)
    assert {*config.oks_sigmas} == {"dog", "person"}  # the cat has the original's default, which is also ours
    assert config.oks_sigmas["dog"] == {"tail": 0.5, "snout": 0.25}


@pytest.mark.parametrize(
    ("old", "new", "remark"),
    [
        ("offset_peak_radius: 3", "offset_peak_radius: 3 predict_depth: true", "keypoints have no depth here"),
        ("offset_peak_radius: 3", "argmax_postprocessing: true", "candidates are refined peaks here"),
        (
            "min_box_overlap_iou: 0.7",
            "center_head_params { num_filters: [8, 8] kernel_sizes: 3 }",
            "2 num_filters, but 1 kernel_sizes",
        ),
        ("keypoint_label_map_path", 'keypoint_estimation_task { task_name: "b" }\nkeypoint_label_map_path', "one task"),
    ],
)
def test_what_is_listed(old: str, new: str, remark: str, text: str) -> None:
    assert old in text
    listed = convert_pipeline_config(text.replace(old, new, 1)).unsupported
    assert any(remark in str(one) for one in listed)
