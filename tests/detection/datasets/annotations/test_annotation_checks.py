import random
from typing import Any

import pytest

from detection.datasets.annotations.annotation_checks import Context, valid_annotations
from detection.datasets.issues import ImageIssues
from schemas.config.issues import IssuePolicies

CONTEXT = Context(height=40, width=80, keypoints={9: 2}, ignored={77})
SQUARE = [[10, 10, 20, 10, 20, 20, 10, 20]]


def _annotation(number: int = 1, bbox: Any = (10, 10, 10, 10), **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": 7, "category_id": 9, "bbox": list(bbox), **more}


FAIL = IssuePolicies.model_validate("fail")


def _check(*annotations: dict[str, Any], **policies: str) -> tuple[list[dict[str, Any]], ImageIssues]:
    issues = ImageIssues(IssuePolicies(FAIL.root | policies), where="train: a.png", image_id=7)
    return valid_annotations(annotations, CONTEXT, issues), issues


@pytest.mark.parametrize(
    ("bbox", "kind"),
    [
        ([0, 0, 80, 40], None),
        ([-1, -1, 82, 42], None),
        ([79.5, 39.5, 1.5, 1.5], None),
        ([-1.01, 0, 5, 5], "box_outside"),
        ([0, -1.01, 5, 5], "box_outside"),
        ([70, 0, 11.01, 5], "box_outside"),
        ([0, 30, 5, 11.01], "box_outside"),
        ([30, 60, 5, 5], "box_outside"),  # inside, were height and width swapped
        ([-0.9, 0, 0.9, 5], "box_outside"),
        ([80.0, 0, 0.5, 5], "box_outside"),
        ([0, -0.5, 5, 0.5], "box_outside"),
        ([0, 40.0, 5, 0.5], "box_outside"),
        ([0, 0, 0, 5], "box_empty"),
        ([0, 0, 5, 0.0], "box_empty"),
        ([5, 5, -2, 5], "box_empty"),
    ],
)
def test_boxes(bbox: list[float], kind: str | None) -> None:
    kept, issues = _check(_annotation(bbox=bbox))
    assert [issue.kind for issue in issues.issues] == ([] if kind is None else [kind])
    assert len(kept) == (kind is None)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"iscrowd": "0"}, "entry"),
        ({"area": None}, "entry"),
        ({"segmentation": []}, None),
        ({"segmentation": SQUARE}, None),
        ({"segmentation": [[1, 2, 3, 4, 5, "6"]]}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": [3200]}}, None),
        ({"segmentation": {"size": [40, 80], "counts": [3201]}}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": [3300, -100]}}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": 5}}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": "PPPPP"}}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": "o" * 40}}, "mask_broken"),
        ({"segmentation": {"size": [40, 80], "counts": "a b"}}, "mask_broken"),
        ({"segmentation": [*SQUARE, [10, 10, 20, 20]]}, "mask_degenerate"),
        ({"segmentation": [[13, 10, 20, 10, 20, 20, 13, 20]]}, "mask_box"),
        ({"segmentation": [[11, 10, 20, 10, 20, 20, 11, 20]]}, None),
        ({"keypoints": [10, 10, 2, 12, 12, 1]}, None),
        ({"keypoints": []}, "keypoints_broken"),
        ({"keypoints": [10, 10, 2]}, "keypoints_broken"),
        ({"keypoints": [10, 10, 2, 12, None, 1]}, "keypoints_broken"),
        ({"keypoints": [10, 41, 2, 12, 12, 1]}, "keypoints_outside"),
        ({"keypoints": [0, 99, 0, 12, 12, 1]}, None),
        ({"keypoints": [10, 10, 2, 12, 12, 1], "num_keypoints": 2}, None),
        ({"keypoints": [10, 10, 2, 0, 0, 0], "num_keypoints": 2}, "keypoints_count"),
        ({"keypoints": [10, 10, 2, 12, 12, 1], "num_keypoints": "2"}, "keypoints_count"),
        ({"keypoints": [10, 10, 2, 12, 12, 1], "num_keypoints": None}, "keypoints_count"),
        ({"area": 110}, None),
        ({"area": 2}, None),
        ({"area": 111}, "area_wrong"),
        ({"area": 0}, "area_wrong"),
        ({"area": 1, "segmentation": SQUARE}, "area_wrong"),
        ({"bbox": [0.25, 0.5, 0.5, 0.5]}, "box_fractions"),
        ({"bbox": [0.25, 0.5, 0.5, 0.6]}, None),
        ({"attributes": {"rotation": 30.0}}, "box_rotated"),
        ({"attributes": {"rotation": 180.0}}, None),
        ({"attributes": {"rotation": "left"}}, None),
        ({"ignore": 1}, "ignored"),
        ({"ignore": True}, "ignored"),
        ({"ignore": 0}, None),
        ({"ignore": 1, "iscrowd": 1}, None),
        ({"category_id": 77}, "ignored"),
        ({"segmentation": [[10, 10, 20, 20]]}, "mask_broken"),
        ({"segmentation": [[10, 10], [20, 10], [20, 20]]}, "mask_broken"),
    ],
)
def test_the_rest_of_an_annotation(more: dict[str, Any], kind: str | None) -> None:
    annotation = _annotation(**more)
    kept, issues = _check(annotation)
    assert [issue.kind for issue in issues.issues] == ([] if kind is None else [kind])
    kept_by_default = kind is None or FAIL.of(kind) == "keep"
    assert kept == ([annotation] if kept_by_default else [])


@pytest.mark.parametrize(
    ("more", "fixed"),
    [
        ({"bbox": [70, -5, 50, 15]}, {"bbox": [70, 0, 10, 10]}),
        ({"segmentation": [[1, 2, 3]]}, {"segmentation": []}),
        ({"segmentation": [*SQUARE, [1, 1]]}, {"segmentation": SQUARE}),
        ({"segmentation": [[1, 1, 30, 1, 30, 30, 1, 30]]}, {"bbox": [1, 1, 29, 29]}),
        (
            {"keypoints": [10, 41, 2, 12, 12, 1], "num_keypoints": 2},
            {"keypoints": [0, 0, 0, 12, 12, 1], "num_keypoints": 1},
        ),
        ({"keypoints": [10, 10, 2, 12, 12, 1], "num_keypoints": 0}, {"num_keypoints": 2}),
        ({"area": 500}, {"area": 100}),
        ({"area": 0, "segmentation": [[10, 10, 20, 10, 20, 20]]}, {"area": 45}),  # pycocotools' pixels of a triangle
        ({"bbox": [0.25, 0.5, 0.5, 0.25]}, {"bbox": [20, 20, 40, 10]}),
        ({"attributes": {"rotation": 90}, "bbox": [10, 10, 20, 10]}, {"bbox": [15, 5, 10, 20]}),
        ({"attributes": {"rotation": -90}, "bbox": [0, 0, 20, 10]}, {"bbox": [5, 0, 10, 15]}),
        ({"ignore": 1}, {"iscrowd": 1}),
        ({"segmentation": [[10, 10], [20, 10], [20, 20], [10, 20]]}, {"segmentation": SQUARE}),
        ({"segmentation": [[10, 10, 20, 20]]}, {"segmentation": []}),
    ],
)
def test_what_can_be_fixed(more: dict[str, Any], fixed: dict[str, Any]) -> None:
    annotation = _annotation() | more
    kept, issues = _check(
        annotation,
        box_outside="fix",
        mask_broken="fix",
        mask_degenerate="fix",
        mask_box="fix",
        keypoints_broken="fix",
        keypoints_outside="fix",
        keypoints_count="fix",
        area_wrong="fix",
        box_fractions="fix",
        box_rotated="fix",
        ignored="fix",
    )
    [one] = kept
    assert one["bbox"] == pytest.approx((annotation | fixed)["bbox"])
    assert one | {"bbox": None} == annotation | fixed | {"bbox": None}
    assert [issue.policy for issue in issues.issues] == ["fix"]
    assert annotation == _annotation() | more


def test_keypoints_that_are_none_are_removed() -> None:
    kept, _ = _check(_annotation(keypoints=[1], num_keypoints=1), keypoints_broken="fix")
    assert kept == [_annotation()]


def test_what_cannot_be_fixed_is_dropped() -> None:
    kept, issues = _check(_annotation(bbox=[90, 0, 5, 5]), box_outside="fix")
    assert (kept, [issue.policy for issue in issues.issues]) == ([], ["drop"])


def test_the_same_object_twice_is_told_and_dropped_on_demand() -> None:
    twins = [_annotation(1, segmentation=SQUARE), _annotation(2, segmentation=SQUARE)]
    others = [_annotation(3), _annotation(4, segmentation=SQUARE, iscrowd=1), _annotation(5) | {"category_id": 5}]
    kept, issues = _check(*twins, *others)
    assert kept == [*twins, *others]
    assert [(issue.kind, issue.annotation_id, issue.policy) for issue in issues.issues] == [
        ("annotation_duplicate", 2, "keep")
    ]
    assert "the same object as annotation 1" in issues.issues[0].message
    kept, _ = _check(*twins, *others, annotation_duplicate="drop")
    assert kept == [twins[0], *others]


_SHAPES: list[Any] = [
    [[10, 10, 20, 10, 20, 20, 10, 20]],
    [[10.0, 10, 20, 10, 20, 20, 10, 20]],
    [[10, 10, 20, 10, 20, 20, 10, 19]],
    [],
    None,
    {"size": [40, 80], "counts": [810, 10, 2380]},
    {"counts": [810.0, 10, 2380], "size": [40, 80]},
    {"size": [40, 80], "counts": [810, 11, 2379], "note": "x"},
]


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_repeated_objects_are_those_that_comparing_each_with_each_finds(policy: str) -> None:
    """Against all pairs compared by ==, for which 1, 1.0 and true, 0 and -0.0 are the same."""
    draw = random.Random(4)
    for _ in range(300):
        annotations = []
        for number in range(draw.randint(0, 9)):
            more: dict[str, Any] = {"iscrowd": draw.choice([0, 0.0, True, 1])}
            more |= draw.choice([{}, {"segmentation": draw.choice(_SHAPES)}])
            more |= draw.choice([{}, {"keypoints": draw.choice([[0, -0.0, 0, 10, 9, 1], [0.0, 0, 0, 10, 9, True]])}])
            box = draw.choice([(10, 10, 10, 10), (10.0, 10, 10, 10), (10, 10, 10, 11)])
            annotations.append(_annotation(number, box, **more) | {"category_id": draw.choice([9, 3])})
        kept, issues = _check(*annotations, annotation_duplicate=policy, mask_broken="drop", mask_box="keep")
        others = [issue for issue in issues.issues if issue.kind != "annotation_duplicate"]
        broken = {issue.annotation_id for issue in others if issue.policy != "keep"}
        valid = [annotation for annotation in annotations if annotation["id"] not in broken]
        keys = ("category_id", "bbox", "segmentation", "iscrowd", "keypoints")
        pairs = [
            next((o["id"] for o in valid[:place] if all(o.get(key) == each.get(key) for key in keys)), None)
            for place, each in enumerate(valid)
        ]
        repeated = {each["id"]: first for each, first in zip(valid, pairs, strict=True) if first is not None}
        reported = [issue for issue in issues.issues if issue.kind == "annotation_duplicate"]
        assert {issue.annotation_id: issue.message.split()[5] for issue in reported} == {
            number: f"{first}." for number, first in repeated.items()
        }
        assert [each["id"] for each in kept] == [
            each["id"] for each in valid if policy == "keep" or each["id"] not in repeated
        ]


def test_many_objects_of_one_category_and_box_take_no_longer_than_others() -> None:
    """Comparing each with each would take minutes."""
    count = 30_000
    corner = [[10, 10, 20, 10, 20, 20, 10, 20 - number / count] for number in range(count)]
    kept, issues = _check(*(_annotation(number, segmentation=[corner[number]]) for number in range(count)))
    assert (len(kept), issues.issues) == (count, [])
