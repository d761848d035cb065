import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from detection.storage import atomic, files
from detection.storage.file_system import FileState
from detection.storage.files import local_copy
from detection.storage.gcs import objects
from schemas.errors import ConfigError, DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import in_processes

TREE = {"a.txt": b"a", "deep/b.bin": bytes(range(256)) * 50, "deep/er/c": b"", "x#?": b"odd"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("COCOFLOW_CACHE", str(folder))
    return folder


@pytest.fixture
def remote(gcs: Bucket) -> str:
    for name, content in TREE.items():
        objects.write(f"{gcs.path}/data/{name}", content)
    return f"{gcs.path}/data"


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files.walk_files(folder)}


def downloads(gcs: Bucket) -> int:
    return sum(request["target"].startswith("/download/") for request in gcs.emulator.requests())


def test_a_local_path_is_its_own_copy(tmp_path: Path) -> None:
    assert local_copy(str(tmp_path / "none"), complete="saved_model.pb") == tmp_path / "none"


def test_files_and_folders_are_copied_once(remote: str, gcs: Bucket) -> None:
    gcs.emulator.requests()
    copy = local_copy(remote)
    assert (copy.name, content(copy)) == ("data", TREE)
    assert downloads(gcs) == len(TREE)
    assert local_copy(f"{remote}/") == copy
    file = local_copy(f"{remote}/deep/b.bin")
    assert (file.name, file.read_bytes()) == ("b.bin", TREE["deep/b.bin"])
    assert local_copy(f"{remote}/deep/b.bin") == file
    assert downloads(gcs) == 1


def test_what_was_written_since_is_copied_anew(remote: str) -> None:
    old = local_copy(remote)
    objects.write(f"{remote}/a.txt", b"b")
    objects.delete(f"{remote}/x#?")
    new = local_copy(remote)
    assert content(new) == {"a.txt": b"b", "deep/b.bin": TREE["deep/b.bin"], "deep/er/c": b""}
    assert content(old) == TREE


def test_what_is_not_there_or_not_whole_is_refused(remote: str, gcs: Bucket) -> None:
    with pytest.raises(DataError, match=r"data/none: there is no such object\. Check the path"):
        local_copy(f"{remote}/none")
    with pytest.raises(DataError, match=r"data: not complete: no saved_model\.pb\. Its writer failed or is still"):
        local_copy(remote, complete="saved_model.pb")
    with atomic.new_directory(f"{gcs.path}/complete", last=["x"]) as folder:
        (folder / "x").write_bytes(b"x")
    objects.write(f"{gcs.path}/complete/.unfinished", b"")
    assert content(local_copy(f"{gcs.path}/complete", complete="x")) == {"x": b"x"}


def test_a_folder_that_changes_during_the_copy_is_copied_as_of_one_moment(
    remote: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    download, changes = objects.download, iter([f"{remote}/a.txt", f"{remote}/deep/b.bin"])

    def change_first(stored: FileState, destination: Path) -> None:
        for path in changes:
            objects.write(path, b"new")
        download(stored, destination)

    monkeypatch.setattr(objects, "download", change_first)
    assert content(local_copy(remote)) == TREE | {"a.txt": b"new", "deep/b.bin": b"new"}


@pytest.mark.parametrize("number", range(4))
def test_a_download_that_fails_leaves_nothing_and_is_repeated(
    number: int, remote: str, gcs: Bucket, cache: Path
) -> None:
    gcs.emulator.fail(status=403, path="/download/", skip=number)
    with pytest.raises(DataError, match="refuses access"):
        local_copy(remote)
    assert not list(cache.glob(".*.tmp/content/*"))
    assert content(local_copy(remote)) == TREE


def _copy(path: str) -> None:
    assert content(local_copy(path)) == TREE


def test_threads_share_one_download(remote: str, gcs: Bucket) -> None:
    gcs.emulator.requests()
    threads = [threading.Thread(target=_copy, args=(remote,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert downloads(gcs) == len(TREE)


def _die_in_the_middle(path: str) -> None:
    def die(state: FileState, destination: Path) -> None:
        destination.write_bytes(b"half")
        os.kill(os.getpid(), 9)

    objects.download = die
    local_copy(path)


def test_a_forked_process_has_copies_of_its_own_and_a_killed_ones_are_removed(remote: str, cache: Path) -> None:
    ours = local_copy(remote)
    before = set(cache.iterdir())
    assert in_processes(_die_in_the_middle, [(remote,)]) == [-9]
    (killed,) = set(cache.iterdir()) - before
    assert in_processes(_copy, [(remote,)]) == [0]
    assert content(ours) == TREE
    assert not killed.exists()
    others = set(cache.iterdir()) - before
    # Until Python 3.13, the child of a fork server ends without the exit functions that remove its copies.
    assert len(others) == (sys.version_info < (3, 13))


def test_copies_stay_as_long_as_their_process(remote: str, gcs: Bucket, cache: Path) -> None:
    code = (
        "import sys; from detection.storage.files import local_copy\n"
        "print(local_copy(sys.argv[1]), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, remote], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        copy = Path(process.stdout.readline().strip())
        assert copy.is_relative_to(cache)
        assert content(local_copy(remote)) == content(copy) == TREE
        process.communicate("\n")
    assert not copy.exists()


def test_a_cache_that_cannot_be_used_is_explained(remote: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for named, error in (("file", "File exists"), ("file/below", "Not a directory")):
        monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / named))
        with pytest.raises(
            DataError, match=rf"data: cannot copy it to .*{named}: {error}\. .*set COCOFLOW_CACHE to a folder"
        ):
            local_copy(remote)
    monkeypatch.setenv("COCOFLOW_CACHE", "gs://bucket/cache")
    with pytest.raises(ConfigError, match="the cache is for local copies"):
        local_copy(remote)
