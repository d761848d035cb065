"""Files for MediaPipe Tasks: MediaPipe itself finds what the detector finds; what it cannot run is refused."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.export.mediapipe.reader import read_detector_file
from detection.export.mediapipe_model import convert_to_mediapipe, require_mediapipe
from detection.inference.formats.file_runtimes import Delegate, load_network
from detection.inference.formats.serving_module import ServingModule
from detection.models.detector import Detector
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector, detector_from_config
from detection.types import Resizing
from schemas import serving
from schemas.config.input_size import ResizeConfig
from schemas.errors import ConfigError, DataError
from tests.detection.export.exported_models import built_in_ops, export_config, random_detector
from tests.detection.export.mediapipe.detector_process import Detection
from tests.detection.training.tiny_run import CATEGORIES

Detect = Callable[..., list[list[Detection]]]
Array = np.ndarray[Any, Any]

SCORE = 0.03  # of a network with random weights; each image has fewer detections above it than a file has places
# The first has no name: an output of the network without a category.
UNNAMED: list[dict[str, Any]] = [
    {"id": 3, "name": None},
    {"id": 7, "name": 'b "é"\t; 猫'},
    {"id": 40, "name": "x" * 500},
]


@pytest.fixture(scope="module")
def images() -> list[Array]:
    """Images of smooth content in the size of the input."""
    random = np.random.default_rng(5)
    coarse = random.integers(0, 256, (6, 6, 6, 3)).astype(np.float32)
    return list(tf.cast(tf.clip_by_value(tf.image.resize(coarse, (64, 64), "bicubic"), 0, 255), tf.uint8).numpy())


def stretching(**postprocess: Any) -> Detector:
    """`random_detector`, whose images are stretched."""
    keys = {"score_threshold": 0.01, **postprocess}
    assignments = [f"model.postprocess.{key}={value}" for key, value in keys.items()]
    config = export_config("model.resize.mode=stretch", *assignments)
    detector = detector_from_config(config.model, CATEGORIES)
    for variable, value in zip(detector.variables, random_detector().variables, strict=True):
        variable.assign(value)
    return detector


def convert(detector: Detector, delegate: Delegate = "cpu", categories: Any = CATEGORIES, **options: Any) -> bytes:
    return convert_to_mediapipe(detector, categories, delegate=delegate, precision="float32", **options)


def of_detector(detector: Detector, images: list[Array], categories: Any) -> list[list[tuple[Any, ...]]]:
    """(x, y, width, height, label, score) of the SavedModel's detections per image, cut to whole pixels."""
    names = {category["id"]: category["name"] for category in categories}
    outputs = ServingModule(detector, categories).serve_images(tf.constant(np.stack(images)))
    boxes, ids, scores, counts = (
        outputs[name].numpy() for name in (serving.BOXES, serving.CLASSES, serving.SCORES, serving.COUNT)
    )
    found: list[list[tuple[Any, ...]]] = []
    for row, count in enumerate(counts):
        corners = (boxes[row, :count] * np.float32(64)).tolist()
        found.append(
            [
                (int(xmin), int(ymin), int(xmax - xmin), int(ymax - ymin), names[int(id_)], float(score))
                for (ymin, xmin, ymax, xmax), id_, score in zip(corners, ids[row], scores[row], strict=False)
            ]
        )
    return found


def of_mediapipe(detections: Iterable[Detection]) -> list[tuple[Any, ...]]:
    return [(*one[:4], category.name, category.score) for one in detections for category in one.categories]


def assert_both_find(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], *, pixels: int = 1) -> None:
    """Every detection above `SCORE` has its counterpart in the other list, in both directions."""
    for some, others in ((found, expected), (expected, found)):
        for *box, label, score in some:
            if score > SCORE:
                assert any(
                    label == other[4]
                    and abs(score - other[5]) < 1e-4
                    and np.abs(np.subtract(box, other[:4])).max() <= pixels
                    for other in others
                ), (box, label, score)


@pytest.mark.parametrize(
    ("delegate", "categories", "postprocess"),
    [
        ("coral", UNNAMED, {}),  # for "cpu", also see tests/pipelines/commands/test_export.py
        pytest.param("cpu", UNNAMED, {}, marks=pytest.mark.extended),
        pytest.param("cpu", CATEGORIES, {"nms": "gaussian", "sigma": 0.3}, marks=pytest.mark.extended),
        pytest.param("cpu", CATEGORIES, {"class_agnostic": True}, marks=pytest.mark.extended),
        pytest.param("cpu", CATEGORIES, {"max_detections_per_class": 2}, marks=pytest.mark.extended),
        pytest.param("cpu", CATEGORIES, {"one_class_per_anchor": True}, marks=pytest.mark.extended),
        pytest.param("coral", CATEGORIES, {}, marks=pytest.mark.extended),
    ],
)
def test_mediapipe_finds_what_the_saved_model_finds(
    delegate: Delegate, categories: Any, postprocess: dict[str, Any], images: list[Array], mediapipe_detect: Detect
) -> None:
    detector = stretching(**postprocess)
    content = convert(detector, delegate, categories)
    if delegate == "cpu":
        assert "NON_MAX_SUPPRESSION_V" in " ".join(built_in_ops(content))
    count = 0
    detected = mediapipe_detect(content, images)
    for expected, detections in zip(of_detector(detector, images, categories), detected, strict=True):
        assert_both_find(of_mediapipe(detections), expected)
        count += sum(score > SCORE for *_, score in expected)
    assert count > 20


@pytest.fixture(scope="module")
def gpu_file() -> bytes:
    return convert(stretching(), "gpu")


def test_for_gpus_mediapipe_finds_what_its_rules_in_numpy_find(
    gpu_file: bytes, images: list[Array], mediapipe_detect: Detect
) -> None:
    assert read_detector_file(gpu_file, "m").metadata.anchors_yxhw is not None
    run, _ = load_network("mediapipe", gpu_file, where="m", categories=CATEGORIES, curves=None)
    names = {category["id"]: category["name"] for category in CATEGORIES}
    for image, detections in zip(images, mediapipe_detect(gpu_file, images, score_threshold=SCORE), strict=True):
        outputs = run(image[np.newaxis].astype(np.float32))
        expected = []
        for box, id_, score in zip(
            *(outputs[name][0] for name in (serving.BOXES, serving.CLASSES, serving.SCORES)), strict=True
        ):
            low, high = np.float32(64) * box[:2], np.float32(64) * box[2:]
            # MediaPipe sets negative corners to 0 without shortening the box, unless it is larger than the image.
            sides = np.minimum(np.trunc(high - low), 64).astype(int)
            y, x = np.maximum(np.trunc(low), 0).astype(int)
            expected.append((int(x), int(y), int(sides[1]), int(sides[0]), names[int(id_)], float(score)))
        assert_both_find(of_mediapipe(detections), expected)
        assert detections


@pytest.mark.extended
@pytest.mark.parametrize("delegate", ["cpu", "coral", "gpu"])
def test_mediapipe_finds_what_an_int8_file_finds(
    delegate: Delegate, images: list[Array], mediapipe_detect: Detect
) -> None:
    content = convert_to_mediapipe(
        stretching(),
        CATEGORIES,
        delegate=delegate,
        precision="int8",
        calibration=[image[np.newaxis] for image in images],
    )
    assert read_detector_file(content, "m").metadata.normalization is None
    run, _ = load_network("mediapipe", content, where="m", categories=CATEGORIES, curves=None)
    for image, detections in zip(images, mediapipe_detect(content, images, score_threshold=SCORE), strict=True):
        scores = run(image[np.newaxis])[serving.SCORES][0]
        found = sorted((score for *_, score in of_mediapipe(detections)), reverse=True)
        expected = scores[scores > SCORE]
        # Many of the quantised scores are equal, and the order of equal ones decides what is suppressed.
        assert abs(len(found) - len(expected)) <= 1
        for some, others in ((found, expected), (expected, found)):
            assert sum(np.abs(np.subtract(others, score)).min() > 1e-3 for score in some) <= 2


@pytest.mark.extended  # half a minute each, D3 to D7 minutes
@pytest.mark.parametrize(
    "name", [name for name in EFFICIENTDETS if not name.endswith(("d3", "d4", "d5", "d6", "d7", "d7x"))]
)
def test_mediapipe_loads_every_preset_for_phones(name: str, mediapipe_detect: Detect) -> None:
    detector = build_detector(name, num_classes=len(CATEGORIES), resize=ResizeConfig(mode="stretch"))
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (*detector.image_size, 3), np.uint8)
    content = convert_to_mediapipe(detector, CATEGORIES, delegate="cpu", precision="float16")
    run, _ = load_network("mediapipe", content, where="m", categories=CATEGORIES, curves=None)
    outputs = run(image[np.newaxis].astype(np.float32))
    (detections,) = mediapipe_detect(content, [image])
    found = sorted((score for *_, score in of_mediapipe(detections)), reverse=True)
    np.testing.assert_allclose(found, outputs[serving.SCORES][0][: len(found)], atol=1e-3)
    assert found


def test_a_file_with_other_labels_than_its_categories_is_refused(gpu_file: bytes) -> None:
    with pytest.raises(DataError, match="m: its labels are not the categories beside it"):
        load_network("mediapipe", gpu_file, where="m", categories=UNNAMED, curves=None)


@pytest.mark.parametrize(
    ("delegate", "postprocess", "message"),
    [
        ("cpu", {"nms": "linear"}, "LiteRT has no built-in op for linear soft suppression"),
        ("coral", {"nms": "linear"}, "LiteRT has no built-in op for linear soft suppression"),
        ("coral", {"nms": "gaussian"}, "TFLite_Detection_PostProcess suppresses hard"),
        ("coral", {"class_agnostic": True}, "TFLite_Detection_PostProcess suppresses hard"),
        ("coral", {"iou_threshold": 0.0}, "does not support model.postprocess.iou_threshold = 0"),
    ],
)
def test_suppression_that_mediapipe_cannot_do_is_refused(
    delegate: Delegate, postprocess: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        require_mediapipe(stretching(**postprocess), delegate, what="x")


def test_images_that_keep_their_aspect_ratio_are_refused() -> None:
    detector = stretching()
    detector.resizing = Resizing(detector.image_size)
    with pytest.raises(ConfigError, match=r"push\.mediapipe with model.resize.mode = fit: MediaPipe stretches images"):
        require_mediapipe(detector, "cpu", what="push.mediapipe")


def test_a_name_of_two_lines_is_refused() -> None:
    categories = [{"id": 17, "name": "two\nlines"}, *CATEGORIES[1:]]
    with pytest.raises(DataError, match=r"category 17: the name .*two.nlines.* has a line break"):
        convert(stretching(), "cpu", categories)
