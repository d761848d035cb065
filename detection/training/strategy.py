"""Where training runs: one device, several, several machines, or a TPU."""

import json
import logging
import os

import tensorflow as tf

from schemas.errors import ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")


def make_strategy(kind: str) -> tf.distribute.Strategy:
    """Builds the distribution strategy.

    Args:
        kind: `one_device`, `mirrored` (all GPUs of this machine, or all logical
            CPUs where there is none), `multi_worker` (TF_CONFIG), `tpu`, or `auto`:
            what is there, in the order TPU, several workers, several GPUs, one device.

    Raises:
        ConfigError: the kind asked for is not there.
    """
    chosen = _detect() if kind == "auto" else kind
    strategy = _BUILDERS[chosen]()
    _LOGGER.info("%s, %d replica(s) on %s", chosen, strategy.num_replicas_in_sync, _device_kind())
    return strategy


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes checkpoints, summaries and the model."""
    resolver = strategy.cluster_resolver
    if resolver is None or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    return resolver.task_type in (None, "chief") or (resolver.task_type == "worker" and _is_first_worker(resolver))


def on_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether every replica is a CPU."""
    return not isinstance(strategy, tf.distribute.TPUStrategy) and not tf.config.list_logical_devices("GPU")


def _is_first_worker(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> bool:
    return resolver.task_id == 0 and "chief" not in resolver.cluster_spec().as_dict()


def _detect() -> str:
    if tf.config.list_physical_devices("TPU") or os.environ.get("TPU_NAME"):
        return "tpu"
    if _worker_count() > 1:
        return "multi_worker"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one_device"


def _worker_count() -> int:
    cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
    return len(cluster.get("chief", [])) + len(cluster.get("worker", []))


def _device_kind() -> str:
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def _one_device() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0")


def _mirrored() -> tf.distribute.Strategy:
    kind = _device_kind()
    return tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices(kind)])


def _multi_worker() -> tf.distribute.Strategy:
    if not _worker_count():
        raise ConfigError("train.strategy=multi_worker: TF_CONFIG names no workers. Set TF_CONFIG on every worker.")
    return tf.distribute.MultiWorkerMirroredStrategy()


def _tpu() -> tf.distribute.Strategy:
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"train.strategy=tpu: no TPU answers as {name!r} ({reason}). Set TPU_NAME, or choose another strategy."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


_BUILDERS = {"one_device": _one_device, "mirrored": _mirrored, "multi_worker": _multi_worker, "tpu": _tpu}
