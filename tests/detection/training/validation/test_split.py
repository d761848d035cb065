"""Records through a detector to metrics: every image once, to the bits of an evaluation from outside."""

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from detection.coco import evaluate
from detection.datasets.annotations.entries import Rows
from detection.inference.mean_losses import MeanLosses
from detection.inference.results import Results, joined
from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import variables_by_path
from detection.models.registry import detector_from_config
from detection.training import build_run
from detection.training.build_run import detector_copies, detector_evaluator_from_config
from detection.training.checkpoints.manager import load_weights
from detection.training.validation.split import Share, ValidationSplit
from detection.types import EncodedImage
from schemas.artifacts import EMA_PART, MODEL_PART
from schemas.config.config import Config
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError
from tests.detection.training import tiny_detector
from tests.detection.training.evaluation_records import CATEGORIES, write_coco_shards
from tests.detection.training.tiny_run import SMALL, tiny_config

IMAGES = 11


@pytest.fixture(scope="module", autouse=True)
def _tiny_is_known() -> None:
    tiny_detector.register()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    return write_coco_shards(tmp_path_factory.mktemp("eval"), IMAGES)


class _Finder:
    """Finds the objects themselves, shifted a little; remembers what it saw."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self._tree = tree
        self.seen: list[int] = []

    def detect(self, images: Sequence[EncodedImage], *, with_masks: bool = True) -> list[Results]:
        self.seen += [image.image_id for image in images]
        return [Results(np.array(self._rows(image.image_id)).reshape(-1, 7)) for image in images]

    def _rows(self, image_id: int) -> list[list[float]]:
        return [
            [image_id, x + one["id"] % 4, y, width, height, 1 / one["id"], one["category_id"]]
            for one in self._tree["annotations"]
            for x, y, width, height in [one["bbox"]]
            if one["image_id"] == image_id
        ]

    @property
    def all_rows(self) -> Rows:
        return joined(self.detect([EncodedImage(e["id"], "", b"", 0, 0) for e in self._tree["images"]])).rows


@pytest.mark.parametrize(("batch_size", "use_cats"), [(1, True), (4, False), (64, True)])
def test_every_image_is_seen_once_and_empty_ones_count(*, batch_size: int, use_cats: bool, data: Any) -> None:
    shards, tree = data
    finder: Any = _Finder(tree)
    split = ValidationSplit(RecordReader(shards), categories=CATEGORIES, batch_size=batch_size, use_cats=use_cats)
    [metrics] = split.evaluate(finder)
    assert len(split) == IMAGES
    assert sorted(finder.seen) == sorted(entry["id"] for entry in tree["images"])
    with_objects = {annotation["image_id"] for annotation in tree["annotations"]}
    assert with_objects < set(finder.seen)
    expected = evaluate(tree, finder.all_rows, use_cats=use_cats)
    assert metrics.by_name == expected.by_name
    np.testing.assert_array_equal(metrics.precision, expected.precision)
    assert 0.1 < metrics.by_name["AP"] < 1.0


def test_detectors_share_the_batches_and_run_at_the_same_time(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other; the last of the eleven images has no partner."""
    shards, tree = data
    finders: list[Any] = [_Finder(tree), _Finder(tree)]
    meeting = threading.Barrier(2, timeout=60)
    detect = _Finder.detect

    def detect_together(finder: _Finder, images: Any, **options: Any) -> Any:
        if len(finder.seen) < IMAGES // 2:
            meeting.wait()
        return detect(finder, images, **options)

    monkeypatch.setattr(_Finder, "detect", detect_together)
    [metrics] = ValidationSplit(RecordReader(shards), categories=CATEGORIES, batch_size=1).evaluate(*finders)
    assert [len(finder.seen) for finder in finders] == [6, 5]
    assert sorted(finders[0].seen + finders[1].seen) == sorted(entry["id"] for entry in tree["images"])
    monkeypatch.setattr(_Finder, "detect", detect)
    expected = evaluate(tree, _Finder(tree).all_rows)
    assert metrics.by_name == expected.by_name
    np.testing.assert_array_equal(metrics.precision, expected.precision)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_machines_share_the_batches(count: int, data: Any) -> None:
    """Each computes the metrics of all, from its own images and what the others send; one may have no image."""
    shards, tree = data
    sent: dict[int, bytes] = {}
    finders: list[Any] = [_Finder(tree) for _ in range(count)]

    def split_of(index: int, gather: Any) -> ValidationSplit:
        share = Share(index, count, gather)
        return ValidationSplit(
            RecordReader(shards), categories=CATEGORIES, batch_size=1, share=share, metrics=["pascal_voc_AP50"]
        )

    def send(index: int, state: bytes) -> list[bytes]:
        sent[index] = state
        return []  # of no other machine so far

    for index, finder in enumerate(finders):
        split_of(index, functools.partial(send, index)).evaluate(finder)
    seen = [image_id for finder in finders for image_id in finder.seen]
    [metrics] = split_of(1, lambda own: [sent[index] for index in range(count)]).evaluate(finders[1])
    assert sorted(seen) == sorted(entry["id"] for entry in tree["images"])
    expected = evaluate(tree, _Finder(tree).all_rows, metrics=["pascal_voc_AP50"])
    assert metrics.by_name == expected.by_name
    np.testing.assert_array_equal(metrics.precision, expected.precision)


def test_replicas_give_the_metrics_and_losses_of_one(
    data: Any, tmp_path: Path, two_replicas: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy on the second device has the checkpoint's weights."""
    losses = mock.Mock(side_effect=MeanLosses)
    monkeypatch.setattr(build_run, "MeanLosses", losses)
    shards, _ = data
    config = tiny_config(*SMALL, "evaluate.batch_size=2", "train.crowds=ignore")
    _averaged_checkpoint(config, tmp_path / "ckpt-2")
    results = []
    for strategy in (tf.distribute.OneDeviceStrategy("CPU:0"), two_replicas):
        copies = detector_copies(config, CATEGORIES, strategy=strategy)
        devices = [copy.variables[0].value.device[-5:] for copy in copies]
        assert devices == ["CPU:1"][: strategy.num_replicas_in_sync - 1]
        detector = detector_from_config(config.model, CATEGORIES, precision=config.train.precision)
        evaluator = detector_evaluator_from_config(
            config, RecordReader(shards), categories=CATEGORIES, detector=detector, copies=copies
        )
        assert losses.call_args.kwargs.items() >= {"copies": copies, "with_crowds": True}.items()
        results.append(evaluator(str(tmp_path / "ckpt-2")))
    alone, together = results
    np.testing.assert_array_equal(together.metrics[0].scores, alone.metrics[0].scores)
    assert together.metrics[0].by_name == alone.metrics[0].by_name
    assert together.losses == alone.losses
    assert set(alone.losses) == {"class_loss", "box_loss", "l2_loss", "loss"}


def test_a_sample_is_always_the_same(data: Any) -> None:
    shards, tree = data

    def seen(most: int) -> list[int]:
        finder: Any = _Finder(tree)
        ValidationSplit(RecordReader(shards), categories=CATEGORIES, batch_size=4, max_images=most).evaluate(finder)
        return list(finder.seen)

    assert len(seen(5)) == len(set(seen(5))) == 5
    assert seen(5) == seen(5)
    assert set(seen(5)) < set(seen(8))
    assert len(seen(1000)) == IMAGES


def test_pictures_are_of_the_same_images_each_time(data: Any) -> None:
    shards, tree = data

    def drawn(*, most: int | None = None, **options: Any) -> tuple[list[int], list[np.ndarray]]:
        finder: Any = _Finder(tree)
        split = ValidationSplit(RecordReader(shards), categories=CATEGORIES, batch_size=4, max_images=most)
        pictures = split.pictures(finder, AnalysisConfig(**options))
        return finder.seen, pictures

    seen, pictures = drawn(visualizations=5, score=0.0)
    assert len(seen) == len(pictures) == 5
    again, same = drawn(visualizations=5, score=0.0, most=6)
    assert again == seen
    for one, other in zip(pictures, same, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(drawn(visualizations=10, most=6)[1]) == 6
    assert drawn(visualizations=0) == ([], [])
    for picture, bare in zip(pictures, drawn(visualizations=5, score=1.0)[1], strict=True):
        half = picture.shape[1] // 2
        assert (picture[:, half:] != bare[:, half:]).any() == (tree_has_objects(tree, seen.pop(0)))


def tree_has_objects(tree: dict[str, Any], image_id: int) -> bool:
    return any(annotation["image_id"] == image_id for annotation in tree["annotations"])


def test_a_metric_without_objects_is_refused_before_training(data: Any) -> None:
    shards, _ = data
    split = ValidationSplit(RecordReader(shards), categories=CATEGORIES, batch_size=4)
    split.require_defined("APs")
    with pytest.raises(DataError, match=r"validation\.metric=APl: undefined, because none of the 11 images"):
        split.require_defined("APl")


def _averaged_checkpoint(config: Config, path: Path, *, without: str | None = None) -> None:
    """Random raw weights and EMA weights, as a training run saves them."""
    tf.random.set_seed(3)
    detector = detector_from_config(config.model, CATEGORIES)
    for variable in detector.variables:
        variable.assign(variable.value + 0.05 * tf.random.uniform(variable.shape))
    raw = variables_by_path(detector.variables)
    ema = {name: tf.Variable(value + 0.01) for name, value in raw.items() if without is None or without not in name}
    tf.train.Checkpoint(**{MODEL_PART: raw, EMA_PART: ema}).write(str(path))


def test_ema_weights_are_loaded_and_raw_weights_without_them(tmp_path: Path) -> None:
    config = tiny_config(*SMALL)
    _averaged_checkpoint(config, tmp_path / "ckpt-2", without="moving_")
    detector = detector_from_config(config.model, CATEGORIES)
    load_weights(detector, tmp_path / "ckpt-2", weights="ema")
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-2"))
    for variable in detector.variables:
        key = variable.path.replace("/", ".S")
        part = MODEL_PART if "moving_" in variable.path else EMA_PART
        expected = reader.get_tensor(f"{part}/{key}/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(variable.numpy(), expected, err_msg=variable.path)


@pytest.mark.parametrize(
    ("keys", "classes", "message"), [(SMALL, 7, r"has shape \[.*\], in the checkpoint \["), ((), 3, "it is missing")]
)
def test_a_checkpoint_of_another_detector_is_refused(
    keys: Sequence[str], classes: int, message: str, tmp_path: Path
) -> None:
    _averaged_checkpoint(tiny_config(*SMALL), tmp_path / "ckpt-2")
    detector = detector_from_config(tiny_config(*keys).model, [{}] * classes)
    with pytest.raises(DataError, match=f"ckpt-2: does not match its configuration.*{message}"):
        load_weights(detector, tmp_path / "ckpt-2", weights="ema")
