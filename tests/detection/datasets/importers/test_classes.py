"""Which category an object belongs to, from labels, texts and label maps."""

import pytest

from detection.datasets.importers.classes import ONLY_CATEGORY, Named, resolve_classes
from detection.datasets.importers.label_map import LabelMap
from schemas.errors import DataError

MAP = LabelMap(
    "labels.pbtxt",
    [{"id": 5, "name": "cat"}, {"id": 2, "name": "dog"}, {"id": 9, "name": "cow"}],
    {5: {"cat", "/m/cat"}, 2: {"dog"}, 9: {"cow"}},
)


def named_in(*named: Named) -> dict[Named, str]:
    return {each: f"shard-{number}" for number, each in enumerate(named)}


def test_labels_are_the_ids() -> None:
    classes = resolve_classes(named_in((17, "cat"), (3, "dog"), (0, None)), None)
    assert classes.categories == [{"id": 0, "name": "0"}, {"id": 3, "name": "dog"}, {"id": 17, "name": "cat"}]
    assert classes.ids == {(17, "cat"): 17, (3, "dog"): 3, (0, None): 0}
    assert classes.source == "the records' labels and texts"


def test_texts_alone_are_numbered_in_sorted_order() -> None:
    classes = resolve_classes(named_in((None, "dog"), (None, "cat")), None)
    assert classes.categories == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    assert classes.ids == {(None, "dog"): 2, (None, "cat"): 1}
    assert "numbered in sorted order" in classes.source


def test_a_text_takes_the_label_that_others_give_it() -> None:
    classes = resolve_classes(named_in((17, "cat"), (None, "cat")), None)
    assert classes.ids[None, "cat"] == 17


def test_objects_without_any_class_are_one_category() -> None:
    assert resolve_classes(named_in((None, None)), None).categories == [{"id": 1, "name": ONLY_CATEGORY}]
    assert resolve_classes({}, None).categories == []
    mixed = resolve_classes(named_in((None, None), (None, "cat")), None)
    assert mixed.categories == [{"id": 1, "name": "cat"}, {"id": 2, "name": ONLY_CATEGORY}]


def test_a_label_map_knows_also_what_does_not_occur() -> None:
    classes = resolve_classes(named_in((None, "/m/cat"), (2, "dog"), (9, None)), MAP)
    assert classes.categories == MAP.categories
    assert classes.ids == {(None, "/m/cat"): 5, (2, "dog"): 2, (9, None): 9}
    assert classes.source == "labels.pbtxt"


def test_a_text_comes_before_a_label_and_what_a_label_map_lacks_is_left_out() -> None:
    """As the TF Object Detection API decodes records."""
    classes = resolve_classes(named_in((5, "dog"), (7, "cow"), (7, "pig"), (None, "hen"), (1, None), (2, None)), MAP)
    assert classes.ids == {
        (5, "dog"): 2,
        (7, "cow"): 9,
        (7, "pig"): None,
        (None, "hen"): None,
        (1, None): None,
        (2, None): 2,
    }
    assert classes.left_out == ["pig", "hen", "1"]


@pytest.mark.parametrize(
    ("named", "label_map", "message"),
    [
        ([(1, "cat"), (1, "dog")], None, "label 1 is 'cat' in shard-0 but 'dog' in shard-1"),
        ([(1, "cat"), (2, "cat"), (None, "cat")], None, "shard-2: .*no label, and the text 'cat', .* have 2 labels"),
        ([(1, "cat"), (None, "dog")], None, "shard-1: .*no label, and the text 'dog', .* have 0 labels.*label map"),
        ([(1, "cat"), (None, None)], None, "shard-1: .*no label and no text"),
        ([(2, "dog"), (5, "Dog")], MAP, "label 5 is '/m/cat' or 'cat' in labels.pbtxt but 'Dog' in shard-1"),
        ([(7, "pig"), (8, None)], MAP, r"shard-0: none of the classes is in labels.pbtxt, such as pig, 8"),
        ([(-1, "cat")], None, r"shard-0: label -1 is not a category id: an integer from 0 to 2\^53"),
        ([(2**53 + 1, None)], None, "shard-0: label 9007199254740993 is not a category id"),
        ([(None, None)], MAP, "shard-0: objects without label and text"),
    ],
)
def test_contradictions_name_the_file(named: list[Named], label_map: LabelMap | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve_classes(named_in(*named), label_map)
