"""What is drawn over an image, and said of it."""

from dataclasses import replace

import pytest

from detection.analysis.analysis_file import Box
from detection.reports.evaluation.panels import Panel, Shape, side_by_side
from tests.detection.reports.evaluation.builders import HEIGHT, WIDTH, image_result

NAMES = {1: "cat", 2: "dog"}


def objects_panel(objects: list[Box], names: dict[int, str] | None = None) -> Panel:
    return side_by_side(replace(image_result(1), ground_truth=objects), names or NAMES).panels[0]


def boxes(statuses: list[str]) -> list[Box]:
    """Far from each other."""
    return [
        Box(1, [40.0 + 150 * (at % 4), 60.0 + 100 * (at // 4), 60.0, 20.0], None, status)
        for at, status in enumerate(statuses)
    ]


def tags(panel: Panel) -> list[Shape]:
    return [shape for shape in panel.shapes if shape.tag]


def test_every_box_has_a_tag_where_there_is_room() -> None:
    panel = objects_panel(boxes(["matched", "Miss", "crowd"]))
    assert [(shape.status, shape.tag_text, shape.text) for shape in tags(panel)] == [
        ("Miss", "cat", "cat: FN"),
        ("matched", "cat", "cat: matched"),
        ("crowd", "cat", "cat: crowd, ignored"),
    ]


def test_keypoints_are_dots_and_edges_where_they_are_visible() -> None:
    points = [100.0, 200.0, 2.0, 300.5, 300.0, 0.25, 500.0, 100.0, 0.0]
    box = Box(1, [40.0, 60.0, 60.0, 20.0], None, "Miss", keypoints=points, skeleton=[(2, 1), (2, 3)])
    (shape,) = objects_panel([box]).shapes
    assert shape.edges == "M300.5 300L100 200"
    assert shape.points == "M100 200h0M300.5 300h0"


def test_in_a_crowd_only_errors_have_tags() -> None:
    panel = objects_panel(boxes(["matched"] * 10 + ["Miss"] * 3))
    assert [shape.status for shape in tags(panel)] == ["Miss"] * 3
    assert len(panel.shapes) == 13
    assert len(tags(objects_panel(boxes(["matched"] * 10 + ["Miss"] * 2)))) == 12


@pytest.mark.parametrize(("width", "height"), [(640, 480), (4000, 300), (30, 40), (300, 4000)])
def test_letters_are_as_large_on_the_screen_whatever_the_image(width: int, height: int) -> None:
    figure = side_by_side(replace(image_result(1), width=width, height=height), NAMES)
    scale = min(385 / width, 344 / height)
    assert figure.font * scale == pytest.approx(11)


def test_a_long_name_keeps_its_score_in_the_tag() -> None:
    image = replace(image_result(1), detections=[Box(1, [9.0, 90.0, 60.0, 60.0], 0.87, "TP")])
    (shape,) = side_by_side(image, {1: "n" * 300}).panels[1].shapes
    assert shape.tag_text == "n" * 20 + "… 0.87"
    assert len(shape.text) < 120


def test_a_wide_script_has_wide_tags() -> None:
    thin, wide = (tags(objects_panel(boxes(["matched"]), {1: name}))[0].tag for name in ("cats", "犬猫鳥魚"))
    assert thin
    assert wide
    assert wide.right - wide.left > 1.4 * (thin.right - thin.left)


def test_the_alternative_text_counts_and_names_some() -> None:
    objects = boxes(["Miss"] * 5 + ["matched"] * 2)
    assert objects_panel(objects).alt == "Ground truth: 2 matched, 5 FN (cat, cat, cat, …)."
    assert objects_panel([]).alt == "Ground truth: nothing."


def test_boxes_are_cut_to_the_image() -> None:
    objects = [Box(1, [-50.0, HEIGHT - 10.0, 2.0 * WIDTH, 99.0], None, "matched")]
    (shape,) = objects_panel(objects).shapes
    assert shape.frame == (0, HEIGHT - 10, WIDTH, HEIGHT)
