"""A split's summary against plain NumPy, and its parts against the whole."""

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.datasets.statistics import ASPECT_EDGES, OBJECTS_EDGES, SIDE_EDGES, SIZE_EDGES, SplitSummary, total

Annotation = dict[str, Any]


def annotation(category_id: int = 1, bbox: tuple[float, ...] = (0, 0, 10, 10), **fields: Any) -> Annotation:
    return {"category_id": category_id, "bbox": list(bbox), **fields}


def summary_of(*images: list[Annotation], width: int = 640, height: int = 480) -> SplitSummary:
    summary = SplitSummary()
    for annotations in images:
        summary.add(annotations, width=width, height=height, image_format="jpeg", color_mode="RGB")
    return summary


_annotations = st.builds(
    annotation,
    category_id=st.integers(1, 5),
    bbox=st.tuples(*[st.floats(0, 700)] * 4),
    area=st.none() | st.floats(0, 1e5),
    iscrowd=st.integers(0, 1),
    segmentation=st.sampled_from([[], [[1, 2, 3, 4, 5, 6]]]),
    keypoints=st.sampled_from([None, [0, 0, 0], [3, 4, 2]]),
)
_images = st.tuples(
    st.lists(_annotations, max_size=4),
    st.fixed_dictionaries(
        {
            "width": st.integers(1, 20000),
            "height": st.integers(1, 20000),
            "image_format": st.sampled_from(["jpeg", "png"]),
            "color_mode": st.sampled_from(["RGB", "L", "CMYK"]),
        }
    ),
)


def _gathered(images: list[Any]) -> SplitSummary:
    summary = SplitSummary()
    for annotations, about in images:
        summary.add(annotations, **about)
    return summary


@settings(max_examples=60, deadline=None)
@given(st.lists(_images, max_size=6), st.lists(_images, max_size=6), st.lists(_images, max_size=6))
def test_parts_merge_to_the_whole_in_any_order(first: list[Any], second: list[Any], third: list[Any]) -> None:
    whole = _gathered(first + second + third)
    partitions = [_gathered(partition) for partition in (first, second, third)]
    for a, b, c in itertools.permutations(partitions):
        assert a.merge(b).merge(c) == whole
        assert a.merge(b.merge(c)) == whole
    assert total(partitions) == whole
    assert partitions == [_gathered(partition) for partition in (first, second, third)]


@settings(max_examples=30, deadline=None)
@given(st.lists(_images, max_size=4))
def test_json_holds_everything(images: list[Any]) -> None:
    summary = _gathered(images)
    restored = SplitSummary.from_dict(json.loads(json.dumps(summary.as_dict())))
    assert restored == summary
    assert json.dumps(restored.as_dict()) == json.dumps(summary.as_dict())


def test_an_empty_one_is_the_neutral_element() -> None:
    summary = summary_of([annotation()])
    assert total([]) == SplitSummary()
    assert summary.merge(SplitSummary()) == summary == SplitSummary().merge(summary)


def _numpy_counts(values: Any, edges: tuple[float, ...]) -> list[int]:
    return np.histogram(values, bins=[-np.inf, *edges, np.inf])[0].tolist()


def test_histograms_are_numpys() -> None:
    rng = np.random.default_rng(0)
    boxes = np.exp(rng.uniform(-2, 11, (5000, 2)))
    boxes[:50] = 2.0 ** rng.integers(-5, 15, (50, 2))  # values on edges
    numbers = rng.integers(0, 130, 200)
    sides = rng.integers(1, 30000, (200, 2))
    summary = SplitSummary()
    taken = iter(boxes.tolist() * 3)
    used = []
    for number, (width, height) in zip(numbers.tolist(), sides.tolist(), strict=True):
        own = list(itertools.islice(taken, number))
        used += own
        annotations = [annotation(bbox=(3, 4, *box)) for box in own]
        summary.add(annotations, width=width, height=height, image_format="png", color_mode="L")
    w, h = np.array(used).T
    assert summary.histogram("objects_per_image").tolist() == _numpy_counts(numbers, OBJECTS_EDGES)
    assert summary.histogram("box_sizes").tolist() == _numpy_counts(np.sqrt(w * h), SIZE_EDGES)
    assert summary.histogram("box_aspects").tolist() == _numpy_counts(w / h, ASPECT_EDGES)
    assert summary.histogram("widths").tolist() == _numpy_counts(sides[:, 0], SIDE_EDGES)
    assert summary.histogram("heights").tolist() == _numpy_counts(sides[:, 1], SIDE_EDGES)
    lows, highs = sides.min(0).tolist(), sides.max(0).tolist()
    assert [summary.min_width, summary.min_height] == lows
    assert [summary.max_width, summary.max_height] == highs
    assert (summary.images, summary.annotations) == (200, len(used))


def test_each_number_of_objects_has_its_bin_up_to_the_last() -> None:
    histogram = summary_of([], [annotation()] * 3, [annotation()] * 100, [annotation()] * 250).histogram(
        "objects_per_image"
    )
    assert len(histogram) == 101
    assert np.flatnonzero(histogram).tolist() == [0, 3, 100]
    assert histogram[100] == 2


def test_aspect_is_width_over_height_and_widths_are_not_heights() -> None:
    summary = summary_of([annotation(bbox=(0, 0, 80, 20))], width=1000, height=10)
    (aspect,) = np.flatnonzero(summary.histogram("box_aspects"))
    assert ASPECT_EDGES[aspect - 1] == 4.0
    assert (summary.min_width, summary.max_height) == (1000, 10)
    assert np.argmax(summary.histogram("widths")) > np.argmax(summary.histogram("heights"))


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"bbox": (0, 0, 31, 32)}, "small"),
        ({"bbox": (0, 0, 32, 32)}, "medium"),
        ({"bbox": (0, 0, 96, 95)}, "medium"),
        ({"bbox": (0, 0, 96, 96)}, "large"),
        ({"bbox": (0, 0, 200, 200), "area": 1023.9}, "small"),
        ({"bbox": (0, 0, 2, 2), "area": 9216}, "large"),
        ({"bbox": (0, 0, 2, 2), "area": None}, "small"),
        ({"bbox": (0, 0, 2, 2), "area": "9216"}, "small"),
    ],
)
def test_coco_sizes_go_by_area_where_there_is_one(fields: dict[str, Any], size: str) -> None:
    assert summary_of([annotation(**fields)]).coco_sizes == Counter({size: 1})


def test_kinds_of_annotations_are_told_apart() -> None:
    summary = summary_of(
        [
            annotation(7, iscrowd=1, segmentation={"counts": "1", "size": [1, 1]}),
            annotation(7, segmentation=[], keypoints=[5, 6, 0, 0, 0, 0]),
            annotation(9, segmentation=[[1, 2, 3, 4, 5, 6]], keypoints=[0, 0, 0, 5, 6, 1]),
        ],
        [annotation(7)],
        [],
    )
    assert (summary.images, summary.annotations, summary.crowds, summary.masks, summary.keypoints) == (3, 4, 1, 2, 1)
    assert summary.instances == Counter({7: 3, 9: 1})
    assert summary.images_with == Counter({7: 2, 9: 1})
    assert (summary.formats, summary.modes) == (Counter(jpeg=3), Counter(RGB=3))


def test_a_box_without_area_has_a_size_and_no_aspect() -> None:
    summary = summary_of([annotation(bbox=(5, 5, 0, 10)), annotation(bbox=(5, 5, -3, -2))])
    assert summary.histogram("box_sizes")[0] == 2
    assert summary.histogram("box_aspects").sum() == 0


def test_it_does_not_grow_with_the_number_of_images() -> None:
    image = [annotation(bbox=(0, 0, 12, 34))]
    few, many = summary_of(image), summary_of(*[image] * 500)
    assert {name: len(part) for name, part in vars(few).items() if isinstance(part, Counter)} == {
        name: len(part) for name, part in vars(many).items() if isinstance(part, Counter)
    }
