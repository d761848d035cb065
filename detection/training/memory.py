"""Memory of a training step: an estimate, the largest batch that fits, and the error of a batch that does not.

On GPUs, trial steps run in this process, and TensorFlow's allocator reports their peak.  On CPUs,
each trial runs in a separate process, and its peak resident memory counts: memory freed by an
earlier trial would hide that of the next.
"""

import contextlib
import gc
import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.devices import host_memory
from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import Detector, variable_bytes
from detection.storage.processes import tied
from detection.training.build_input import batches_from_config, input_options_from_config
from detection.training.build_step import is_deterministic, state_from_config, train_loop_from_config
from detection.training.distributed.strategy import make_strategy, on_cpu, op_determinism, worker_count
from detection.training.engine.state import TrainState
from detection.training.resolve import assumed, with_batch_size
from schemas.config.config import Config
from schemas.config.config_io import from_yaml, to_yaml
from schemas.config.train.training import TrainConfig
from schemas.errors import CocoflowError, ConfigError, disk_refusal

_LOGGER = logging.getLogger("cocoflow.trainer")
_GIGABYTE = 1e9
_STEPS = 2  # steps per trial; the second one starts while the input reads ahead
_GPU_SHARE = 0.9  # usable fraction of a GPU's memory by default; evaluation and fragmentation need the rest
_MAX_GROWTH = 4  # max growth factor between trials: small batches predict the slope poorly
_KEPT_OPS = ("Conv2D", "DepthwiseConv2dNative", "FusedBatchNormV3")  # the gradients need their outputs
_MAX_PIXEL_BYTES = 10_000  # max bytes of these outputs per input pixel; EfficientDet-D0 has 1,250
_STATUS = Path("/proc/self/status")

# Returns the peak bytes of trial steps with a batch size; None: they ran out of memory.
Measure = Callable[[int], int | None]


@contextlib.contextmanager
def explain_out_of_memory(train_config: TrainConfig) -> Iterator[None]:
    """Turns TensorFlow's out-of-memory error of a step into a message with a remedy.

    A full disk, on which a summary cannot be written, is an error of the same type: it stays as it is.

    Raises:
        CocoflowError: a step ran out of memory.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if disk_refusal(error) is not None:
            raise
        size, count = train_config.fixed_batch_size, train_config.accumulate_steps
        raise CocoflowError(
            f"out of memory: a training step with train.batch_size = {size} and train.accumulate_steps = {count} does "
            "not fit. Lower train.batch_size and raise train.accumulate_steps by the same factor: the update stays the "
            "same, except for batch norm and some means of Faster and Mask R-CNN. train.batch_size=auto finds the "
            "largest batch that fits. A smaller model.image_size also needs less memory. TensorFlow's "
            f"message: {error.message.partition(chr(10))[0]}"
        ) from error


def require_memory(config: Config, state: TrainState, strategy: tf.distribute.Strategy) -> None:
    """Refuses a training run that cannot fit into the memory of the GPUs, or of the machine without GPUs.

    The estimate is a lower bound of the memory until the gradients are done: the outputs of the
    network's convolutions and batch norms, all variables, and the gradients.  Trial steps on a CPU needed
    1.3 to 1.7 times as much per image (Faster R-CNN R18 and EfficientDet-D0 at 512 pixels, nano at 256), plus 1.5
    to 3.2 GB; XLA may keep half of it.  So an estimate above the memory is a warning, and above twice the memory an
    error.

    Args:
        config: configuration of the run, with a batch size; uses the sections `model` and `train`.
        state: state of the training run.
        strategy: strategy of the run.

    Raises:
        ConfigError: the run cannot fit into the memory.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy) or state.model.config.gradient_checkpointing:
        return
    cpu = on_cpu(strategy)
    available = host_memory() if cpu else _gpu_memory()
    copies = strategy.num_replicas_in_sync if cpu else 1  # replicas that share one memory
    images = copies * config.train.fixed_batch_size // strategy.num_replicas_in_sync
    height, width = state.model.image_size
    if images * height * width * _MAX_PIXEL_BYTES < available:
        return  # saves the time to trace the network
    by_images, by_state = images * _kept_bytes(state.model), copies * _state_bytes(state)
    if by_images + by_state <= available:
        return
    message = (
        f"a training step needs at least {(by_images + by_state) / _GIGABYTE:.1f} GB without XLA, and the "
        f"{'machine' if cpu else 'GPU'} has {available / _GIGABYTE:.1f} GB: {by_images / _GIGABYTE:.1f} GB for the "
        f"activations of {images} images of {height} x {width} pixels, {by_state / _GIGABYTE:.1f} GB for weights, "
        "gradients and optimizer. Lower train.batch_size (and raise train.accumulate_steps for the same update) or "
        "model.image_size, or choose a smaller detector."
    )
    if by_images + by_state > 2 * available:
        raise ConfigError(message)
    # The start check disables the trainer's logger during this call.
    logging.getLogger("cocoflow.memory").warning("%s", message)


def _kept_bytes(model: Detector) -> int:
    """Returns the bytes of the outputs of convolutions and batch norms, per image."""
    network = tf.function(lambda images: model(images, training=True))
    graph = network.get_concrete_function(tf.TensorSpec([1, *model.image_size, 3])).graph
    outputs = [operation.outputs[0] for operation in graph.get_operations() if operation.type in _KEPT_OPS]
    return sum(math.prod(output.shape) * output.dtype.size for output in outputs if output.shape.is_fully_defined())


def _state_bytes(state: TrainState) -> int:
    """Returns the bytes of all variables and gradients."""
    return variable_bytes([*saved_variables(state), *state.trainable])


def saved_variables(state: TrainState) -> list[Any]:
    """Returns the variables that a checkpoint has: of the model, the optimizer and the EMA."""
    ema = [] if state.ema is None else state.ema.weights.values()
    return [*state.model.variables, *state.optimizer.variables, *ema]


def require_measurable(train_config: TrainConfig, strategy: tf.distribute.Strategy) -> None:
    """Checks that `find_batch_size` supports a strategy.

    Raises:
        ConfigError: the strategy is not supported.
    """
    reason = None
    if isinstance(strategy, tf.distribute.TPUStrategy):
        reason = "TPUs do not report free memory"
    elif worker_count(strategy) > 1:
        reason = "a machine that runs out of memory would end the training on all machines"
    elif on_cpu(strategy) and train_config.memory_limit is None:
        raise ConfigError(
            "train.batch_size = auto: set train.memory_limit, the GB that training may use; on CPUs, the only other "
            "limit is the machine's memory."
        )
    elif on_cpu(strategy) and not _STATUS.exists():
        reason = f"{_STATUS}, with the memory of a process, exists on Linux only"
    if reason is not None:
        raise ConfigError(f"train.batch_size = auto: {reason}. Set a number, found on one machine with GPUs or a CPU.")


def find_batch_size(
    config: Config,
    *,
    shards: Sequence[str],
    images: int,
    categories: Sequence[Mapping[str, Any]],
    strategy: tf.distribute.Strategy,
) -> int:
    """Finds the largest global batch size whose training steps fit into the memory.

    Trials run the first steps of the run, so they include its input, augmentation and optimizer.

    Args:
        config: configuration with `train.batch_size` = auto.
        shards: TFRecord files of the training records.
        images: number of training images, the max batch size.
        categories: COCO categories, in the order of the network's classes.
        strategy: strategy of the run; the batch size is a multiple of its replicas.

    Raises:
        ConfigError: the strategy is not supported.
        CocoflowError: one image per replica does not fit, or a trial failed.
    """
    require_measurable(config.train, strategy)
    reader, apart = RecordReader(shards), on_cpu(strategy)

    def measure(size: int) -> int | None:
        sized = with_batch_size(config, size)
        if apart:
            return _measure_apart(sized, shards, categories)
        return _measure_on_gpus(sized, reader, categories, strategy)

    memory_limit = config.train.memory_limit
    limit = _GPU_SHARE * _gpu_memory() if memory_limit is None else memory_limit * _GIGABYTE
    return largest_batch_size(measure, limit=limit, multiple=strategy.num_replicas_in_sync, most=images)


def largest_batch_size(measure: Measure, *, limit: float, multiple: int, most: int) -> int:
    """Searches for the largest batch size whose trial steps need at most `limit` bytes.

    The next size to try is where a straight line through two measurements reaches the limit.  If
    that contradicts a trial or narrows the range too little, it is halfway between the largest size
    that fits and the smallest that does not.

    Args:
        measure: measures a batch size; assumed to increase with it.
        limit: max bytes.
        multiple: the batch size is a multiple of this.
        most: max batch size, unless `multiple` is larger.

    Raises:
        CocoflowError: `multiple` images do not fit.
    """
    peaks: dict[int, int | None] = {}

    def fits(units: int) -> bool:
        peak = peaks[units] = measure(units * multiple)
        text = "do not fit" if peak is None else f"need {peak / _GIGABYTE:.2f} GB"
        _LOGGER.info("train.batch_size = auto: %d images %s", units * multiple, text)
        return peak is not None and peak <= limit

    if not fits(1):
        needed = "" if peaks[1] is None else f" of {limit / _GIGABYTE:.1f} GB; {peaks[1] / _GIGABYTE:.1f} GB are needed"
        raise CocoflowError(
            f"train.batch_size = auto: a step on {multiple} image(s) does not fit into the memory{needed}. Raise "
            "train.memory_limit, or choose a smaller model.image_size or detector. train.accumulate_steps cannot help."
        )
    low, high = 1, max(most // multiple, 1) + 1
    halved = True
    while high - low > 1:
        width, candidate = high - low, None
        if halved or high not in peaks:
            candidate = _where_line_reaches(limit, {units: peak for units, peak in peaks.items() if peak is not None})
        if candidate is None or candidate >= high:
            candidate = (low + high) // 2 if high in peaks else 2 * low
        candidate = min(max(candidate, low + 1), high - 1, _MAX_GROWTH * low)
        low, high = (candidate, high) if fits(candidate) else (low, candidate)
        halved = 2 * (high - low) <= width
    _LOGGER.info("train.batch_size = auto: %d", low * multiple)
    return low * multiple


def _where_line_reaches(limit: float, peaks: Mapping[int, int]) -> int | None:
    """Returns the largest size within the limit on a line through two measurements; None: no rising line."""
    large = max(peaks)
    small = max((units for units in peaks if 2 * units <= large), default=large)
    if peaks[large] <= peaks[small] or math.isinf(limit):
        return None
    slope = (peaks[large] - peaks[small]) / (large - small)
    return large + math.floor((limit - peaks[large]) / slope)


def _gpu_memory() -> float:
    """Returns the usable bytes of the GPU with the least memory for TensorFlow."""
    from tensorflow.python.client import device_lib  # TensorFlow has no public API for this

    return float(min(device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU"))


def _measure_on_gpus(
    config: Config, reader: RecordReader, categories: Sequence[Mapping[str, Any]], strategy: tf.distribute.Strategy
) -> int | None:
    names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
    gc.collect()  # frees tensors of the previous trial
    for name in names:
        tf.config.experimental.reset_memory_stats(name)
    try:
        _run_trial(config, reader, categories, strategy)
    except tf.errors.ResourceExhaustedError as error:
        if disk_refusal(error) is not None:
            raise
        return None
    return max(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names)


def _run_trial(
    config: Config, reader: RecordReader, categories: Sequence[Mapping[str, Any]], strategy: tf.distribute.Strategy
) -> None:
    config = assumed(config, replicas=strategy.num_replicas_in_sync)
    with op_determinism(needed=is_deterministic(config.train, strategy)):
        state = state_from_config(config, categories, strategy=strategy)
        loop = train_loop_from_config(config.train, state, strategy=strategy)
        # Class balance does not affect the memory.
        options = input_options_from_config(config, state.model, categories)
        batches = batches_from_config(
            config.train, reader, options, repeat_factors=None, strategy=strategy, start_step=0
        )
        loop(batches, _STEPS)


def _measure_apart(config: Config, shards: Sequence[str], categories: Sequence[Mapping[str, Any]]) -> int | None:
    request = json.dumps({"config": to_yaml(config), "shards": list(shards), "categories": list(categories)})
    done = subprocess.run(
        tied([sys.executable, "-m", "detection.training.memory"]),
        input=request,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode == 0:
        return int(answer) if (answer := done.stdout.strip().splitlines()[-1]) != "null" else None
    if done.returncode == -signal.SIGKILL:  # killed by the system when out of memory
        return None
    lines = done.stderr.strip().splitlines() or ["exited without a message"]
    raise CocoflowError(f"train.batch_size = auto: trial steps failed: {lines[-1]}")


def main() -> None:
    """Runs one trial, for `_measure_apart`; prints its peak memory in bytes, or null."""
    request = json.loads(sys.stdin.read())
    config = from_yaml(request["config"])
    strategy = make_strategy(config.train.strategy)
    try:
        _run_trial(config, RecordReader(request["shards"]), request["categories"], strategy)
        print(_peak_memory())
    except tf.errors.ResourceExhaustedError as error:
        if disk_refusal(error) is not None:
            raise
        print("null")


def _peak_memory() -> int:
    """Returns the peak resident memory of this process in bytes; `resource` would include its parent."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
