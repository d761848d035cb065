"""Numbered versions: whichever write fails, or whoever is killed, a server sees whole ones only."""

import itertools
import time
from pathlib import Path

import pytest

from detection.storage import files
from detection.storage.atomic import write_bytes
from detection.storage.file_system import FileState
from detection.storage.gcs import objects, versions
from detection.storage.paths import name_of
from detection.storage.temporary import SILENT_SECONDS
from detection.storage.versions import numbered_versions, publish_version
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import in_processes, killed_at_write

MARKER = "saved_model.pb"
PARTS = {MARKER: b"graph", "variables/index": b"index", "variables/data": bytes(range(256)), "assets/x": b""}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return plant(tmp_path / "model")


@pytest.fixture(params=["local", "remote"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For what both kinds of folders have in common."""
    local = request.param == "local"
    return str(tmp_path / "serving") if local else f"{request.getfixturevalue('gcs').path}/serving"


def plant(folder: Path, **changed: bytes) -> str:
    for name, content in (PARTS | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def served(directory: str) -> dict[int, dict[str, bytes]]:
    """The versions that a server could load, with their content: whole ones."""
    whole = {}
    for number, path in numbered_versions(directory):
        names = [name for name in files.walk_files(path) if name != ".unfinished"]
        content = {name: files.read_bytes(f"{path}/{name}") for name in names}
        if MARKER in content:
            whole[number] = content
    return whole


def leftovers(directory: str) -> list[str]:
    return [name for name in files.list_folder(directory) if name.startswith(".")] + [
        path for _, path in numbered_versions(directory) if files.is_file(f"{path}/.unfinished")
    ]


def push(source: str, directory: str) -> None:
    publish_version(source, directory, MARKER)


def test_the_whole_folder_arrives_under_the_time_and_nothing_else(model: str, directory: str) -> None:
    before = int(time.time())
    version = publish_version(model, f"{directory}/", MARKER)
    number = version.removeprefix(f"{directory}/")
    assert before <= int(number) <= int(time.time())
    assert served(directory) == {int(number): PARTS}
    assert files.list_folder(directory) == [number]


def test_the_marker_comes_last(model: str, gcs: Bucket) -> None:
    gcs.emulator.requests()
    version = publish_version(model, gcs.path, MARKER).rsplit("/", maxsplit=1)[-1]
    shown = [
        request["target"].split(f"/o/{version}/")[1].split("?")[0]
        for request in gcs.emulator.requests()
        if request["method"] == "POST" and f"/o/{version}/" in request["target"]
    ]
    assert len(shown) == len(PARTS)
    assert shown[-1] == MARKER


def test_the_newest_version_is_not_pushed_again_and_an_older_one_is(model: str, directory: str, tmp_path: Path) -> None:
    other = plant(tmp_path / "other", **{"variables/index": b"other"})
    first = publish_version(model, directory, MARKER)
    assert publish_version(model, directory, MARKER) == first
    second = publish_version(other, directory, MARKER)
    third = publish_version(model, directory, MARKER)
    assert list(served(directory)) == [int(name_of(version)) for version in (first, second, third)]
    files.remove_folder(third)  # back to what is then the newest: nothing to push
    assert publish_version(other, directory, MARKER) == second


@pytest.mark.parametrize("spoil", ["removed", "changed", "added"])
def test_a_newest_version_that_differs_is_not_taken_for_the_model(spoil: str, model: str, directory: str) -> None:
    first = publish_version(model, directory, MARKER)
    if spoil == "removed":
        files.remove_file(f"{first}/{MARKER}")
    else:
        write_bytes(f"{first}/{'x' if spoil == 'added' else 'variables/index'}", b"other")
    second = int(name_of(publish_version(model, directory, MARKER)))
    assert second > int(name_of(first))
    assert served(directory)[second] == PARTS
    assert files.exists(f"{first}/variables/index")


def test_versions_rise_above_a_clock_that_fell_back_and_other_names_are_not_versions(
    model: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("9", "10", "0011", "backup-99", ".77"):
        write_bytes(f"{directory}/{name}/mine", b"")
    monkeypatch.setattr(time, "time", lambda: 3.0)
    assert publish_version(model, directory, MARKER) == f"{directory}/12"
    assert {f"{name}/mine" for name in ("9", "10", "0011", "backup-99", ".77")} <= set(files.walk_files(directory))


@pytest.mark.parametrize(("after", "times"), [(False, 1), (True, 0)], ids=["refused once", "answers lost from then on"])
def test_whichever_write_fails_no_half_version_is_served_and_the_next_push_ends(
    times: int, after: bool, model: str, gcs: Bucket
) -> None:
    for number in itertools.count():
        directory = f"{gcs.path}/{number}"
        gcs.emulator.fail(status=403, method="write", path="/b/", skip=number, times=times, after=after)
        failed = False
        try:
            push(model, directory)
        except DataError:
            failed = True
        if not gcs.emulator.clear():
            assert not failed
            break
        before = served(directory)
        assert list(before.values()) in ([], [PARTS])
        assert before or failed
        push(model, directory)
        assert list(served(directory).values()) == [PARTS]
        assert before in ({}, served(directory))
        assert leftovers(directory) == []
        assert len(numbered_versions(directory)) == 1
    assert number > 2 * len(PARTS)


def test_a_kill_at_any_write_shows_no_half_version_and_pushes_no_second_one(model: str, gcs: Bucket) -> None:
    for number in itertools.count():
        directory = f"{gcs.path}/{number}"
        if not killed_at_write(gcs, number, push, model, directory, after=bool(number % 2)):
            break
        before = served(directory)
        assert list(before.values()) in ([], [PARTS])
        push(model, directory)
        assert list(served(directory).values()) == [PARTS]
        assert before in ({}, served(directory))
        assert leftovers(directory) == []
    assert number > 2 * len(PARTS)


def test_leftovers_of_another_machine_go_after_an_hour_and_living_pushers_are_left_alone(
    model: str, gcs: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_at_write(gcs, 10, push, model, gcs.path)
    [half] = numbered_versions(gcs.path)
    monkeypatch.setattr(versions, "has_ended", lambda record: False)
    publish_version(model, gcs.path, MARKER)
    assert len(leftovers(gcs.path)) == 2
    assert len(numbered_versions(gcs.path)) == 2
    gcs.emulator.set_clock(SILENT_SECONDS + 60)
    publish_version(plant(tmp_path / "other", x=b"1"), gcs.path, MARKER)
    assert leftovers(gcs.path) == []
    assert half not in numbered_versions(gcs.path)
    assert len(served(gcs.path)) == 2


def test_a_users_folders_and_files_beside_the_versions_stay(model: str, gcs: Bucket) -> None:
    mine = [".push.0123abcd.tmp/mine", ".push.mine.tmp/.unfinished", "7/.unfinished", "2020/images/1.jpg", "notes.txt"]
    for name in mine:
        objects.write(f"{gcs.path}/{name}", b"mine")
    gcs.emulator.set_clock(SILENT_SECONDS * 2)
    push(model, gcs.path)
    assert set(mine) <= set(files.walk_files(gcs.path))


def test_pushers_at_once_all_get_their_own_version(gcs: Bucket, tmp_path: Path) -> None:
    models = [plant(tmp_path / str(number), number=str(number).encode()) for number in range(4)]
    assert in_processes(push, [(model, gcs.path) for model in models]) == [0] * 4
    assert sorted(content["number"] for content in served(gcs.path).values()) == [b"0", b"1", b"2", b"3"]
    assert leftovers(gcs.path) == []


def test_a_pusher_that_was_taken_for_dead_does_not_publish(
    model: str, gcs: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    once: list[bool] = []
    copy = objects.copy

    def copy_after_another_sweeps(source: FileState, path: str, **options: int | None) -> FileState:
        copied = copy(source, path, **options)
        if path.endswith("assets/x") and "/.push" not in path and not once:
            once.append(True)
            gcs.emulator.set_clock(SILENT_SECONDS + 60)
            monkeypatch.setattr(versions, "has_ended", lambda record: False)
            push(plant(tmp_path / "other", x=b"2"), gcs.path)
        return copied

    monkeypatch.setattr(objects, "copy", copy_after_another_sweeps)
    with pytest.raises(DataError, match=r"another process wrote or removed|no such object"):
        push(model, gcs.path)
    assert [content.get("x") for content in served(gcs.path).values()] == [b"2"]
