"""The trainer on Cloud Storage: the bits of a local training."""

import re

import numpy as np
import pytest

from detection.storage import files
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import HISTORY_JSON, LOGS, VALIDATION
from tests.components.detection_trainer.remote_training import STEPS, execute, write_inputs
from tests.detection.training.tiny_run import checkpoint_values
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a local execution."""
    folder = str(tmp_path_factory.mktemp("local"))
    write_inputs(folder)
    execute(folder)
    return folder


def _names(folder: str) -> list[str]:
    """The files of an output without those whose names hold a time."""
    names = (re.sub(r"events\.out\..*", "events", name) for name in files.walk_files(folder))
    return sorted(name for name in names if not name.startswith(LOGS))


def _require_same(folder: str, local: str) -> None:
    ours, theirs = (local_copy(join(one, "model_run", "1")) for one in (folder, local))
    assert _names(str(ours)) == _names(str(theirs))
    got, expected = (checkpoint_values(run, STEPS) for run in (ours, theirs))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert read_json(ours / VALIDATION / HISTORY_JSON) == read_json(theirs / VALIDATION / HISTORY_JSON)
    models = [local_copy(join(one, "model", "1")) for one in (folder, local)]
    assert _names(str(models[0])) == _names(str(models[1]))
    weights = "Format-Serving/variables/variables.data-00000-of-00001"
    assert (models[0] / weights).read_bytes() == (models[1] / weights).read_bytes()


def test_a_remote_training_gives_the_bits_of_a_local_one(local: str, gcs: Bucket) -> None:
    folder = f"{gcs.path}/here"
    write_inputs(folder)
    execute(folder)
    _require_same(folder, local)
    [working] = files.list_folders(join(folder, "run", "training"))
    assert files.is_file(join(folder, "run", "training", working, "published"))
