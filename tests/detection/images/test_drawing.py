"""Pictures of detections."""

import colorsys
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask

from detection.images.drawing import LineStyle, Picture, category_color, contact_sheet, draw_detections

REPOSITORY = Path(__file__).resolve().parents[3]
GREY = 128


def grey(height: int, width: int) -> Picture:
    return np.full((height, width, 3), GREY, np.uint8)


def changed(picture: Picture) -> np.ndarray:
    return (picture != GREY).any(axis=-1)


def pixels_of(picture: Picture, color: tuple[int, int, int]) -> np.ndarray:
    return (picture == np.array(color, np.uint8)).all(axis=-1)


def test_a_box_is_x_y_width_height() -> None:
    picture = draw_detections(grey(60, 100), [[20, 10, 50, 30]], [""])
    ys, xs = np.nonzero(pixels_of(picture, category_color(0)))
    assert (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) == (20, 10, 70, 40)
    assert changed(picture)[25, 45], "a box is tinted inside"
    assert not changed(picture)[:8].any()
    assert not changed(picture)[:, 75:].any()


def test_scale_enlarges_picture_and_boxes_alike() -> None:
    picture = draw_detections(grey(60, 100), [[20, 10, 50, 30]], [""], scale=3)
    assert picture.shape == (180, 300, 3)
    ys, xs = np.nonzero(pixels_of(picture, category_color(0)))
    assert (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) == (60, 30, 210, 120)


def test_the_image_given_stays_as_it_is() -> None:
    image = grey(40, 40)
    image.setflags(write=False)
    draw_detections(image, [[5, 5, 20, 20]], ["cat"], [0.5])
    assert (image == GREY).all()


def test_nothing_to_draw_changes_nothing() -> None:
    assert (draw_detections(grey(30, 40), np.zeros((0, 4)), [], []) == GREY).all()
    assert (draw_detections(grey(30, 40), [], []) == GREY).all()


@pytest.mark.parametrize(
    "box", [[-30, -30, 500, 500], [90, 50, 80, 80], [200, 200, 5, 5], [-9, -9, 2, 2], [5, 5, 0, 0]]
)
def test_boxes_outside_and_without_area_are_cut_to_the_image(box: list[float]) -> None:
    picture = draw_detections(grey(60, 100), [box], ["a name much wider than the image is, really"], [1.0])
    assert picture.shape == (60, 100, 3)
    assert changed(picture).any()


def test_a_line_of_pixels_stays_one_pixel_wide() -> None:
    for height, width, shape in ((1, 20000, (1, 640, 3)), (20000, 1, (640, 1, 3))):
        assert draw_detections(grey(height, width), [[0, 0, 9, 9]], ["a"], scale=640 / 20000).shape == shape


def test_weak_detections_are_left_out() -> None:
    both = [[5, 30, 20, 20], [60, 30, 20, 20]]
    picture = draw_detections(grey(60, 100), both, ["", ""], [0.5, 0.49], min_score=0.5)
    assert changed(picture)[:, :50].any()
    assert not changed(picture)[:, 50:].any()


def test_the_best_detection_lies_on_top() -> None:
    for scores, top in [([0.9, 0.2], 3), ([0.2, 0.9], 4)]:
        picture = draw_detections(grey(60, 60), [[10, 10, 30, 30]] * 2, ["", ""], scores, category_ids=[3, 4])
        assert tuple(picture[10, 10]) == category_color(top)


def test_tags_say_name_and_score() -> None:
    def tag(label: str, scores: list[float] | None) -> bytes:
        return draw_detections(grey(100, 200), [[20, 40, 100, 50]], [label], scores).tobytes()

    assert len({tag("cat", None), tag("cat", [0.5]), tag("cat", [0.51]), tag("dog", [0.5]), tag("", [0.5])}) == 5
    assert tag("cat", [0.501]) == tag("cat", [0.499])


def test_a_tag_stands_above_its_box_and_below_where_there_is_no_room() -> None:
    lower = draw_detections(grey(100, 200), [[20, 40, 100, 50]], ["cat"])
    assert pixels_of(lower, category_color(0))[26:36, 21:40].any()
    upper = draw_detections(grey(100, 200), [[20, 0, 100, 50]], ["cat"])
    assert pixels_of(upper, category_color(0))[52:58, 21:40].any()


def test_lines_and_tags_have_sizes_that_fit_the_picture() -> None:
    """Four times as large in a picture of four times the size; a small box in it keeps a thin line."""

    def drawn(side: int, box: list[int], label: str) -> int:
        picture = draw_detections(grey(side, side), [box], [label])
        return int(pixels_of(picture, category_color(0)).sum(axis=0).max())

    side = 800
    tag, large_tag = (drawn(size, [0, size // 2, size, size // 2], "a" * 99) for size in (side, 4 * side))
    assert 3.5 < large_tag / tag < 4.5
    line, large_line = (
        drawn(size, [size // 4, size // 4, size // 2, size // 2], "") / size for size in (side, 4 * side)
    )
    assert line == pytest.approx(large_line, rel=0.05)
    picture = draw_detections(grey(4 * side, 4 * side), [[100, 100, 30, 30]], [""])
    assert pixels_of(picture, category_color(0))[100:130, 100:130].mean() < 0.35


def test_tags_avoid_each_other_and_a_crowd_keeps_only_the_best() -> None:
    box = [[60, 40, 60, 30]]

    def shown(copies: int) -> int:
        picture = draw_detections(
            grey(110, 200), box * copies, ["cat"] * copies, [1.0] * copies, category_ids=list(range(copies))
        )
        return sum(pixels_of(picture, category_color(index)).sum() > 60 for index in range(copies))

    assert shown(2) == 2
    assert shown(20) < 10


def test_one_colour_a_category() -> None:
    assert category_color(17) == category_color(17)
    assert len({category_color(index) for index in range(100)}) == 100
    first_ten = np.array([category_color(index) for index in range(10)], float)
    distances = np.linalg.norm(first_ten[:, None] - first_ten[None], axis=-1)
    assert distances[~np.eye(10, dtype=bool)].min() > 60


def test_without_ids_a_name_keeps_its_colour() -> None:
    picture = draw_detections(grey(50, 150), [[10, 20, 20, 20], [60, 20, 20, 20]], ["a", "b"])
    assert pixels_of(picture, category_color(0))[:, :50].any()
    assert pixels_of(picture, category_color(1))[:, 50:100].any()


def hue_of(color: tuple[int, int, int]) -> float:
    return colorsys.rgb_to_hsv(*(value / 255 for value in color))[0]


def corner_colors(
    boxes: list[list[int]], scores: list[float], category_id: int, *, top_left: bool = False
) -> list[tuple[int, int, int]]:
    """Colours of boxes' corners, the bottom right ones or the top left ones."""
    ids = [category_id] * len(boxes)
    picture = draw_detections(grey(300, 300), boxes, [""] * len(boxes), scores, category_ids=ids)
    corners = [(y, x) if top_left else (y + height - 1, x + width - 1) for x, y, width, height in boxes]
    red_green_blue = [picture[corner].tolist() for corner in corners]
    return [(red, green, blue) for red, green, blue in red_green_blue]


@pytest.mark.parametrize("category_id", range(15))
def test_instances_of_a_class_have_shades_of_its_colour(category_id: int) -> None:
    nested = [[10, 10, 100 + 40 * number, 100 + 40 * number] for number in range(4)]
    colors = corner_colors(nested, [0.9, 0.8, 0.7, 0.6], category_id)
    assert colors[0] == category_color(category_id), "the best one has the colour itself"
    for one, other in itertools.combinations(colors, 2):
        assert np.linalg.norm(np.subtract(one, other)) > 40
    for color in colors:
        assert abs((hue_of(color) - hue_of(colors[0]) + 0.5) % 1.0 - 0.5) < 0.02


def test_boxes_that_overlap_differ_though_shades_are_few() -> None:
    """Pairs far from each other, more than there are shades."""
    boxes = [[10 + 90 * (pair % 3) + shift, 10 + 90 * (pair // 3), 40, 40] for pair in range(9) for shift in (0, 20)]
    scores = np.random.default_rng(5).random(18).tolist()
    lefts = corner_colors(boxes, scores, 3, top_left=True)[::2]
    rights = corner_colors(boxes, scores, 3)[1::2]
    assert all(left != right for left, right in zip(lefts, rights, strict=True))
    assert len({*lefts, *rights}) == 4


def test_a_sheet_goes_row_by_row() -> None:
    images = [np.full((10, 20, 3), value, np.uint8) for value in (1, 2, 3)]
    sheet = contact_sheet(images, columns=2, gap=4)
    assert sheet.shape == (4 + 2 * 14, 4 + 2 * 24, 3)
    assert (sheet[4:14, 4:24] == 1).all()
    assert (sheet[4:14, 28:48] == 2).all()
    assert (sheet[18:28, 4:24] == 3).all()
    assert (sheet[18:28, 28:48] == 255).all()


def test_a_cell_keeps_a_picture_s_shape() -> None:
    sheet = contact_sheet([np.zeros((10, 40, 3), np.uint8), np.zeros((40, 10, 3), np.uint8)], cell=(20, 20), gap=0)
    assert sheet.shape == (20, 40, 3)
    dark = (sheet == 0).all(axis=-1)
    assert dark[:, :20].sum() == 5 * 20
    assert dark[:, 20:].sum() == 20 * 5
    assert dark[15:, :20].all(), "pictures of a row stand on one line"


def test_captions_take_a_line_below_each_row() -> None:
    images = [grey(30, 90), grey(30, 90)]
    plain, named = contact_sheet(images, columns=1), contact_sheet(images, columns=1, captions=["one", "two"])
    line = (named.shape[0] - plain.shape[0]) // 2
    assert line > 8
    assert (named[8 + 30 : 8 + 30 + line] < 100).any()
    assert contact_sheet(images, columns=1, captions=["one", "TWO"]).tobytes() != named.tobytes()


@pytest.mark.parametrize("image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_what_is_no_picture_is_refused(image: Picture) -> None:
    with pytest.raises(ValueError, match=r"an image is uint8 \[H, W, 3\], not (uint8|float64) \[4, 4"):
        draw_detections(image, [], [])
    with pytest.raises(ValueError, match=r"an image is uint8 \[H, W, 3\]"):
        contact_sheet([image])


def test_unequal_lengths_are_refused() -> None:
    box = [[1, 1, 5, 5]]
    with pytest.raises(ValueError, match="2 labels for 1"):
        draw_detections(grey(9, 9), box, ["a", "b"])
    with pytest.raises(ValueError, match="0 scores for 1"):
        draw_detections(grey(9, 9), box, ["a"], [])
    with pytest.raises(ValueError, match="2 category_ids for 1"):
        draw_detections(grey(9, 9), box, ["a"], category_ids=[1, 2])
    with pytest.raises(ValueError, match="1 captions for 2"):
        contact_sheet([grey(9, 9), grey(9, 9)], captions=["a"])
    with pytest.raises(ValueError, match="at least one image"):
        contact_sheet([])


def test_pictures_need_no_tensorflow() -> None:
    program = "import sys, detection.images.drawing; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0


def test_a_style_takes_the_place_of_the_categories_colour() -> None:
    blue = (10, 20, 250)
    picture = draw_detections(grey(60, 100), [[20, 10, 50, 30]], [""], category_ids=[3], styles=[LineStyle(blue)])
    ys, xs = np.nonzero(pixels_of(picture, blue))
    assert (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1) == (20, 10, 70, 40)
    assert not pixels_of(picture, category_color(3)).any()


def test_a_broken_line_has_strokes_and_gaps_on_every_side() -> None:
    blue = (10, 20, 250)
    picture = draw_detections(grey(60, 100), [[20, 10, 50, 30]], [""], styles=[LineStyle(blue, (4, 6))])
    drawn = pixels_of(picture, blue)
    repeated = np.arange(60) % 10 < 4
    for row in (10, 39):
        assert (drawn[row, 21:69] == repeated[1:49]).all()
    for column in (20, 69):
        assert (drawn[11:39, column] == repeated[1:29]).all()
    assert not drawn[11:39, 21:69].any()


def test_one_style_a_box() -> None:
    with pytest.raises(ValueError, match="2 styles for 1"):
        draw_detections(grey(9, 9), [[1, 1, 5, 5]], [""], styles=[LineStyle((0, 0, 0))] * 2)


@pytest.mark.parametrize("dash", [(), (6, 3)])
def test_thin_boxes_at_odd_places_are_drawn(dash: tuple[int, ...]) -> None:
    """One pixel wide they come out of the arithmetic of floats, not narrower."""
    rng = np.random.default_rng(0)
    boxes = rng.uniform(-2, 30, (300, 4)) * rng.choice([1.0, 1e-3, 0.0], (300, 4))
    style = LineStyle((10, 20, 30), dash)
    picture = draw_detections(grey(23, 29), np.abs(boxes), [""] * 300, styles=[style] * 300, scale=1.037)
    assert picture.shape == (24, 30, 3)


def test_masks_and_keypoints_are_drawn_at_their_places() -> None:
    """A box of 40x40 pixels whose left half is the mask; of two points one has a score of 0."""
    inside = np.zeros((60, 100), np.uint8)
    inside[10:50, 20:40] = 1
    rle = mask.encode(np.asfortranarray(inside))
    points = [[[70.0, 20.0, 0.9], [90.0, 50.0, 0.0]]]
    for scale in (1, 3):
        picture = draw_detections(
            grey(60, 100), [[20, 10, 40, 40]], [""], category_ids=[3], masks=[rle], keypoints=points, scale=scale
        )
        color = np.array(category_color(3), int)
        near = np.abs(picture.astype(int) - color).sum(axis=-1)
        assert near[30 * scale, 30 * scale] < 0.8 * near[30 * scale, 50 * scale]
        assert (picture[20 * scale, 70 * scale] == color).all()
        assert not changed(picture)[45 * scale :, 80 * scale :].any()


def test_a_mask_has_an_outline() -> None:
    """Opaque along its boundary, the hole's too, and translucent inside."""
    inside = np.zeros((60, 100), np.uint8)
    inside[10:50, 20:80] = 1
    inside[25:35, 45:55] = 0
    picture = draw_detections(
        grey(60, 100), [[0, 0, 1, 1]], [""], category_ids=[3], masks=[mask.encode(np.asfortranarray(inside))]
    )
    opaque = pixels_of(picture, category_color(3))
    expected = np.zeros((60, 100), bool)
    expected[10:50, 20:80] = True
    expected[11:49, 21:79] = False
    expected[24:36, 44:56] = True
    expected[25:35, 45:55] = False
    expected[[24, 24, 35, 35], [44, 55, 44, 55]] = False
    np.testing.assert_array_equal(opaque[5:], expected[5:])
    assert not changed(picture)[27:33, 47:53].any()
    assert (picture[30, 30] != GREY).any()


def test_weak_detections_masks_are_left_out() -> None:
    rle = mask.encode(np.asfortranarray(np.ones((60, 100), np.uint8)))
    boxes = [[5, 30, 20, 20], [60, 30, 20, 20]]
    empty = mask.encode(np.zeros((60, 100), np.uint8, order="F"))
    picture = draw_detections(grey(60, 100), boxes, ["", ""], [0.9, 0.4], masks=[empty, rle], min_score=0.5)
    assert not changed(picture)[:, 50:].any()
    with pytest.raises(ValueError, match="1 masks for 2"):
        draw_detections(grey(60, 100), boxes, ["", ""], masks=[rle])
    with pytest.raises(ValueError, match="1 keypoints for 2"):
        draw_detections(grey(60, 100), boxes, ["", ""], keypoints=np.zeros((1, 2, 3)))


def on_the_line(picture: Picture, first: tuple[int, int], last: tuple[int, int]) -> Picture:
    """Pixels [N, 3] on the straight line between two points (x, y), without the dots at its ends."""
    (x0, y0), (x1, y1) = first, last
    steps = np.linspace(0.15, 0.85, 40)
    return picture[np.rint(y0 + steps * (y1 - y0)).astype(int), np.rint(x0 + steps * (x1 - x0)).astype(int)]


@pytest.mark.parametrize("scale", [1, 3])
def test_a_skeleton_connects_visible_points(scale: int) -> None:
    """Points 1 and 2, and 2 and 4, are connected; 3 is hidden, and the other edges name no two points."""
    places = [(20, 20), (80, 20), (50, 40), (50, 55)]
    keypoints = [[*place, score] for place, score in zip(places, (1, 0.2, 0, 2), strict=True)]
    skeleton = [(1, 2), (2, 4), (1, 3), (3, 4), (0, 1), (1, 5), (-1, 1)]
    picture = draw_detections(
        grey(60, 100), [[0, 0, 1, 1]], [""], category_ids=[3], keypoints=[keypoints], skeletons=[skeleton], scale=scale
    )
    first, second, hidden, last = [(x * scale, y * scale) for x, y in places]
    for edge in ((first, second), (second, last)):
        assert (on_the_line(picture, *edge) == category_color(3)).all()
    for edge in ((first, hidden), (hidden, last), (first, last)):
        assert not changed(picture)[5:][tuple(np.array(edge).mean(0).astype(int)[::-1] - [5, 0])]


def test_instances_have_skeletons_and_points_of_their_own() -> None:
    """Two points and an edge in one colour, three without an edge in the other; the third has none."""
    points: list[Any] = [[[20, 10, 1], [80, 10, 1]], [[20, 30, 1], [80, 30, 1], [50, 45, 1]], None]
    boxes, skeletons = [[0, 0, 1, 1]] * 3, [[(1, 2)], [], [(1, 2)]]
    picture = draw_detections(
        grey(60, 100), boxes, [""] * 3, category_ids=[3, 4, 5], keypoints=points, skeletons=skeletons
    )
    assert (on_the_line(picture, (20, 10), (80, 10)) == category_color(3)).all()
    assert (on_the_line(picture, (20, 30), (80, 30)) == GREY).all()
    assert (picture[45, 50] == category_color(4)).all()
    with pytest.raises(ValueError, match="1 skeletons for 3"):
        draw_detections(grey(60, 100), boxes, [""] * 3, keypoints=points, skeletons=[[]])


def test_points_of_no_picture_are_drawn_in_no_time() -> None:
    """Also lines of one pixel; NaN is no place."""
    points: list[Any] = [[[20, 10, 1], [far, far, 1]] for far in (1e12, 1e300, -1e300, np.nan)]
    picture = draw_detections(grey(60, 100), [[0, 0, 1, 1]] * 4, [""] * 4, keypoints=points, skeletons=[[(1, 2)]] * 4)
    assert picture.shape == (60, 100, 3)
