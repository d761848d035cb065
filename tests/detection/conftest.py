"""Two logical CPUs, so that replica maths is tested on any machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from detection.training.distributed.strategy import op_determinism

# Only possible before TensorFlow starts its devices, so here and not in a fixture.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(autouse=True)
def _own_collective_keys() -> None:
    """Strategies of one process over the same devices would otherwise meet in each other's collective ops."""
    tf.distribute.MirroredStrategy._collective_key_base += 1000


@pytest.fixture(scope="session")
def two_replicas() -> tf.distribute.Strategy:
    """A strategy of two CPU replicas in this process."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(name="op_determinism")
def _op_determinism() -> Iterator[None]:
    """Ops without a deterministic kernel raise until the test ends."""
    with op_determinism(needed=True):
        tf.random.set_seed(0)
        yield


@pytest.fixture(scope="session")
def dfine_n(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oracle's weights of D-FINE-N in three formats."""
    path = tmp_path_factory.mktemp("dfine")
    program, variables = oracle_dir / "dfine" / "make_weights.py", oracle_dir / "dfine" / "variables_n80.json"
    subprocess.run([sys.executable, program, variables, path], check=True, capture_output=True)
    return path
