"""The largest batch that fits into the memory, and the error of one that does not."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from detection.devices import host_memory
from detection.training import memory
from detection.training.build_step import state_from_config
from detection.training.memory import explain_out_of_memory, find_batch_size, largest_batch_size, require_measurable
from detection.training.resolve import assumed
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError, find_user_error
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import CATEGORIES, tiny_config


def _search(
    bytes_of: Callable[[int], float], limit: float, *, multiple: int = 1, most: int = 10_000, ends_at: float = math.inf
) -> tuple[int, list[int]]:
    """The batch size found, and those tried; trials that need more than `ends_at` bytes run out of memory."""
    tried: list[int] = []

    def measure(size: int) -> int | None:
        tried.append(size)
        return int(bytes_of(size)) if bytes_of(size) <= ends_at else None

    return largest_batch_size(measure, limit=limit, multiple=multiple, most=most), tried


@pytest.mark.parametrize("multiple", [1, 2, 8])
@pytest.mark.parametrize("limit", [400, 1000, 5000, 77777])
@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda size: 200 + 10 * size,
        lambda size: max(250, 100 + 10 * size),  # the first trials need the same
        lambda size: 200 + 10 * size + size**1.5,
        lambda size: 200 + 10 * size - size**0.9,
        lambda size: 200 + 100 * (size // 8),
    ],
)
def test_the_largest_that_fits_is_found(bytes_of: Callable[[int], float], limit: int, multiple: int) -> None:
    size, tried = _search(bytes_of, limit, multiple=multiple)
    assert size % multiple == 0
    assert bytes_of(size) <= limit < bytes_of(size + multiple)
    assert len(tried) <= 24
    # No trial needs much more than the machine may have.
    assert max(map(bytes_of, tried)) <= max(4 * limit, bytes_of(multiple))


@pytest.mark.parametrize("limit", [math.inf, 1500.0])
def test_trials_that_run_out_of_memory_do_not_fit(limit: float) -> None:
    """Also where the limit lies above what can be allocated."""
    size, tried = _search(lambda size: 200 + 10 * size, limit, ends_at=1003)
    assert size == 80
    assert len(tried) <= 14


def test_a_straight_line_needs_few_trials() -> None:
    assert _search(lambda size: 200 + 10 * size, 1003) == (80, [1, 2, 8, 32, 80, 81])


def test_no_batch_is_larger_than_the_records() -> None:
    assert _search(lambda size: 1, 10, multiple=4, most=30)[0] == 28
    assert _search(lambda size: 1, 10, multiple=4, most=3)[0] == 4


def test_one_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(CocoflowError, match=r"a step on 2 image\(s\) does not fit .* of 1.0 GB; 2.5 GB are needed"):
        _search(lambda size: 2.5e9, 1e9, multiple=2)
    with pytest.raises(CocoflowError, match=r"does not fit into the memory. Raise"):
        _search(lambda size: 2, math.inf, ends_at=1)


def test_an_exhausted_memory_names_both_keys() -> None:
    train_config = load_config(None, ["train.batch_size=6", "train.accumulate_steps=2"]).train
    error = tf.errors.ResourceExhaustedError(None, None, "failed to allocate\nmore")
    with (
        pytest.raises(CocoflowError, match=r"train.batch_size = 6 and train.accumulate_steps = 2 .* failed to alloc"),
        explain_out_of_memory(train_config),
    ):
        raise error


def test_a_full_disk_is_no_lack_of_memory() -> None:
    """TensorFlow's summary writer, which writes between steps, raises the same type of error."""
    text = "/d/logs/events.v2; No space left on device\n\tFailed to flush 1 events"
    train_config = load_config(None, ["train.batch_size=4"]).train
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught, explain_out_of_memory(train_config):
        raise tf.errors.ResourceExhaustedError(None, None, text)
    assert str(find_user_error(caught.value)).startswith("cannot write to the disk: No space left on device (/d/logs/")


def test_a_limit_is_needed_where_there_is_no_gpu(two_replicas: tf.distribute.Strategy) -> None:
    with pytest.raises(ConfigError, match=r"train.batch_size = auto: set train.memory_limit"):
        require_measurable(load_config(None, ["train.batch_size=auto"]).train, two_replicas)


@pytest.mark.extended  # a minute and a half
@pytest.mark.slow
def test_a_trial_on_a_cpu_measures_what_its_steps_need(tmp_path: Path) -> None:
    """Twenty-eight more images need at least the outputs of the first three layers, and no more than twenty times."""
    shards = write_shards(tmp_path, rectangles(10))
    config = tiny_config("train.batch_size=auto", "train.memory_limit=1", "model.image_size=128")
    few, many = (memory._measure_apart(memory.with_batch_size(config, size), shards, CATEGORIES) for size in (4, 32))
    assert few is not None
    assert many is not None
    stem = 28 * 64 * 64 * 16 * 4
    assert 3 * stem < many - few < 60 * stem


@pytest.mark.parametrize(("images", "expected"), [(10, 7), (6, 6)])
def test_trials_of_a_cpu_use_all_of_a_limit(
    images: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the ten records, seven fit; a batch has no more images than are trained on."""
    monkeypatch.setattr(memory, "_measure_apart", lambda config, *_: 10**9 + 10**8 * config.train.effective_batch_size)
    config = tiny_config("train.batch_size=auto", "train.memory_limit=2.45", "train.accumulate_steps=2")
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    shards = write_shards(tmp_path, rectangles(10))
    assert find_batch_size(config, shards=shards, images=images, categories=CATEGORIES, strategy=one) == expected


@pytest.mark.slow
def test_a_trial_that_fails_tells_why(tmp_path: Path) -> None:
    config = tiny_config("train.batch_size=2")
    with pytest.raises(CocoflowError, match=r"train.batch_size = auto: trial steps failed: .*nowhere"):
        memory._measure_apart(config, [str(tmp_path / "nowhere")], CATEGORIES)


def test_a_training_that_cannot_fit_is_told_with_its_numbers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = tf.distribute.get_strategy()
    tiny_detector.register()
    config = load_config(None, ["model.name=tiny", "train.batch_size=100"])
    state = state_from_config(assumed(config, replicas=1), [{}] * 3, strategy=strategy)
    kept = memory._kept_bytes(state.model)
    assert kept == 2 * 2 * 8 * 8 * 8 * 4, "two convolutions and their batch norms: 8 x 8 cells, 8 channels, float32"
    monkeypatch.setattr(memory, "_MAX_PIXEL_BYTES", math.inf)
    needed = 100 * kept + memory._state_bytes(state)
    assert memory._state_bytes(state) >= 4 * 4 * sum(math.prod(variable.shape) for variable in state.trainable)

    def check(available: float) -> None:
        caplog.clear()
        monkeypatch.setattr(memory, "host_memory", lambda: int(available))
        memory.require_memory(config, state, strategy)

    check(1.01 * needed)
    assert not caplog.text
    check(0.6 * needed)
    assert "a training step needs at least 0.0 GB without XLA, and the machine has" in caplog.text
    assert "100 images of 32 x 32 pixels" in caplog.text
    with pytest.raises(ConfigError, match=r"needs at least .* Lower train\.batch_size"):
        check(0.4 * needed)
    monkeypatch.setattr(memory, "_MAX_PIXEL_BYTES", 1)
    check(0.4 * needed)  # far from the memory, the network is not traced
    assert host_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
