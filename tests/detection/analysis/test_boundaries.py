"""Boundary IoU of masks: by hand, against plain loops over the whole image, and what an analysis makes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import Analysis, Boundaries, read_analysis, write_analysis
from detection.analysis.boundaries import boundary_width, inner_boundary, mask_overlap
from detection.analysis.comparison import BOUNDARY_IOU, Change, compare_detections
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from tests.detection.coco.generated_cases import generate, pycocotools_eval

Mask = npt.NDArray[np.bool_]
QUICK = AnalysisConfig(replicates=0)


def rle(drawn: Mask) -> dict[str, Any]:
    encoded = mask.encode(np.asfortranarray(drawn.astype(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def rectangle(shape: tuple[int, int], top: int, left: int, height: int, width: int) -> Mask:
    drawn = np.zeros(shape, bool)
    drawn[top : top + height, left : left + width] = True
    return drawn


def plain_boundary(drawn: Mask, width: int) -> Mask:
    """The paper's definition, pixel by pixel: erosion by 3 x 3, repeated, nothing beyond the image."""
    core = drawn.copy()
    for _ in range(width):
        before = core.copy()
        for y, x in np.argwhere(before):
            for v in range(y - 1, y + 2):
                for u in range(x - 1, x + 2):
                    if not (0 <= v < drawn.shape[0] and 0 <= u < drawn.shape[1] and before[v, u]):
                        core[y, x] = False
    return drawn & ~core


def plain_iou(first: Mask, second: Mask) -> float:
    either = int((first | second).sum())
    return int((first & second).sum()) / either if either else 0.0


def plain_overlap(first: Mask, second: Mask) -> tuple[float, float]:
    height, width = first.shape
    near = max(1, round(0.02 * float(np.sqrt(height**2 + width**2))))
    return plain_iou(first, second), plain_iou(plain_boundary(first, near), plain_boundary(second, near))


def blobs(seed: int, shape: tuple[int, int]) -> Mask:
    """Some rectangles with holes and single pixels, many of them at the image's border."""
    rng = np.random.default_rng(seed)
    drawn = np.zeros(shape, bool)
    for index in range(int(rng.integers(1, 5))):
        top, left = (int(rng.integers(-8, side)) for side in shape)
        height, width = (int(rng.integers(1, side)) for side in shape)
        drawn[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = index != 2
    return drawn ^ (rng.random(shape) < 0.01)


@pytest.mark.parametrize(("size", "width"), [((480, 640), 16), ((30, 40), 1), ((1, 1), 1), ((3000, 4000), 100)])
def test_the_boundary_is_two_percent_of_the_diagonal(size: tuple[int, int], width: int) -> None:
    assert boundary_width(*size) == width


def test_a_boundary_by_hand() -> None:
    drawn = rectangle((12, 12), 2, 3, 7, 6)
    expected = drawn & ~rectangle((12, 12), 4, 5, 3, 2)
    np.testing.assert_array_equal(inner_boundary(drawn, 2), expected)
    # At the image's border there is a contour, too.
    np.testing.assert_array_equal(inner_boundary(np.ones((5, 4), bool), 1), ~rectangle((5, 4), 1, 1, 3, 2))


def test_overlaps_by_hand() -> None:
    # A diagonal of 100 pixels: boundaries two wide, 20 x 20 minus 16 x 16 pixels.
    shape = (60, 80)
    first, second = rectangle(shape, 10, 10, 20, 20), rectangle(shape, 10, 11, 20, 20)
    mask_iou, boundary_iou = mask_overlap(rle(first), rle(second))
    assert mask_iou == 380 / 420
    # In common: 19 pixels in each of four rows, and in 16 rows one column at either side.
    assert boundary_iou == (4 * 19 + 16 * 2) / (2 * 144 - 4 * 19 - 16 * 2)


@pytest.mark.parametrize("seed", range(12))
def test_crops_equal_the_whole_image(seed: int) -> None:
    shape = ((40, 70), (90, 60), (33, 33))[seed % 3]
    first, second = blobs(seed, shape), blobs(seed + 100, shape)
    assert mask_overlap(rle(first), rle(second)) == plain_overlap(first, second)
    assert mask_overlap(rle(first), rle(first & second)) == plain_overlap(first, first & second)


@pytest.mark.parametrize("place", [(0, 0), (0, 49), (29, 0), (29, 49), (11, 17)])
def test_single_pixels(place: tuple[int, int]) -> None:
    one = rectangle((30, 50), *place, 1, 1)
    other = rectangle((30, 50), 5, 5, 1, 1)
    assert mask_overlap(rle(one), rle(one)) == (1.0, 1.0)
    assert mask_overlap(rle(one), rle(other)) == (0.0, 0.0)
    assert mask_overlap(rle(one), rle(~one)) == (0.0, 0.0)
    assert mask_overlap(rle(one), rle(np.ones((30, 50), bool))) == plain_overlap(one, np.ones((30, 50), bool))


def test_empty_masks() -> None:
    empty, drawn = rle(np.zeros((20, 30), bool)), rle(rectangle((20, 30), 3, 4, 5, 6))
    assert mask_overlap(empty, empty) == mask_overlap(empty, drawn) == mask_overlap(drawn, empty) == (0.0, 0.0)


def test_a_mask_within_another_has_a_boundary_of_its_own() -> None:
    large, small = rectangle((100, 100), 5, 5, 90, 90), rectangle((100, 100), 12, 12, 76, 76)
    mask_iou, boundary_iou = mask_overlap(rle(large), rle(small))
    assert mask_iou > 0.7
    assert boundary_iou == 0.0


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.tuples(st.integers(1, 90), st.integers(1, 90)))
@settings(max_examples=60, deadline=None)
def test_overlaps_are_symmetric_and_bounded(one: int, other: int, shape: tuple[int, int]) -> None:
    shape = (shape[0] + 1, shape[1] + 1)
    first, second = rle(blobs(one, shape)), rle(blobs(other, shape))
    overlap = mask_overlap(first, second)
    assert overlap == mask_overlap(second, first)
    assert 0.0 <= min(overlap) <= max(overlap) <= 1.0
    assert mask_overlap(first, first) == ((1.0, 1.0) if mask.area(first) else (0.0, 0.0))


def segm_analysis(*arguments: Any, **options: Any) -> Analysis:
    return analyse(*arguments, params=make_params("segm"), options=QUICK.model_copy(update=options))


def measured(*arguments: Any, **options: Any) -> Boundaries:
    found = segm_analysis(*arguments, **options).boundaries
    assert found is not None
    return found


def drawn_of(segmentation: Any, side: int = 200) -> Mask:
    encoded = segmentation if isinstance(segmentation, dict) else mask.merge(mask.frPyObjects(segmentation, side, side))
    return np.asarray(mask.decode(encoded), bool)


@pytest.mark.parametrize("iou", [0.5, 0.75])
@pytest.mark.parametrize("seed", [2, 5])
def test_means_equal_those_of_pycocotools_matches(seed: int, iou: float) -> None:
    ground_truth, detections = generate(seed)
    evaluation = pycocotools_eval(ground_truth, detections, "segm")
    threshold = int(np.argmin(np.abs(evaluation.params.iouThrs - iou)))
    rows = []
    for entry in evaluation.evalImgs:
        if entry is None or entry["aRng"] != evaluation.params.areaRng[0]:
            continue
        for detection_id, match, ignored in zip(
            entry["dtIds"], entry["dtMatches"][threshold], entry["dtIgnore"][threshold], strict=True
        ):
            if match and not ignored:
                annotation = evaluation.cocoGt.anns[int(match)]
                pair = [drawn_of(one["segmentation"]) for one in (annotation, evaluation.cocoDt.anns[detection_id])]
                rows.append((annotation["category_id"], annotation["area"], *plain_overlap(*pair)))
    assert len(rows) > 3
    found = measured(ground_truth, detections, iou=iou)
    ranges = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
    by_area = {name: [row for row in rows if low <= row[1] <= high] for name, (low, high) in ranges.items()}
    by_category = {number: [row for row in rows if row[0] == number] for number in {row[0] for row in rows}}
    assert (found.areas.keys(), found.categories.keys()) == (by_area.keys(), by_category.keys())
    for name, theirs in {**by_area, **by_category}.items():
        overlap = found.areas[name] if isinstance(name, str) else found.categories[name]
        assert overlap.matches == len(theirs)
        assert overlap.poor_boundaries == sum(row[2] >= 0.75 and row[3] < 0.5 for row in theirs)
        if theirs:
            means = np.mean([row[2:] for row in theirs], axis=0)
            assert (overlap.mask_iou, overlap.boundary_iou) == pytest.approx(tuple(means))
        else:
            assert overlap.mask_iou is overlap.boundary_iou is None
    lowest = sorted(row[3] for row in rows)[: QUICK.worst]
    assert [match.boundary_iou for match in found.worst] == pytest.approx(lowest)


SHAPE = (60, 80)
ROUGH = ((5, 5, 50, 50), (8, 8, 44, 44))  # a large mask, detected three pixels too small at each side


def case(*pairs: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]) -> tuple[dict[str, Any], list[Any]]:
    """Ground truth and its detections as rectangles (top, left, height, width), each in an image of its own."""
    drawn = [[rectangle(SHAPE, *one) for one in pair] for pair in pairs]
    ids = range(1, len(pairs) + 1)
    ground_truth = {
        "images": [{"id": at, "height": SHAPE[0], "width": SHAPE[1], "file_name": f"{at}.jpg"} for at in ids],
        "annotations": [
            {
                "id": at,
                "image_id": at,
                "category_id": 1 + at % 2,
                "iscrowd": 0,
                "area": int(truth.sum()),
                "bbox": mask.toBbox(rle(truth)).tolist(),
                "segmentation": rle(truth),
            }
            for at, (truth, _) in zip(ids, drawn, strict=True)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }
    detections = [
        {"image_id": at, "category_id": 1 + at % 2, "score": 0.1 * at, "segmentation": rle(detected)}
        for at, (_, detected) in zip(ids, drawn, strict=True)
    ]
    return ground_truth, detections


def test_a_good_mask_with_a_poor_boundary_is_counted() -> None:
    exact = ((5, 5, 50, 50), (5, 5, 50, 50))
    found = measured(*case(exact, ROUGH, ((5, 5, 50, 50), (30, 30, 9, 9))))
    overlap = found.areas["all"]
    assert (overlap.matches, overlap.poor_boundaries) == (2, 1)
    assert overlap.mask_iou == pytest.approx((1 + 44**2 / 50**2) / 2)
    assert overlap.boundary_iou == 0.5
    # Image 2 is of category 1; what matches nothing is no true positive.
    assert {number: one.boundary_iou for number, one in found.categories.items()} == {1: 0.0, 2: 1.0}
    assert [(match.image_id, match.file_name, match.detection.score) for match in found.worst] == [
        (2, "2.jpg", pytest.approx(0.2)),
        (1, "1.jpg", pytest.approx(0.1)),
    ]
    assert found.worst[0].ground_truth.mask == rle(rectangle(SHAPE, *ROUGH[0]))
    assert found.worst[0].detection.mask == rle(rectangle(SHAPE, *ROUGH[1]))
    assert found.worst[0].detection.bbox == [8.0, 8.0, 44.0, 44.0]
    assert len(measured(*case(exact, ROUGH), worst=1).worst) == 1


def test_nothing_matches() -> None:
    ground_truth, detections = case(ROUGH)
    for truth, detected in (
        (ground_truth, []),
        (ground_truth, [{**detections[0], "category_id": 1}]),
        ({**ground_truth, "annotations": []}, detections),
    ):
        found = measured(truth, detected)
        assert found.areas["all"].matches == 0
        assert found.areas["all"].boundary_iou is None
        assert (found.categories, found.worst) == ({}, [])


@pytest.mark.parametrize("iou_type", ["bbox", "keypoints"])
def test_only_masks_have_boundaries(iou_type: str) -> None:
    assert analyse(*generate(2), params=make_params(iou_type), options=QUICK).boundaries is None


def test_the_file_of_an_older_version_has_none(tmp_path: Path) -> None:
    path = tmp_path / "analysis.json"
    analysis = segm_analysis(*generate(2))
    write_analysis(path, analysis)
    assert read_analysis(path) == analysis
    content = json.loads(path.read_text())
    assert content["boundaries"]["categories"]["2"]["matches"] == measured(*generate(2)).categories[2].matches
    del content["boundaries"]
    path.write_text(json.dumps(content))
    assert read_analysis(path).boundaries is None


def test_models_are_compared_on_what_both_match() -> None:
    exact = ((5, 5, 50, 50), (5, 5, 50, 50))
    ground_truth, rough = case(ROUGH, exact, ROUGH)
    _, better = case(exact, exact, exact)
    # A model that lacks image 3 gains nothing by it.
    comparison = compare_detections(ground_truth, rough, better[:2], params=make_params("segm"), options=QUICK)
    changes = {one.id: one.metrics[BOUNDARY_IOU] for one in comparison.categories}
    assert changes == {1: Change(1.0, 1.0, 0.0, None), 2: Change(0.0, 1.0, 1.0, None)}
    assert comparison.remarks == ["Mean boundary IoU 0.500 (A), 1.000 (B), of 2 instances that both models match."]
    nothing = compare_detections(ground_truth, rough, better[1:2], params=make_params("segm"), options=QUICK)
    assert nothing.categories[1].metrics[BOUNDARY_IOU] == Change(-1.0, -1.0, None, None)
    none = compare_detections(ground_truth, rough, [], params=make_params("segm"), options=QUICK)
    assert none.remarks == []
    boxes = [{**one, "bbox": mask.toBbox(one["segmentation"]).tolist()} for one in rough]
    assert all(
        BOUNDARY_IOU not in one.metrics
        for one in compare_detections(ground_truth, boxes, boxes, params=make_params(), options=QUICK).categories
    )
