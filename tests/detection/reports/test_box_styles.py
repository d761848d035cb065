"""What is drawn of an image's image_result."""

from dataclasses import replace

from detection.analysis.analysis_file import ERROR_TYPES, Box
from detection.reports.box_styles import GROUND_TRUTH_STATUSES, STATUSES, detection_boxes, ground_truth_boxes
from tests.detection.reports.evaluation.builders import image_result

NAMES = {1: "cat", 2: "dog"}


def test_every_status_has_a_look_of_its_own_on_its_panel() -> None:
    assert set(STATUSES) == {"matched", "crowd", "TP", "ignored", *ERROR_TYPES}
    panels = [
        [status.style for name, status in STATUSES.items() if (name in GROUND_TRUTH_STATUSES) is objects]
        for objects in (True, False)
    ]
    for styles in panels:
        assert len({style.color for style in styles}) == len(styles)
        assert len({style.dash for style in styles}) == len(styles)


def test_fn_come_first() -> None:
    box = [1.0, 2.0, 3.0, 4.0]
    objects = [Box(1, box, None, "matched"), Box(2, box, None, "Miss"), Box(9, box, None, "crowd")]
    drawn = ground_truth_boxes(replace(image_result(1), ground_truth=objects), NAMES)
    assert [(mark.status, mark.text) for mark in drawn] == [
        ("Miss", "dog"),
        ("matched", "cat"),
        ("crowd", "category 9"),
    ]
    assert drawn[0].bbox == box


def test_fp_come_first_and_of_each_kind_the_most_confident() -> None:
    given = [(0.9, "TP"), (0.4, "Cls"), (0.8, "ignored"), (0.7, "Bkg"), (0.95, "TP")]
    detections = [Box(1, [1.0, 2.0, 3.0, 4.0], score, status) for score, status in given]
    drawn = detection_boxes(replace(image_result(1), detections=detections), NAMES)
    assert [mark.text for mark in drawn] == ["cat 0.70", "cat 0.40", "cat 0.95", "cat 0.90", "cat 0.80"]
