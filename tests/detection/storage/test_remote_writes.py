"""`atomic` on Cloud Storage: every write fails once, or for ever from then on, or the process is killed there."""

import contextlib
import itertools
from pathlib import Path

import pytest

from detection.storage import atomic, files
from detection.storage.file_system import UNFINISHED_MARKER, FileState
from detection.storage.files import local_copy
from detection.storage.gcs import folders, objects
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import killed_at_write

CONTENT = {"saved_model.pb": b"graph", "variables/index": b"index", "variables/data": b"data", "empty": b""}
LAST = ("variables/index", "saved_model.pb")
MARKER = LAST[-1]


def publish(path: str, replace: bool = False, content: dict[str, bytes] = CONTENT) -> None:
    with atomic.new_directory(path, last=[name for name in LAST if name in content], replace=replace) as folder:
        for name, part in content.items():
            atomic.write_bytes(folder / name, part, durable=False)


def read(path: str) -> dict[str, bytes]:
    copy = local_copy(path, complete=MARKER)
    return {name: (copy / name).read_bytes() for name in files.walk_files(copy)}


def is_complete_or_refused(path: str, *contents: dict[str, bytes]) -> bool:
    """Returns whether a reader gets one of the contents; otherwise the folder is refused as not complete."""
    if not files.is_file(f"{path}/{MARKER}"):
        with pytest.raises(DataError, match="not complete: no "):
            read(path)
        return False
    assert read(path) in contents
    return True


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))


def test_files_appear_whole(gcs: Bucket) -> None:
    path = f"{gcs.path}/a/x.txt"
    atomic.write_text(path, "ü\r\n")
    assert files.read_text(path) == "ü\r\n"
    with atomic.new_file(path) as file:
        file.write(b"new")
        assert files.read_text(path) == "ü\r\n"
    assert files.read_text(path) == "new"
    with atomic.new_path(path, durable=False) as unfinished:
        unfinished.write_bytes(b"newer")
    atomic.write_json(f"{gcs.path}/a/x.json", {"a": 1})
    assert files.read_text(path) == "newer"
    assert files.walk_files(gcs.path) == ["a/x.json", "a/x.txt"]


def test_a_name_may_be_longer_than_those_of_local_files(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "n" * 900
    with atomic.new_path(f"{gcs.path}/a/{name}") as unfinished:
        unfinished.write_bytes(b"1")
    with atomic.new_directory(f"{gcs.path}/b/{name}") as folder:
        (folder / "x").touch()
    monkeypatch.setenv("TMPDIR", "/missing")  # bytes need no file
    monkeypatch.setattr("tempfile.tempdir", "/missing")
    atomic.write_bytes(f"{gcs.path}/c/{name}", b"2")
    assert files.walk_files(gcs.path) == [f"a/{name}", f"b/{name}/x", f"c/{name}"]


def test_a_block_that_raises_publishes_nothing(gcs: Bucket) -> None:
    atomic.write_text(f"{gcs.path}/x", "old")
    with contextlib.suppress(RuntimeError), atomic.new_file(f"{gcs.path}/x") as file:
        file.write(b"half")
        raise RuntimeError
    with contextlib.suppress(RuntimeError), atomic.new_directory(f"{gcs.path}/folder") as folder:
        (folder / "half").touch()
        raise RuntimeError
    with pytest.raises(DataError, match="x: cannot write: No such file"), atomic.new_path(f"{gcs.path}/x"):
        pass  # nothing written
    assert files.read_text(f"{gcs.path}/x") == "old"
    assert files.walk_files(gcs.path) == ["x"]


def test_a_folder_with_content_is_replaced_only_on_demand(gcs: Bucket) -> None:
    path = f"{gcs.path}/folder"
    objects._blob(f"{path}/").upload_from_string(b"")  # TFX makes an empty folder for every artifact
    publish(path)
    assert read(path) == CONTENT
    for action in (lambda: publish(path), lambda: publish(f"{gcs.path}")):
        with pytest.raises(DataError, match="cannot write: not a new or empty folder"):
            action()
    other = {"saved_model.pb": b"2", "variables/index": b""}
    publish(path, replace=True, content=other)
    assert read(path) == other
    assert set(files.walk_files(path)) == set(other)


def test_a_users_folder_without_our_marker_is_not_touched(gcs: Bucket) -> None:
    atomic.write_text(f"{gcs.path}/mine/precious", "mine")
    with pytest.raises(DataError, match="not a new or empty folder"):
        publish(f"{gcs.path}/mine")
    assert files.walk_files(gcs.path) == ["mine/precious"]


def test_a_folder_without_its_last_file_is_not_published(gcs: Bucket) -> None:
    with (
        pytest.raises(DataError, match=r"saved_model\.pb is missing; gs://.*/folder would be incomplete"),
        atomic.new_directory(f"{gcs.path}/folder", last=[MARKER]) as folder,
    ):
        (folder / "x").touch()
    assert files.walk_files(gcs.path) == []


@pytest.mark.parametrize(("after", "times"), [(False, 1), (True, 0)], ids=["refused once", "answers lost from then on"])
def test_whichever_write_fails_nothing_half_is_seen_and_the_next_run_ends(times: int, after: bool, gcs: Bucket) -> None:
    for number in itertools.count():
        path = f"{gcs.path}/{number}"
        gcs.emulator.fail(status=403, method="write", path="/b/", skip=number, times=times, after=after)
        failed = False
        try:
            publish(path)
        except DataError:
            failed = True
        if not gcs.emulator.clear():
            break
        whole = is_complete_or_refused(path, CONTENT)
        assert whole or failed
        if failed and times == 1:
            assert files.walk_files(path) in ([], [UNFINISHED_MARKER])
        if not whole:
            publish(path)
        assert read(path) == CONTENT
    assert number >= len(CONTENT) + 2


def test_whichever_write_of_a_replacement_fails_no_mixture_is_seen(gcs: Bucket) -> None:
    other = {"saved_model.pb": b"new", "variables/other": b""}
    for number in itertools.count():
        path = f"{gcs.path}/{number}"
        publish(path)
        gcs.emulator.fail(status=403, method="write", path="/b/", skip=number, times=0)
        with contextlib.suppress(DataError):
            publish(path, replace=True, content=other)
        if not gcs.emulator.clear():
            break
        is_complete_or_refused(path, CONTENT, other)
        publish(path, replace=True, content=other)
        assert read(path) == other


def test_a_kill_at_any_write_leaves_what_no_reader_takes_and_the_next_run_replaces(gcs: Bucket) -> None:
    for number in itertools.count():
        path = f"{gcs.path}/{number}"
        if not killed_at_write(gcs, number, publish, path, after=bool(number % 2)):
            break
        if not is_complete_or_refused(path, CONTENT):
            publish(path)
        assert read(path) == CONTENT
    assert number >= len(CONTENT) + 2


def test_two_writers_of_one_folder_do_not_mix(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    once: list[bool] = []
    path = f"{gcs.path}/folder"
    write = objects.write

    def write_after_another(where: str, *arguments: object, **options: object) -> FileState:
        if where.endswith("/empty") and not once:
            once.append(True)
            publish(path, content={"theirs": b"theirs", MARKER: b"theirs"})
        return write(where, *arguments, **options)  # type: ignore[arg-type]

    # One after the other: if writes of the first came between those of the second, both would be refused.
    monkeypatch.setattr(folders, "in_parallel", lambda function, items: [function(item) for item in items])
    monkeypatch.setattr(objects, "write", write_after_another)
    with pytest.raises(DataError, match="another process writes this folder, too"):
        publish(path)
    assert once
    assert is_complete_or_refused(path, {"theirs": b"theirs", MARKER: b"theirs"})


def test_a_folder_that_cannot_be_written_is_told_of_before_the_work(gcs: Bucket) -> None:
    atomic.require_writable(f"{gcs.path}/run")
    assert files.walk_files(gcs.path) == []
    gcs.emulator.fail(status=403, path="/upload/")
    with pytest.raises(DataError, match=r"run/\.probe.* refuses access"):
        atomic.require_writable(f"{gcs.path}/run")


def test_a_local_folder_is_replaced_on_demand(tmp_path: Path) -> None:
    publish(str(tmp_path / "x"))
    with pytest.raises(DataError, match="cannot write: not a new or empty folder"):
        publish(str(tmp_path / "x"))
    publish(str(tmp_path / "x"), replace=True, content={"new": b"new"})
    assert files.walk_files(tmp_path) == ["x/new"]
    assert files.list_folder(tmp_path) == ["x"]
