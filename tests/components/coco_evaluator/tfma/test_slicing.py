"""Slices by TFMA's own rules, on features that are in the record and on derived ones."""

import pickle
from typing import Any

import pytest
import tensorflow as tf

from components.coco_evaluator.tfma import slicing
from components.coco_evaluator.tfma.slice_metrics import OVERALL, describe
from components.coco_evaluator.tfma.slicing import Slicer, empty_slicings, feature_values
from detection.input_pipeline.evaluation_records import parse_record
from schemas.errors import DataError
from tests.components.coco_evaluator.tfma.test_derived_features import bytes_feature, record

pytestmark = pytest.mark.slow  # importing TFMA takes most of it


def slices(example: tf.train.Example, *specs: dict[str, Any]) -> list[Any]:
    import tensorflow_model_analysis as tfma

    slicer = pickle.loads(pickle.dumps(Slicer([tfma.SlicingSpec(**spec) for spec in specs])))
    return list(slicer.slice_keys(parse_record(example.SerializeToString())))


@pytest.fixture
def example() -> tf.train.Example:
    made = record(size=(30, 40), areas=(5.0, 5000.0), license=3)
    made.features.feature["image/object/class/text"].bytes_list.value.extend([b"dog", b"cat", b"dog"])
    made.features.feature["weight"].float_list.value.append(0.5)
    made.features.feature["none"].int64_list.value.extend([])
    return made


def test_all_images_are_always_a_slice(example: tf.train.Example) -> None:
    assert slices(example) == [OVERALL]
    assert slices(example, {}) == [OVERALL]
    assert slices(example, {"feature_keys": ["image/height"]}) == [OVERALL, (("image/height", 30),)]


def test_a_feature_of_several_values_gives_several_slices(example: tf.train.Example) -> None:
    text = "image/object/class/text"
    assert slices(example, {"feature_keys": [text]}) == [OVERALL, ((text, "cat"),), ((text, "dog"),)]
    crossed = slices(example, {"feature_keys": [text, "object_size"]})
    assert len(crossed) == 1 + 2 * 2
    assert ((text, "cat"), ("object_size", "medium")) in crossed


def test_values_choose(example: tf.train.Example) -> None:
    assert slices(example, {"feature_values": {"coco/image/license": "3", "brightness": "dark"}}) == [
        OVERALL,
        (("brightness", "dark"), ("coco/image/license", 3)),
    ]
    assert slices(example, {"feature_values": {"coco/image/license": "4"}}) == [OVERALL]
    assert slices(example, {"feature_values": {"weight": "0.5"}}) == [OVERALL, (("weight", 0.5),)]


def test_what_an_image_lacks_makes_no_slice(example: tf.train.Example) -> None:
    for key in ("none", "nowhere", "coco/image/nowhere"):
        assert slices(example, {"feature_keys": [key, "brightness"]}) == [OVERALL]


def test_each_slice_once(example: tf.train.Example) -> None:
    spec = {"feature_keys": ["brightness"]}
    assert slices(example, spec, spec, {"feature_values": {"brightness": "dark"}}) == [
        OVERALL,
        (("brightness", "dark"),),
    ]


def test_a_feature_of_the_record_comes_first(example: tf.train.Example) -> None:
    example.features.feature["brightness"].CopyFrom(bytes_feature(b"by hand"))
    values = feature_values(parse_record(example.SerializeToString()), "brightness")
    assert values is not None
    assert values.tolist() == ["by hand"]


def test_what_is_no_text_makes_no_slices(example: tf.train.Example) -> None:
    with pytest.raises(DataError, match=r"EvalConfig: image/encoded holds \d+ bytes that are no text\. Slice by"):
        slices(example, {"feature_keys": ["image/encoded"]})


def test_too_many_slices_are_refused(example: tf.train.Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "_MAX_SLICES", 2)
    assert len(slices(example, {"feature_keys": ["image/object/class/text"]})) == 3
    with pytest.raises(DataError, match=r"slicing by image/height, image/object/class/text makes more than 2 slices"):
        slices(example, {"feature_keys": ["image/object/class/text"]}, {"feature_keys": ["image/height"]})


def test_slicings_without_images_are_told() -> None:
    import tensorflow_model_analysis as tfma

    specs = [
        tfma.SlicingSpec(),
        tfma.SlicingSpec(feature_keys=["brightness"]),
        tfma.SlicingSpec(feature_keys=["brightnes"], feature_values={"license": "3"}),
    ]
    assert empty_slicings(specs, [OVERALL, (("brightness", "dark"),)]) == [
        "EvalConfig: no image is in a slice by brightnes, license = 3. Features are those of the records, "
        "brightness, num_objects, object_size, image_size, aspect_ratio, "
        "and coco/image/<key of the image's COCO entry>."
    ]


def test_words() -> None:
    assert describe(OVERALL) == "all images"
    assert describe((("a", 1), ("b", "x"))) == "a = 1, b = x"
