import errno
import os
import shutil
import stat
import threading
import time
from pathlib import Path

import pytest

from components.saved_model_pusher import publish as publishing
from detection.storage import versions
from detection.storage.temporary import SILENT_SECONDS
from detection.storage.versions import numbered_versions
from schemas.errors import ConfigError, DataError
from tests.components.saved_model_pusher.version_folders import PARTS, another, hidden, parts, write_parts
from tests.storage_emulator.fixture import Bucket


def publish(saved_model: str | Path, push_directory: str | Path) -> Path:
    return Path(publishing.publish(saved_model, push_directory))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "Format-Serving")


def test_the_answer_is_absolute(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert publish("Format-Serving", "serving").is_absolute()


def test_another_user_may_read_what_a_private_folder_held(model: Path, tmp_path: Path) -> None:
    for path in [model, *model.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    old = os.umask(0o022)
    try:
        destination = publish(model, tmp_path / "serving")
    finally:
        os.umask(old)
    assert stat.S_IMODE(destination.stat().st_mode) == 0o755
    assert stat.S_IMODE((destination / "variables").stat().st_mode) == 0o755
    assert stat.S_IMODE((destination / "saved_model.pb").stat().st_mode) == 0o644


def test_versions_rise_within_one_second_and_above_a_clock_that_fell_back(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = tmp_path / "serving"
    monkeypatch.setattr(time, "time", lambda: 1000.9)
    assert [int(publish(another(model), serving).name) for _ in range(3)] == [1000, 1001, 1002]
    monkeypatch.setattr(time, "time", lambda: 500.0)
    assert publish(another(model), serving).name == "1003"
    monkeypatch.setattr(time, "time", lambda: 2000.0)
    assert publish(another(model), serving).name == "2000"


def test_a_version_taken_meanwhile_is_left_alone(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = tmp_path / "serving"
    serving.mkdir()
    rename = Path.rename
    monkeypatch.setattr(time, "time", lambda: 1000.0)

    def rename_after_another(self: Path, destination: Path) -> Path:
        if destination.name == "1000":
            shutil.copytree(self, destination)
            (destination / "saved_model.pb").write_bytes(b"the other pusher's")
        return rename(self, destination)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    assert publish(model, serving).name == "1001"
    assert (serving / "1000/saved_model.pb").read_bytes() == b"the other pusher's"
    assert parts(serving / "1001") == PARTS


def test_pushers_side_by_side_all_get_their_own_version(model: Path, tmp_path: Path) -> None:
    models = [tmp_path / f"model-{number}" for number in range(4)]
    for number, copy in enumerate(models):
        shutil.copytree(model, copy)
        (copy / "number").write_text(str(number))
    destinations: list[Path] = []

    def push(copy: Path) -> None:
        for _ in range(5):
            (copy / "count").write_text(str(len(destinations)))
            destinations.append(publish(another(copy), tmp_path / "serving"))

    threads = [threading.Thread(target=push, args=(copy,)) for copy in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({destination.name for destination in destinations}) == 20
    assert _versions(tmp_path / "serving") == sorted(int(destination.name) for destination in destinations)
    assert all(set(parts(destination)) == {*PARTS, "number", "count"} for destination in destinations)
    assert hidden(tmp_path / "serving") == []


def test_a_living_pusher_is_left_alone_however_long_it_is_silent(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, other = tmp_path / "serving", tmp_path / "other"
    shutil.copytree(model, other)
    fsync_tree = versions.fsync_tree

    def sleep_while_another_pushes(folder: Path) -> None:
        monkeypatch.setattr(versions, "fsync_tree", fsync_tree)
        with monkeypatch.context() as later:
            now = time.time()
            later.setattr(time, "time", lambda: now + SILENT_SECONDS + 60)
            publish(another(other), serving)
        fsync_tree(folder)

    monkeypatch.setattr(versions, "fsync_tree", sleep_while_another_pushes)
    assert parts(publish(model, serving)) == PARTS
    assert len(_versions(serving)) == 2
    assert hidden(serving) == []


def test_a_users_folders_beside_the_versions_stay(model: Path, tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    for name in (".push.0123abcd.tmp", ".push.mybackup.tmp", ".push.old.tmp"):
        (serving / name).mkdir(parents=True)
        (serving / name / "mine").touch()
        os.utime(serving / name, (0, 0))
    publish(model, serving)
    assert len(hidden(serving)) == 3


def test_a_full_disk_is_explained_and_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, destination: Path) -> None:
        destination.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(destination))

    monkeypatch.setattr(versions.shutil, "copyfile", full)
    with pytest.raises(
        DataError, match=r"push\.directory .*serving: cannot push: No space left on device .*--set push"
    ):
        publish(model, tmp_path / "serving")
    assert list((tmp_path / "serving").iterdir()) == []


def test_a_push_directory_that_is_a_file_is_explained(model: Path, tmp_path: Path) -> None:
    (tmp_path / "serving").write_text("mine")
    with pytest.raises(
        DataError, match=r"push\.directory .*serving: cannot push: File exists .*Choose a writable folder"
    ):
        publish(model, tmp_path / "serving")
    assert (tmp_path / "serving").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_push_directory_without_permission_is_explained(model: Path, tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"push\.directory .*serving: cannot push: Permission denied"):
        publish(model, tmp_path / "serving")


def test_models_are_pushed_between_this_machine_and_cloud_storage(
    model: Path, tmp_path: Path, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    there = publishing.publish(model, f"{gcs.path}/serving")
    assert there.startswith(f"{gcs.path}/serving/1")
    assert publishing.publish(str(model), f"{gcs.path}/serving/") == there
    assert publishing.publish(there, f"{gcs.path}/copy").startswith(f"{gcs.path}/copy/1")
    assert parts(publish(there, tmp_path / "serving")) == PARTS
    with pytest.raises(DataError, match=r"gs://.*/none: no saved_model\.pb in this folder, so nothing was pushed"):
        publishing.publish(f"{gcs.path}/none", f"{gcs.path}/serving")


def test_a_push_directory_elsewhere_is_refused_by_name(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"push\.directory s3://bucket/serving: s3:// is not supported"):
        publish(model, "s3://bucket/serving")


def test_a_folder_without_a_model_is_not_pushed(model: Path, tmp_path: Path) -> None:
    (model / "saved_model.pb").unlink()
    with pytest.raises(DataError, match=r"Format-Serving: no saved_model\.pb in"):
        publish(model, tmp_path / "serving")
    assert not (tmp_path / "serving").exists()


def _versions(directory: Path) -> list[int]:
    return [number for number, _ in numbered_versions(directory)]
