"""The trainer on Cloud Storage: the bits of a local training, also after faults and kills."""

import random
import re
import signal
from typing import Any

import numpy as np
import pytest

from detection.storage import files
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import HISTORY_JSON, LOGS, VALIDATION
from tests.components.detection_trainer.remote_training import STEPS, execute, write_inputs
from tests.detection.training.tiny_run import checkpoint_values
from tests.forked_calls import forked_calls
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


def _require_same_names(ours: str, theirs: str) -> None:
    """A kill between the upload of the list of checkpoints and the removal of an old one leaves the old one."""
    names, expected = set(_names(ours)), set(_names(theirs))
    assert expected <= names
    assert {name for name in names - expected if "checkpoints/ckpt-" not in name} == set()


def _require_same(folder: str, local: str) -> None:
    ours, theirs = (local_copy(join(one, "model_run", "1")) for one in (folder, local))
    _require_same_names(str(ours), str(theirs))
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


@pytest.mark.extended  # a minute each
@pytest.mark.parametrize("number", range(4))
def test_killed_at_any_write_it_resumes_to_the_same_bits(number: int, local: str, gcs: Bucket) -> None:
    folder = f"{gcs.path}/here"
    write_inputs(folder)
    chance = random.Random(number)
    codes = []
    trainer = "tests.components.detection_trainer.remote_training"
    with forked_calls("components.detection_trainer.executor", trainer) as call:
        for _ in range(5):
            rule = {"path": "/b/", "skip": chance.randrange(50), "after": chance.random() < 0.5}

            def kill(process: int, rule: dict[str, Any] = rule) -> None:
                gcs.emulator.fail("kill", method="write", process=process, **rule)

            codes.append(call(f"{trainer}:execute", folder, prepare=kill))
            gcs.emulator.clear()
            for key in ("model", "model_run"):  # TFX gives the next execution folders of its own
                files.remove_folder(join(folder, key))
        assert -signal.SIGKILL in codes
        assert 1 not in codes
        assert call(f"{trainer}:execute", folder) == 0
    _require_same(folder, local)
