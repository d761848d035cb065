"""The same tiny run under other strategies and precisions."""

from pathlib import Path

import numpy as np
import pytest

from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.tiny_run import checkpoint_values, run

# Quicker tests show the same: test_distribution.py and test_build_step.py of small detectors, the harness and
# test_xla.py of one step.
pytestmark = [pytest.mark.slow, pytest.mark.extended]

TWO_STEPS = ("train.steps=2", "train.schedule.warmup_steps=0", "train.checkpoint_every=1")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(8))


@pytest.fixture(scope="module")
def one_replica_run(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    output = tmp_path_factory.mktemp("one")
    run(output, shards, *TWO_STEPS, "train.strategy=one_device", exports=False)
    return output


@pytest.fixture(scope="module")
def one_replica(one_replica_run: Path) -> dict[str, np.ndarray]:
    return checkpoint_values(one_replica_run, 2)


def _assert_close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, atol=tolerance, err_msg=name)


def test_two_replicas_equal_one_on_the_same_global_batch(
    one_replica: dict[str, np.ndarray], shards: list[str], tmp_path: Path
) -> None:
    run(tmp_path, shards, *TWO_STEPS, "train.strategy=mirrored", exports=False)
    _assert_close(checkpoint_values(tmp_path, 2), one_replica, 2e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "mixed_float16"])
def test_lower_precision_trains_float32_weights_to_nearly_the_same(
    precision: str, one_replica: dict[str, np.ndarray], shards: list[str], tmp_path: Path
) -> None:
    run(tmp_path, shards, *TWO_STEPS, f"train.precision={precision}", exports=False)
    values = checkpoint_values(tmp_path, 2)
    model = {name: value for name, value in values.items() if name.startswith(("model/", "ema/"))}
    assert all(value.dtype == np.float32 for value in model.values())
    moved = {name: value for name, value in model.items() if "kernel" in name}
    expected = {name: one_replica[name] for name in moved}
    _assert_close(moved, expected, 0.05)
    assert any((value != expected[name]).any() for name, value in moved.items())


def test_a_step_compiled_by_xla_gives_the_same(one_replica_run: Path, shards: list[str], tmp_path: Path) -> None:
    run(tmp_path, shards, *TWO_STEPS, "train.jit_compile=true", exports=False)
    # The first step: later ones amplify its rounding, four images being a small batch.
    _assert_close(checkpoint_values(tmp_path, 1), checkpoint_values(one_replica_run, 1), 1e-5)
