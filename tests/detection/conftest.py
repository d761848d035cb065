"""Two logical CPUs, so that replica maths is tested on any machine."""

from collections.abc import Iterator

import pytest
import tensorflow as tf

# Only possible before TensorFlow starts its devices, so here and not in a fixture.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture
def two_replicas() -> tf.distribute.Strategy:
    """A strategy of two CPU replicas in this process."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def op_determinism() -> Iterator[None]:
    """Ops without a deterministic kernel raise while the test runs."""
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(0)
    yield
    tf.config.experimental.disable_op_determinism()
