"""PASCAL VOC's and Open Images' metrics: the TF Object Detection API's worked cases, a plain reference, merging."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from detection.coco.average_precision import ancestors_of, envelope_area
from detection.coco.params import make_params
from schemas.errors import ConfigError, DataError
from tests.detection.coco.generated_cases import generate
from tests.detection.coco.od_api_cases import as_coco, keypoints_as_coco, read_cases

_NAMES = [
    "pascal_voc_AP50",
    "pascal_voc_AP70",
    "pascal_voc_11_point_AP50",
    "weighted_pascal_voc_AP50",
    "open_images_AP50",
    "open_images_challenge_AP50",
    "precision_at_recall_25_75_AP50",
    "precision_at_recall_verified_0_100_AP50",
]


@pytest.mark.parametrize(
    ("iou_type", "name", "original"),
    [
        ("bbox", "pascal_voc_AP50", "pascal_voc_detection"),
        ("bbox", "pascal_voc_AP70", "pascal_voc_detection_iou_0.7"),
        ("bbox", "weighted_pascal_voc_AP50", "weighted_pascal_voc_detection"),
        ("bbox", "open_images_AP50", "oid_V2_detection"),
        ("bbox", "open_images_challenge_AP50", "oid_challenge_detection"),
        ("bbox", "precision_at_recall_0_50_AP50", "precision_at_recall_0_0.5"),
        ("bbox", "precision_at_recall_25_75_AP50", "precision_at_recall_0.25_0.75"),
        ("bbox", "precision_at_recall_50_100_AP50", "precision_at_recall_0.5_1"),
        ("bbox", "precision_at_recall_verified_0_100_AP50", "precision_at_recall_0_1_skip_unlabeled"),
        ("segm", "pascal_voc_AP50", "pascal_voc_instance_segmentation"),
        ("segm", "weighted_pascal_voc_AP50", "weighted_pascal_voc_instance_segmentation"),
        ("segm", "open_images_challenge_AP50", "oid_challenge_segmentation"),
    ],
)
def test_the_od_apis_worked_cases(oracle_dir: Path, iou_type: str, name: str, original: str) -> None:
    cases = read_cases(oracle_dir)
    metrics = evaluate(*as_coco(cases), iou_type, metrics=[name])
    overall, *per_category = cases["results"][original].values()
    assert metrics.by_name[name] == pytest.approx(overall, abs=1e-12)
    assert [row[name] for row in metrics.per_category] == pytest.approx(per_category, abs=1e-12)


@pytest.mark.parametrize("mask", [None, {"size": [20, 40], "counts": [800]}], ids=["none", "empty"])
@pytest.mark.parametrize("name", ["pascal_voc_AP50", "open_images_challenge_AP50"])
def test_an_object_without_a_mask_is_matched_by_its_box(name: str, mask: Any) -> None:
    """It counts as an object; the first detection of it does not count, a second one is wrong, as in the original."""
    square = [[0, 0, 8, 0, 8, 8, 0, 8]]
    far = [[20, 0, 28, 0, 28, 8, 20, 8]]
    tree: dict[str, list[Any]] = {
        "images": [{"id": 1, "height": 20, "width": 40}],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"id": 1, "bbox": [0, 0, 8, 8], "area": 64, "segmentation": square},
            {"id": 2, "bbox": [20, 0, 8, 8], "area": 64} | ({"segmentation": mask} if mask else {}),
        ],
    }
    for annotation in tree["annotations"]:
        annotation |= {"image_id": 1, "category_id": 1}
    scored = [(far, 0.9), (square, 0.8), (far, 0.7)]
    detections = [
        {"image_id": 1, "category_id": 1, "score": score, "segmentation": polygons} for polygons, score in scored
    ]
    metrics = evaluate(tree, detections, "segm", metrics=[name])
    assert metrics.by_name[name] == pytest.approx(0.5)
    if mask is None:  # for COCO it is a region to ignore
        assert metrics.by_name["AP50"] == pytest.approx(1.0)
        with pytest.raises(DataError, match="missing segmentation: annotation 2"):
            evaluate(tree, detections, "segm")


def test_the_worked_case_of_keypoints(oracle_dir: Path) -> None:
    case = read_cases(oracle_dir)["coco_keypoints"]
    metrics = evaluate(*keypoints_as_coco(case), "keypoints", oks_sigmas=case["sigmas"])
    # The original names COCOeval's values in its order, as if they were those of boxes.
    assert metrics.stats == pytest.approx(list(case["results"].values()), abs=1e-9)


def test_the_worked_case_of_lvis(oracle_dir: Path) -> None:
    cases = read_cases(oracle_dir)
    case = cases["lvis"]
    tree, detections = as_coco(cases)
    ids = {extra["id"]: name for name, extra in case["extra"].items()}
    order = {name: position for position, name in enumerate(cases["images"], start=1)}
    renamed = {order[name]: image_id for image_id, name in ids.items()}
    for entry in [*tree["annotations"], *detections]:
        entry["image_id"] = renamed[entry["image_id"]]
    for detection in detections:
        del detection["bbox"]  # so that its area is that of the mask
    tree["categories"] = case["categories"]
    tree["images"] = [
        {
            "id": extra["id"],
            "height": 200,
            "width": 200,
            "neg_category_ids": extra["verified_neg"],
            "not_exhaustive_category_ids": extra["not_exhaustive"],
        }
        for extra in case["extra"].values()
    ]
    metrics = evaluate(tree, detections, "segm", lvis=True)
    assert metrics.stats == pytest.approx(list(case["results"].values()), abs=1e-9)


def _random_cases(seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Returns a data set with difficult annotations, groups and ties of scores."""
    ground_truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    for annotation in ground_truth["annotations"]:
        annotation |= {"difficult": bool(rng.random() < 0.2), "is_group_of": bool(rng.random() < 0.2)}
    for image in ground_truth["images"]:
        image["neg_category_ids"] = [c["id"] for c in ground_truth["categories"] if rng.random() < 0.3]
    return ground_truth, detections


def _iou(first: Any, second: Any) -> float:
    width = min(first[0] + first[2], second[0] + second[2]) - max(first[0], second[0])
    height = min(first[1] + first[3], second[1] + second[3]) - max(first[1], second[1])
    shared = max(width, 0.0) * max(height, 0.0)
    union = first[2] * first[3] + second[2] * second[3] - shared
    return float(shared / union) if union else 0.0


def _voc(tree: Any, detections: Any, category: int, threshold: float) -> tuple[list[tuple[float, float]], int]:
    """Returns (recall, precision) after each counted detection, as the development kit goes through them."""
    truth = [one for one in tree["annotations"] if one["category_id"] == category]
    positives = sum(not (one["difficult"] or one.get("ignore")) for one in truth)
    ours = [one for one in detections if one["category_id"] == category and min(one["bbox"][2:]) > 0]
    taken, curve, hits, misses = set(), [], 0, 0
    for one in sorted(ours, key=lambda one: (-one["score"], one["image_id"])):
        candidates = [truth_ for truth_ in truth if truth_["image_id"] == one["image_id"]]
        best = max(candidates, key=lambda other: _iou(one["bbox"], other["bbox"]), default=None)
        if best is not None and _iou(one["bbox"], best["bbox"]) >= threshold:
            if best["difficult"] or best.get("ignore"):
                continue
            hits, misses = (hits, misses + 1) if best["id"] in taken else (hits + 1, misses)
            taken.add(best["id"])
        else:
            misses += 1
        curve.append((hits / max(positives, 1), hits / (hits + misses)))
    return curve, positives


@pytest.mark.parametrize("seed", range(300, 306))
def test_voc_equals_a_plain_reference(seed: int) -> None:
    tree, detections = _random_cases(seed)
    metrics = evaluate(tree, detections, metrics=["pascal_voc_AP50", "pascal_voc_11_point_AP50"])
    for row in metrics.per_category:
        curve, positives = _voc(tree, detections, row["id"], 0.5)
        recalls = [0.0, *(recall for recall, _ in curve)]
        best = [max((p for r, p in curve[i:]), default=0.0) for i in range(len(curve))]
        area = sum(best[i] * (recalls[i + 1] - recalls[i]) for i in range(len(curve)))
        points = [max((p for r, p in curve if r >= at / 10 - 1e-9), default=0.0) for at in range(11)]
        assert row["pascal_voc_AP50"] == pytest.approx(area if positives else -1.0, abs=1e-9)
        assert row["pascal_voc_11_point_AP50"] == pytest.approx(np.mean(points) if positives else -1.0, abs=1e-9)


def test_the_two_integrations_by_hand() -> None:
    precision, recall = np.array([1.0, 0.5, 2 / 3]), np.array([0.5, 0.5, 1.0])
    assert envelope_area(precision, recall) == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert envelope_area(precision, recall, 11) == pytest.approx((6 + 5 * 2 / 3) / 11)
    assert envelope_area(precision[:0], recall[:0], 11) == envelope_area(precision[:0], recall[:0]) == 0.0


@pytest.mark.parametrize("seed", range(310, 314))
def test_any_partition_gives_the_same_values(seed: int) -> None:
    tree, detections = _random_cases(seed)
    params, rng = make_params(metrics=_NAMES), np.random.default_rng(seed)
    shards = [MetricsAccumulator(tree["categories"], params) for _ in range(3)]
    for index in rng.permutation(len(tree["images"])):
        image = tree["images"][index]
        entries = [
            [one for one in some if one["image_id"] == image["id"]] for some in (tree["annotations"], detections)
        ]
        shards[rng.integers(3)].add([image], *entries)
    merged = MetricsAccumulator(tree["categories"], params)
    for shard in reversed(shards):
        merged.merge(MetricsAccumulator.from_bytes(shard.to_bytes(), tree["categories"], params))
    whole, result = evaluate(tree, detections, metrics=_NAMES), merged.result()
    assert result.by_name == whole.by_name
    assert result.per_category == whole.per_category


def test_a_category_counts_for_its_ancestors() -> None:
    categories = [
        {"id": 1, "name": "animal", "supercategory": "animal"},
        {"id": 2, "name": "dog", "supercategory": "animal"},
        {"id": 3, "name": "terrier", "supercategory": "dog"},
        {"id": 4, "name": "car", "supercategory": "vehicle"},
    ]
    assert ancestors_of(categories) == {1: [], 2: [1], 3: [2, 1], 4: []}
    exported = [{"id": 0, "name": "Fruits", "supercategory": "none"}]
    exported += [{"id": number, "name": f"fruit {number}", "supercategory": "Fruits"} for number in (1, 2)]
    assert not any(ancestors_of(exported).values()), "the root of Roboflow's exports is no class"
    image = {"id": 1, "neg_category_ids": [2]}
    terrier = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10]}
    found = [{**terrier, "category_id": category, "score": 0.5} for category in (1, 4)]
    tree = {"images": [image], "annotations": [terrier], "categories": categories}
    metrics = evaluate(tree, found, metrics=["open_images_AP50", "pascal_voc_AP50", "open_images_challenge_AP50"])
    assert [row["open_images_AP50"] for row in metrics.per_category] == [1.0, 0.0, 0.0, -1.0]
    assert [row["pascal_voc_AP50"] for row in metrics.per_category] == [-1.0, -1.0, 0.0, -1.0]
    expanded = {**tree, "annotations": [terrier, {**terrier, "id": 2, "category_id": 2}]}
    again = evaluate(expanded, found, metrics=["open_images_AP50"])
    assert [row["open_images_AP50"] for row in again.per_category] == [1.0, 0.0, 0.0, -1.0]


def test_detections_of_a_positive_label_without_boxes_are_false() -> None:
    """Those of categories without a label are not counted; a label of a category is one of its ancestors."""
    categories = [
        {"id": 1, "name": "animal", "supercategory": "animal"},
        {"id": 2, "name": "dog", "supercategory": "animal"},
        {"id": 3, "name": "car", "supercategory": "vehicle"},
    ]
    images: list[dict[str, Any]] = [{"id": 1, "neg_category_ids": []}, {"id": 2, "neg_category_ids": []}]
    annotations = [
        {"id": category, "image_id": 1, "category_id": category, "bbox": [0, 0, 10, 10]} for category in (1, 2, 3)
    ]
    found = [
        {"image_id": image, "category_id": category, "bbox": [0, 0, 10, 10], "score": 0.5 if image == 1 else 0.9}
        for image in (1, 2)
        for category in (1, 2, 3)
    ]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    for labels, expected in (([], [1.0, 1.0, 1.0]), ([2], [0.5, 0.5, 1.0]), ([3], [1.0, 1.0, 0.5])):
        images[1]["pos_category_ids"] = labels
        metrics = evaluate(tree, found, metrics=["open_images_challenge_AP50"])
        assert [row["open_images_challenge_AP50"] for row in metrics.per_category] == expected


@pytest.mark.parametrize(
    "keys", [{"is_group_of": 1, "iscrowd": 0}, {"group_of": 1}, {"iscrowd": 1}, {"is_group_of": 0}]
)
def test_groups_and_crowds(keys: dict[str, int]) -> None:
    single = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}
    group = {"id": 2, "image_id": 1, "category_id": 1, "bbox": [50, 50, 40, 40], **keys}
    found = [(0.9, [50, 50, 40, 10]), (0.8, [0, 0, 10, 10])]  # inside the group, but hardly like it
    detections = [{"image_id": 1, "category_id": 1, "score": score, "bbox": box} for score, box in found]
    tree = {"images": [{"id": 1}], "annotations": [single, group], "categories": [{"id": 1, "name": "dog"}]}
    metrics = evaluate(tree, detections, metrics=["pascal_voc_AP50", "open_images_AP50", "open_images_challenge_AP50"])
    values = [metrics.by_name[name] for name in ("open_images_AP50", "open_images_challenge_AP50", "pascal_voc_AP50")]
    assert values == pytest.approx([1.0, 1.0, 0.25] if any(keys.values()) else [0.25] * 3)


@pytest.mark.parametrize("name", ["pascal_voc", "pascal_voc_AP00", "pascal_voc_0_50_AP50", "precision_at_recall_AP50"])
def test_an_unknown_metric_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"metrics: '{name}' is no metric: write a kind"):
        make_params(metrics=[name])


def test_keypoints_lvis_and_pooled_categories_have_coco_s_metrics_only() -> None:
    for options in ({"iou_type": "keypoints"}, {"lvis": True}, {"use_cats": False}):
        with pytest.raises(ConfigError, match="metrics pascal_voc_AP50: only of boxes or masks"):
            make_params(metrics=["pascal_voc_AP50"], **options)
