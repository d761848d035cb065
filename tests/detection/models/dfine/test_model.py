"""The detector: parameters of the presets, and detections against those of the authors' code."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dfine.config import DFINES
from detection.models.dfine.model import DFine
from detection.models.registry import build_detector
from detection.types import ImageInfo, Labels
from schemas.errors import ConfigError
from tests.detection.models.dfine import original
from tests.detection.models.dfine.test_gradients import build, load

# Of the authors' models with 80 classes, without the two fixed numbers of the decoder, and the row of no object.
PARAMETERS = {
    "dfine-n": 3_782_693 - 128,
    "dfine-s": 10_321_877 - 256,
    "dfine-m": 19_590_064 - 256,
    "dfine-l": 31_289_848 - 256,  # whose backbone's batch norm trains, as in DEIM
    "dfine-x": 62_715_480 - 256,
}


LARGE = ("dfine-l", "dfine-x")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extended) if name in LARGE else name for name in PARAMETERS]
)
def test_parameters_equal_the_originals(name: str) -> None:
    detector = DFine(config=DFINES[name].changed({"image_size": (64, 64)}), num_classes=80, name=name)
    assert sum(int(np.prod(one.shape)) for one in detector.trainable_variables) + 2 == PARAMETERS[name]


@pytest.mark.parametrize("name", ["n256_eval", "n192x320_eval"])
def test_detections_are_those_of_the_authors(name: str, oracle_dir: Path) -> None:
    """Their 300 best pairs of a query and a class, some of which differ by 3e-7 in score."""
    case, arrays, images = original.read_case(oracle_dir / "dfine", name)
    detector = build(case)
    options = detector.config.postprocess.model_copy(update={"score_threshold": 0.0, "max_detections": 300})
    detector.config = detector.config.model_copy(update={"postprocess": options})
    load(detector, oracle_dir / "dfine", case["weights"])
    sizes = arrays["original_sizes_w_h"][:, ::-1].astype(np.float32)
    # The original stretches pictures to the input.
    info = ImageInfo(tf.constant(sizes), tf.constant(np.array(detector.image_size) / sizes, tf.float32))
    outputs = detector(tf.constant(images))
    found = detector.detect(outputs, info)
    raw = detector.raw_detections(outputs, info)
    for image, (height, width) in enumerate(sizes):
        scores, classes = found.scores[image].numpy(), found.classes[image].numpy()
        np.testing.assert_allclose(scores, arrays["detections_scores"][image], atol=1e-5)
        assert int(found.num[image]) == 300
        pixels = found.boxes[image].numpy() * [height, width, height, width]
        expected = np.clip(arrays["detections_boxes"][image][:, [1, 0, 3, 2]], 0, [height, width, height, width])
        theirs = arrays["detections_labels"][image].tolist()
        np.testing.assert_array_equal(np.sort(classes), np.sort(theirs))
        order, other = np.lexsort([*pixels.T, classes]), np.lexsort([*expected.T, theirs])
        np.testing.assert_allclose(pixels[order], expected[other], atol=0.1)
        assert raw.scores.shape[1:] == (300, 80)
        np.testing.assert_allclose(np.max(raw.scores[image]), scores[0], rtol=1e-6)


def test_what_is_encoded_is_decoded_to_the_outputs() -> None:
    detector = build_detector("dfine-pico", num_classes=3, image_size=64)
    images = tf.random.stateless_uniform([2, 64, 64, 3], [0, 0])
    whole, parts = detector(images), detector.decode(detector.encode(images))
    for name, values in detector.named_outputs(whole).items():
        np.testing.assert_array_equal(values, detector.named_outputs(parts)[name], err_msg=name)


def test_more_objects_than_queries_are_refused() -> None:
    """An object without a query would have no loss, and no word of it."""
    detector = build_detector("dfine-pico", num_classes=3, image_size=64, overrides={"decoder": {"queries": 20}})
    labels = Labels(tf.zeros([2, 21, 4]), tf.zeros([2, 21], tf.int32), tf.zeros([2, 21], tf.bool))
    with pytest.raises(ConfigError, match=r"model\.max_instances = 21: dfine-pico has 20 queries"):
        detector.losses(detector(tf.zeros([2, 64, 64, 3])), labels)
