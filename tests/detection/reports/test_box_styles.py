"""What is drawn of an image's findings."""

from dataclasses import replace

from detection.analysis.analysis_file import ERROR_TYPES, Box
from detection.reports.box_styles import OBJECT_STATUSES, STATUSES, detection_marks, object_marks
from tests.detection.reports.evaluation.builders import findings

NAMES = {1: "cat", 2: "dog"}


def test_every_status_has_a_look_of_its_own_on_its_panel() -> None:
    assert set(STATUSES) == {"found", "crowd", "right", "ignored", *ERROR_TYPES}
    panels = [
        [status.style for name, status in STATUSES.items() if (name in OBJECT_STATUSES) is objects]
        for objects in (True, False)
    ]
    for styles in panels:
        assert len({style.color for style in styles}) == len(styles)
        assert len({style.dash for style in styles}) == len(styles)


def test_what_was_missed_comes_first() -> None:
    box = [1.0, 2.0, 3.0, 4.0]
    objects = [Box(1, box, None, "found"), Box(2, box, None, "Miss"), Box(9, box, None, "crowd")]
    marks = object_marks(replace(findings(1), objects=objects), NAMES)
    assert [(mark.status, mark.text) for mark in marks] == [("Miss", "dog"), ("found", "cat"), ("crowd", "category 9")]
    assert marks[0].bbox == box


def test_wrong_detections_come_first_and_of_each_kind_the_most_confident() -> None:
    given = [(0.9, "right"), (0.4, "Cls"), (0.8, "ignored"), (0.7, "Bkg"), (0.95, "right")]
    detections = [Box(1, [1.0, 2.0, 3.0, 4.0], score, status) for score, status in given]
    marks = detection_marks(replace(findings(1), detections=detections), NAMES)
    assert [mark.text for mark in marks] == ["cat 0.70", "cat 0.40", "cat 0.95", "cat 0.90", "cat 0.80"]
