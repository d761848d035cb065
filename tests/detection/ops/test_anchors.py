from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import detection.ops.anchors as anchors_module
from detection.ops.anchors import anchors_inside, assign_anchors, feature_sizes, pyramid_anchors_yxyx
from detection.ops.boxes import encode_yxyx, pairwise_iou_yxyx

Oracles = dict[str, dict[str, Any]]


def _anchors(height: int, width: int, **options: Any) -> np.ndarray:
    defaults: dict[str, Any] = {
        "min_level": 3,
        "max_level": 7,
        "num_scales": 3,
        "aspect_ratios": (1.0, 2.0, 0.5),
        "anchor_scale": 4.0,
    }
    return pyramid_anchors_yxyx((height, width), **(defaults | options))


def test_feature_sizes_round_up() -> None:
    assert feature_sizes((5, 8), 3) == [(5, 8), (3, 4), (2, 2), (1, 1)]


def test_counts(oracles: Oracles) -> None:
    for size, count in oracles["anchors.count.effdet"]["expected"].items():
        sides = size.split("_", maxsplit=1)[0].split("x")
        max_level = 8 if size.endswith("3_to_8") else 7
        assert len(_anchors(int(sides[0]), int(sides[-1]), max_level=max_level)) == count


def test_coordinates_and_order(oracles: Oracles) -> None:
    expected = oracles["anchors.coords.effdet_128"]["expected"]
    anchors = _anchors(128, 128)
    np.testing.assert_allclose(anchors[:9], expected["first9"], atol=1e-4)
    np.testing.assert_allclose(anchors[-9:], expected["last9"], atol=1e-4)


def test_one_scale_one_ratio(oracles: Oracles) -> None:
    expected = oracles["anchors.normalized.test8"]["expected"]
    anchors = _anchors(8, 8, min_level=1, max_level=2, num_scales=1, aspect_ratios=(1.0,), anchor_scale=1.0) / 8
    assert len(anchors) == expected["count"]
    ymin, xmin, ymax, xmax = anchors[0]
    centre_and_size = [(ymin + ymax) / 2, (xmin + xmax) / 2, ymax - ymin, xmax - xmin]
    np.testing.assert_allclose(centre_and_size, expected["first_cy_cx_h_w"])


def test_an_aspect_ratio_is_width_over_height() -> None:
    anchors = _anchors(64, 64, aspect_ratios=(4.0,), num_scales=1)
    np.testing.assert_allclose(anchors[:, 3] - anchors[:, 1], 4.0 * (anchors[:, 2] - anchors[:, 0]))


def test_an_aspect_pair_is_width_and_height(oracles: Oracles) -> None:
    """TPU Mask R-CNN's anchors, of scale 8 and three pairs."""
    expected = oracles["anchors.maskrcnn"]["expected"]
    pairs = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
    anchors = _anchors(128, 128, min_level=2, max_level=6, num_scales=1, aspect_ratios=pairs, anchor_scale=8.0)
    assert len(anchors) == expected["count_128"]
    np.testing.assert_allclose(anchors[:3], expected["first3"], atol=1e-3)
    np.testing.assert_allclose(anchors[-3:], expected["last3_128"], atol=1e-3)
    mixed = _anchors(64, 64, num_scales=1, aspect_ratios=(1.0, (3.0, 2.0)))
    sides = mixed[:, 2:] - mixed[:, :2]
    np.testing.assert_allclose(sides[1::2], sides[::2] * [2.0, 3.0])


def test_each_level_may_have_its_own_scale() -> None:
    one, two = (_anchors(64, 64, min_level=3, max_level=4, anchor_scale=scale) for scale in (2.0, 5.0))
    own = _anchors(64, 64, min_level=3, max_level=4, anchor_scale=(2.0, 5.0))
    finer = 64 * 9
    np.testing.assert_array_equal(own, np.concatenate([one[:finer], two[finer:]]))
    with pytest.raises(ValueError, match="zip"):
        _anchors(64, 64, anchor_scale=(2.0, 5.0))


def test_rows_come_before_columns_in_an_oblong_image() -> None:
    anchors = _anchors(16, 32, max_level=3, num_scales=1, aspect_ratios=(1.0,))
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    np.testing.assert_allclose(centres[:5], [[4, 4], [4, 12], [4, 20], [4, 28], [12, 4]])


@pytest.mark.parametrize(("height", "width"), [(100, 75), (511, 513)])
def test_strides_are_real_so_that_cells_tile_any_image(height: int, width: int) -> None:
    rows, columns = feature_sizes((height, width), 3)[3]
    anchors = _anchors(height, width, max_level=3, num_scales=1, aspect_ratios=(1.0,), anchor_scale=1.0)
    np.testing.assert_allclose(anchors[-1], [height - height / rows, width - width / columns, height, width], rtol=1e-5)


Oracles = dict[str, dict[str, Any]]
ANCHORS = pyramid_anchors_yxyx(
    (128, 128), min_level=3, max_level=7, num_scales=3, aspect_ratios=(1.0, 2.0, 0.5), anchor_scale=4.0
)
LEVEL_SIZES = [16 * 16 * 9, 8 * 8 * 9, 4 * 4 * 9, 2 * 2 * 9, 9]


def _assign(boxes: list[list[float]], valid: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    result = assign_anchors(tf.constant(ANCHORS), tf.constant([boxes], tf.float32), tf.constant([valid]))
    return result.positive[0].numpy(), result.index[0].numpy()


def test_the_originals_targets(oracles: Oracles) -> None:
    oracle = oracles["assign.effdet_128"]
    boxes, expected = oracle["inputs"]["gt_boxes"], oracle["expected"]
    positive, index = _assign(boxes, [True, True])
    assert positive.sum() == expected["num_positives"]
    per_level = [part.sum() for part in np.split(positive, np.cumsum(LEVEL_SIZES)[:-1])]
    assert per_level == list(expected["positives_per_level"].values())

    forced = expected["forced_match"]
    place = (forced["y"] * 16 + forced["x"]) * 9 + forced["anchor"]
    assert positive[place]
    assert index[place] == 1
    target = encode_yxyx(np.array(boxes[1], np.float32), ANCHORS[place])
    np.testing.assert_allclose(target, forced["box_target"], atol=1e-5)

    place = LEVEL_SIZES[0] + (2 * 8 + 2) * 9
    assert positive[place]
    target = encode_yxyx(np.array(boxes[0], np.float32), ANCHORS[place])
    np.testing.assert_allclose(target, expected["p4_y2_x2_anchor0_target"], atol=1e-5)


@pytest.mark.parametrize("padding", [[-1.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0], [16.0, 16.0, 80.0, 80.0]])
def test_padding_is_never_matched(oracles: Oracles, padding: list[float]) -> None:
    # The original invents a positive for every padded set (assign.padding_pitfall).
    boxes = oracles["assign.effdet_128"]["inputs"]["gt_boxes"]
    alone = _assign(boxes, [True, True])
    padded = _assign([padding, *boxes, padding], [False, True, True, False])
    np.testing.assert_array_equal(padded[0], alone[0])
    np.testing.assert_array_equal(padded[1][alone[0]], alone[1][alone[0]] + 1)


def test_no_object_no_positive() -> None:
    assert not _assign([[0.0, 0.0, 64.0, 64.0]], [False])[0].any()


def test_equals_a_plain_search() -> None:
    random = np.random.default_rng(3)
    corners = random.uniform(0, 90, (8, 2))
    boxes = np.concatenate([corners, corners + random.uniform(8, 60, (8, 2))], axis=1).astype(np.float32)
    positive, index = _assign(boxes.tolist(), [True] * 8)

    low = np.maximum(boxes[:, None, :2], ANCHORS[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], ANCHORS[None, :, 2:])
    overlap = np.prod(np.maximum(high - low, 0), axis=-1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)[:, None] + np.prod(ANCHORS[:, 2:] - ANCHORS[:, :2], axis=-1)
    iou = overlap / (areas - overlap)
    expected = np.where(iou.max(0) >= 0.5, iou.argmax(0), -1)
    for number in reversed(range(8)):
        expected[iou[number].argmax()] = number
    np.testing.assert_array_equal(np.where(positive, index, -1), expected)


def _plain_matches(boxes: np.ndarray, matched: float, unmatched: float, *, forced: bool) -> np.ndarray:
    """One value per anchor, as the OD API's matcher returns: number of the object, -1 background, -2 ignored."""
    matches = np.full(len(ANCHORS), -1)
    overlaps = np.zeros((len(boxes), len(ANCHORS)))
    for row, (t, l, b, r) in enumerate(boxes):  # noqa: E741
        for column, (at, al, ab, ar) in enumerate(ANCHORS):
            inside = max(0.0, min(b, ab) - max(t, at)) * max(0.0, min(r, ar) - max(l, al))
            overlaps[row, column] = inside / ((b - t) * (r - l) + (ab - at) * (ar - al) - inside)
    for column in range(len(ANCHORS)):
        best = overlaps[:, column].max()
        if best >= matched:
            matches[column] = overlaps[:, column].argmax()
        elif best >= unmatched:
            matches[column] = -2
    for row in reversed(range(len(boxes) if forced else 0)):
        matches[overlaps[row].argmax()] = row
    return matches


@pytest.mark.parametrize(("matched", "unmatched"), [(0.5, 0.4), (0.7, 0.3), (0.6, 0.6), (0.5, None)])
@pytest.mark.parametrize("forced", [True, False])
def test_thresholds_and_forced_matches_equal_a_plain_matcher(
    matched: float, unmatched: float | None, forced: bool
) -> None:
    random = np.random.default_rng(5)
    corners = random.uniform(0, 90, (6, 2))
    boxes = np.concatenate([corners, corners + random.uniform(3, 60, (6, 2))], axis=1).astype(np.float32)
    result = assign_anchors(
        tf.constant(ANCHORS),
        tf.constant([[*boxes, [0.0, 0.0, 128.0, 128.0]]], tf.float32),
        tf.constant([[True] * 6 + [False]]),
        match_threshold=matched,
        unmatched_threshold=unmatched,
        force_match=forced,
    )
    got = np.where(result.positive[0], result.index[0], -1)
    if result.ignored is not None:
        assert not (result.ignored & result.positive).numpy().any()
        got = np.where(result.ignored[0], -2, got)
    assert (result.ignored is None) == (unmatched is None or unmatched == matched)
    expected = _plain_matches(boxes, matched, matched if unmatched is None else unmatched, forced=forced)
    np.testing.assert_array_equal(got, expected)
    assert (matched, unmatched) != (0.7, 0.3) or (expected == -2).sum() > 50


@pytest.mark.parametrize(("gpus", "xla"), [(0, False), (1, False), (0, True), (1, True)])
def test_padding_between_objects(gpus: int, xla: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equals the matrix of all IoUs, of boxes on a coarse grid: many equal overlaps, and equal boxes."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a device"] * gpus)
    random = np.random.default_rng(7)
    low = 8 * random.integers(0, 12, (3, 10, 2))
    boxes = np.concatenate([low, low + 8 * random.integers(0, 6, (3, 10, 2))], axis=2).astype(np.float32)
    valid = random.uniform(size=(3, 10)) < [[0.6], [0.3], [0.0]]
    result = tf.function(assign_anchors, jit_compile=xla, autograph=False)(tf.constant(ANCHORS), boxes, valid)

    ious = pairwise_iou_yxyx(tf.constant(boxes), tf.constant(ANCHORS)).numpy() * valid[..., None]
    expected = np.where(ious.max(axis=1) >= 0.5, ious.argmax(axis=1), -1)
    for image, row in reversed(list(np.argwhere(ious.max(axis=2) > 0).tolist())):
        expected[image, ious[image, row].argmax()] = row
    np.testing.assert_array_equal(np.where(result.positive, result.index, -1), expected)
    assert (expected[:2] >= 0).sum() > 20
    assert (expected[2] == -1).all()


def test_where_xla_cannot_compile_the_assignment_it_works_without_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def not_for_xla(anchors: tf.Tensor, boxes: tf.Tensor, valid: tf.Tensor) -> Any:
        return tf.strings.length(tf.strings.as_string(anchors))

    box, valid = [60.0, 60.0, 68.0, 68.0], [True]
    expected = _assign([box], valid)
    monkeypatch.setattr(anchors_module, "_compiled_best_overlaps", tf.function(not_for_xla, jit_compile=True))
    anchors_module._compiles.cache_clear()
    try:
        for _ in range(2):
            for got, value in zip(_assign([box], valid), expected, strict=True):
                np.testing.assert_array_equal(got, value)
    finally:
        anchors_module._compiles.cache_clear()
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("XLA cannot compile the assignment of anchors (Detected unsupported operations")


def test_two_objects_that_claim_one_anchor_leave_it_to_the_first() -> None:
    positive, index = _assign([[60.0, 60.0, 68.0, 68.0], [60.0, 60.0, 68.0, 67.9]], [True, True])
    assert set(index[positive]) == {0}


def test_anchors_in_regions_by_their_own_area() -> None:
    anchors = tf.constant([[0, 0, 10, 4], [0, 0, 10, 8], [0, 2, 10, 10], [20, 0, 30, 4], [0, 0, 100, 100]], tf.float32)
    regions = tf.constant([[[0, 0, 10, 4], [20, 0, 25, 4]], [[0, 0, 10, 4], [0, 0, 100, 100]]], tf.float32)
    valid = tf.constant([[True, True], [True, False]])
    # Fractions of the first image: 1, 1/2, 1/4, 1/2 and 0.006.
    inside = anchors_inside(anchors, regions, valid, min_fraction=0.5).numpy()
    assert inside.tolist() == [[True, True, False, True, False], [True, True, False, False, False]]
    assert anchors_inside(anchors, regions, valid, min_fraction=0.51).numpy()[0].tolist() == [True] + [False] * 4
    assert not anchors_inside(anchors, regions, tf.zeros([2, 2], tf.bool), min_fraction=0.1).numpy().any()


@pytest.mark.parametrize(
    ("model", "image_size"), [("ssd_mobilenet_v2_fpnlite", (320, 320)), ("ssd_mobilenet_v1_fpn", (256, 320))]
)
def test_sides_that_are_no_multiples_have_the_od_apis_anchors(
    model: str, image_size: tuple[int, int], oracle_dir: Path
) -> None:
    """320 is no multiple of level 7's stride; the original orders the anchors of a cell by aspect ratio."""
    ours = _anchors(*image_size, num_scales=2, layout="od-api").reshape(-1, 2, 3, 4)
    expected = np.load(oracle_dir / "od_api" / model / "outputs.npz")["anchors"]
    found = ours.swapaxes(1, 2).reshape(-1, 4) / np.tile(image_size, 2)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_corners_are_places_of_anchors() -> None:
    """Centres at 0 and 16, as in the TF Object Detection API's `grid_anchor_generator`, whatever the image's sides."""
    options: dict[str, Any] = {"min_level": 4, "max_level": 4, "num_scales": 1, "aspect_ratios": (1.0,)}
    for side in (32, 30):
        anchors = _anchors(side, side, anchor_scale=2.0, layout="corners", **options)
        np.testing.assert_allclose(anchors[1], [-16.0, 0.0, 16.0, 32.0])
        assert len(anchors) == 4
