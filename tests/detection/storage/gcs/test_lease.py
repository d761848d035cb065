"""Who may use a remote folder, whatever becomes of the one that used it before."""

import contextlib
import json
import os
import socket
import sys
import time

import pytest

from detection.storage import files
from detection.storage.file_system import LOCK_FILE
from detection.storage.gcs import lease, objects
from detection.storage.lock import lock_folder
from schemas.errors import CocoflowError, DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import in_processes, killed_at_write


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 30.0)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "_POLL_SECONDS", 0.02)


@pytest.fixture
def folder(gcs: Bucket) -> str:
    return f"{gcs.path}/run"


def use(folder: str) -> None:
    with lock_folder(folder, instead="name another one") as held:
        assert held
        held.require_held()


def test_a_folder_is_held_and_left_as_it_was(folder: str) -> None:
    with lock_folder(folder, instead="wait"):
        holder = json.loads(objects.read(f"{folder}/{LOCK_FILE}"))
        assert (holder["process"], holder["host"]) == (os.getpid(), socket.gethostname())
    assert files.walk_files(folder) == []
    use(folder)


def test_the_second_is_told_who_holds_it(folder: str) -> None:
    with lock_folder(folder, instead="wait"):
        with pytest.raises(CocoflowError) as refused:
            use(folder)
        words = str(refused.value)
        assert words.startswith(f"{folder}: in use by process {os.getpid()} on {socket.gethostname()}, since 20")
        assert words.endswith("). Wait until it has ended, or name another one.")
        assert not isinstance(refused.value, DataError)


def _hold(folder: str, mark: str) -> None:
    lease.RENEW_SECONDS, lease._POLL_SECONDS = 0.05, 0.02
    try:
        with lock_folder(folder, instead="wait"):
            objects.write(mark, b"", generation=0)  # fails if another one is inside
            time.sleep(0.3)
            objects.delete(mark)
    except DataError:
        sys.exit(1)
    except CocoflowError:
        sys.exit(7)


def test_of_processes_that_try_at_once_one_gets_in(folder: str, gcs: Bucket) -> None:
    codes = in_processes(_hold, [(folder, f"{gcs.path}/inside")] * 4)
    assert set(codes) <= {0, 7}
    assert 0 in codes
    assert files.walk_files(gcs.path) == []


def test_a_kill_on_this_machine_frees_the_folder_at_once(
    folder: str, gcs: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    assert killed_at_write(gcs, 4, _hold, folder, f"{gcs.path}/inside")
    assert files.is_file(f"{folder}/{LOCK_FILE}")
    use(folder)
    assert "for a sign of life" not in caplog.text
    assert not files.is_file(f"{folder}/{LOCK_FILE}")


def test_a_kill_on_another_machine_frees_it_when_the_lease_ends(
    folder: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "has_ended", lambda record: False)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    for ahead in (-100.0, 100.0):  # whatever this machine's clock says
        gcs.emulator.set_clock(ahead)
        assert killed_at_write(gcs, 4, _hold, folder, f"{gcs.path}/inside{ahead}")
        use(folder)
    assert "waiting up to 1 s for a sign of life" in caplog.text


def test_a_holder_that_was_overtaken_does_not_publish_and_leaves_the_new_lease(
    folder: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "has_ended", lambda record: False)
    monkeypatch.setattr(lease, "RENEW_SECONDS", 3600.0)  # the old holder stands still
    with contextlib.ExitStack() as old:
        held = old.enter_context(lock_folder(folder, instead="wait"))
        gcs.emulator.set_clock(31.0)
        with lock_folder(folder, instead="wait"):
            monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)  # it asks again
            with pytest.raises(CocoflowError, match=r"run: lost the lock: .* another process has it\. Nothing more"):
                held.require_held()
            old.close()
            assert files.is_file(f"{folder}/{LOCK_FILE}")
    assert not files.is_file(f"{folder}/{LOCK_FILE}")


def test_the_thread_renews_and_survives_faults(folder: str, gcs: Bucket) -> None:
    with lock_folder(folder, instead="wait") as held:
        first = objects.find(f"{folder}/{LOCK_FILE}")
        gcs.emulator.fail(status=403, method="write", times=2)
        gcs.emulator.fail("reset", method="write", skip=2, after=True)
        while (now := objects.find(f"{folder}/{LOCK_FILE}")) == first:
            time.sleep(0.05)
        assert now is not None
        assert gcs.emulator.clear() == 3
        held.require_held()


@pytest.mark.parametrize("content", [b"", b"\xff{", b"[]", b'{"process": []}', b"[" * 9000])
def test_a_lease_that_nobody_can_read_ends_all_the_same(
    content: bytes, folder: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.write(f"{folder}/{LOCK_FILE}", content)
    gcs.emulator.set_clock(31.0)
    use(folder)
    assert not files.is_file(f"{folder}/{LOCK_FILE}")


def test_a_folder_that_cannot_be_written_is_named(folder: str, gcs: Bucket) -> None:
    gcs.emulator.fail(status=403, method="write", path="/b/")
    with pytest.raises(DataError, match=r"run/.* refuses access"):
        use(folder)
