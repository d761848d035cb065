"""Distribution strategies (one device, several devices, several machines, TPU) and op determinism."""

import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework import config

from detection.devices import describe_devices, require_accelerator, require_given_accelerator, require_supported_gpus
from detection.training.distributed.cluster import CLUSTER_VARIABLES, Cluster, cluster_from_environment
from schemas.errors import CocoflowError, ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")


def make_strategy(kind: str, *, tpu: str | None = None) -> tf.distribute.Strategy:
    """Builds the distribution strategy.

    Args:
        kind: `one_device`, `mirrored` (all GPUs of this machine; without GPUs, its
            logical CPUs if the process has configured several), `multi_worker` (the
            machines in TF_CONFIG or CLUSTER_SPEC), `tpu`, or `auto`: the first
            available of TPU, several machines, several GPUs, one device.
        tpu: `local` (on the TPU's own machine), a TPU's name or a `grpc://` address;
            None: TPU_NAME, else `local`.

    Raises:
        ConfigError: the kind, or the accelerator of this container, is not available; TensorFlow
            does not support a GPU of this machine; or TF_CONFIG or CLUSTER_SPEC is invalid or contradicts it.
        CocoflowError: the other machines did not respond.
    """
    if kind == "auto" and has_tpu(tpu):
        kind = "tpu"
    if kind != "tpu":
        require_given_accelerator(os.environ)
        require_supported_gpus()
    cluster = None if kind == "tpu" else cluster_from_environment(os.environ)
    if kind == "auto":
        kind = _kind_for(cluster)
    strategy = _build(kind, tpu or os.environ.get("TPU_NAME") or "local", cluster)
    _LOGGER.info("%s, %d replica(s); devices: %s", kind, strategy.num_replicas_in_sync, describe_devices())
    return strategy


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes checkpoints, summaries and the model."""
    return bool(strategy.extended.should_checkpoint)


def worker_count(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of training processes, >= 1."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return sum(map(len, strategy.cluster_resolver.cluster_spec().as_dict().values()))


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the index of this process among the training processes; 0 is the chief."""
    if worker_count(strategy) == 1:
        return 0
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().jobs
    return int(resolver.task_id) + (has_chief and resolver.task_type == "worker")


def on_cpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether every replica is a CPU."""
    return not isinstance(strategy, tf.distribute.TPUStrategy) and not tf.config.list_logical_devices("GPU")


def has_tpu(tpu: str | None) -> bool:
    """Returns whether `auto` selects a TPU: `train.tpu` or TPU_NAME is set, or this machine has a TPU."""
    return bool(tpu or os.environ.get("TPU_NAME") or tf.config.list_physical_devices("TPU"))


def _kind_for(cluster: Cluster | None) -> str:
    if cluster is not None and cluster.size > 1:
        return "multi_worker"
    return "mirrored" if len(tf.config.list_physical_devices("GPU")) > 1 else "one_device"


def _build(kind: str, tpu: str, cluster: Cluster | None) -> tf.distribute.Strategy:
    if kind == "tpu":
        return _tpu(tpu)
    if kind == "multi_worker":
        return _multi_worker(cluster)
    if cluster is not None and cluster.size > 1:
        raise ConfigError(
            f"train.strategy={kind} trains on one machine, but {' or '.join(CLUSTER_VARIABLES)} names {cluster.size}, "
            "and all would write the same files. Choose multi_worker, or unset the variable."
        )
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy([device.name for device in _mirrored_devices()])
    return tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0")


def _mirrored_devices() -> list[tf.config.LogicalDevice]:
    """Returns the GPUs, or the logical CPUs if the process has configured several, as tests do."""
    cpus = tf.config.list_logical_devices("CPU")
    if len(cpus) == 1:
        require_accelerator("train.strategy = mirrored")
    return tf.config.list_logical_devices("GPU") or cpus


def _multi_worker(cluster: Cluster | None) -> tf.distribute.Strategy:
    if cluster is None:
        raise ConfigError(
            f"train.strategy=multi_worker: neither {' nor '.join(CLUSTER_VARIABLES)} names the machines. "
            "Set TF_CONFIG on every machine; docs/distributed.md has an example."
        )
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({role: list(addresses) for role, addresses in cluster.addresses.items()}),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
        rpc_layer="grpc",
    )
    _LOGGER.info("%s %d; waiting for %s", cluster.task_type, cluster.task_index, ", ".join(cluster.others) or "nobody")
    try:
        with _keep_sigterm():
            return tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except tf.errors.OpError as error:
        reason = str(error).partition("\n")[0]
        raise CocoflowError(
            f"{cluster.task_type} {cluster.task_index} of the cluster could not connect to the others ({reason}). "
            f"Start training on all machines ({', '.join(cluster.others)}), and check that they can reach each other."
        ) from error


@contextlib.contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Restores the SIGTERM handler, which TensorFlow replaces by one of a checkpoint handler not used here."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(**_tpu_place(name))
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    # The errors of name lookup depend on the client libraries.
    except (ValueError, RuntimeError, OSError, ImportError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"train.strategy=tpu: no TPU responds as {name!r} ({reason}). "
            "Set train.tpu or TPU_NAME to local, a name, projects/PROJECT/locations/ZONE/nodes/NAME or a grpc:// "
            "address, or choose another strategy."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _tpu_place(name: str) -> dict[str, str]:
    """Returns the arguments of a TPU's resolver; a bare name is one in this machine's project and zone.

    >>> _tpu_place("projects/detectors/locations/us-central1-b/nodes/v3")
    {'project': 'detectors', 'zone': 'us-central1-b', 'tpu': 'v3'}
    """
    full = re.fullmatch(r"projects/(?P<project>[^/]+)/locations/(?P<zone>[^/]+)/nodes/(?P<tpu>[^/]+)", name)
    return full.groupdict() if full else {"tpu": name}


def is_op_deterministic() -> bool:
    """Returns whether op determinism is enabled in this process."""
    return bool(config.is_op_determinism_enabled())  # TensorFlow has no public API for this, or to disable it


@contextlib.contextmanager
def op_determinism(*, needed: bool) -> Iterator[None]:
    """Enables op determinism in the context if needed, and restores the previous setting on exit."""
    before = is_op_deterministic()
    if needed:
        tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        if not before:
            config.disable_op_determinism()
