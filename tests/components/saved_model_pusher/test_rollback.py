"""Rollback and retention, of local and remote push directories."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.history.pushed_versions import ROLLBACK_RECORD, read_rollback, whole_versions
from components.saved_model_pusher import publish as publishing
from components.saved_model_pusher import rollback as rolling
from components.saved_model_pusher.publish import publish
from components.saved_model_pusher.push import remove_old_versions
from components.saved_model_pusher.rollback import roll_back
from detection.storage import files, versions
from detection.storage.atomic import write_bytes
from detection.storage.file_system import PUSH_STEM
from detection.storage.files import read_bytes
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.errors import DataError
from tests.components.saved_model_pusher.version_folders import MARKER, content_of, write_version
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import killed_at_write


# On Cloud Storage, `test_server_rules.py` rolls back in the ordinary suite, too.
@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.extended)])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A push directory."""
    return str(tmp_path / "serving") if request.param == "local" else f"{request.getfixturevalue('gcs').path}/serving"


def push(content: str, directory: str, tmp_path: Path) -> int:
    return int(files.resolve(publish(write_version(tmp_path / content, content), directory)).rpartition("/")[2])


def contents(directory: str) -> list[str]:
    """Content of the versions, oldest first; the last one is served."""
    return [content_of(path) for path in whole_versions(directory).values()]


def test_one_rollback_after_the_other_goes_back_one_model_each(serving: str, tmp_path: Path) -> None:
    first, second, third = (push(content, serving, tmp_path) for content in "ABC")
    once = roll_back(serving)
    assert (once.files_of, once.replaced) == (second, third)
    assert contents(serving) == ["A", "B", "C", "B"]
    twice = roll_back(serving)
    assert twice.files_of == first
    assert contents(serving) == ["A", "B", "C", "B", "A"]
    record = read_rollback(twice.version)
    assert record is not None
    assert (record.version, len(record.refused_models)) == (first, 2)
    assert read_json(join(twice.version, ROLLBACK_RECORD))["replaced"] == int(once.version.rpartition("/")[2])
    with pytest.raises(DataError, match=r"no version before the served model, .* nothing to roll back to"):
        roll_back(serving)
    # The record tells where the files come from, also if they were copied twice.
    again = roll_back(serving, to=int(once.version.rpartition("/")[2]))
    copied = read_rollback(again.version)
    assert copied is not None
    assert copied.version == second
    assert len(copied.refused_models) == 2  # A and C
    assert contents(serving)[-1] == "B"


def test_a_model_that_was_rolled_back_is_not_pushed_again_until_another_is(serving: str, tmp_path: Path) -> None:
    push("A", serving, tmp_path)
    bad = push("B", serving, tmp_path)
    roll_back(serving)
    with pytest.raises(DataError, match=r"not pushed: this model was served from .* rolled back to version"):
        push("B", serving, tmp_path)
    assert contents(serving) == ["A", "B", "A"]
    served = push("A", serving, tmp_path)  # there already
    assert contents(serving) == ["A", "B", "A"]
    assert served == max(whole_versions(serving))
    assert roll_back(serving, to=bad).files_of == bad  # a person may
    roll_back(serving)
    push("C", serving, tmp_path)
    push("B", serving, tmp_path)
    assert contents(serving) == ["A", "B", "A", "B", "A", "C", "B"]


def test_a_rolled_back_model_is_known_by_its_weights_and_thresholds_are_rolled_back_too(
    serving: str, tmp_path: Path
) -> None:
    """An evaluation on other images adds other thresholds and warm-up requests to the same model."""
    model = write_version(tmp_path / "A", "A")
    names = ("score_thresholds.json", "tf_serving_warmup_requests")
    evaluations = [{f"assets.extra/{name}": content for name in names} for content in (b"1", b"2")]
    first, second = (publish(model, serving, added=added) for added in evaluations)
    assert first != second
    back = roll_back(serving)
    assert read_bytes(join(back.version, "assets.extra/score_thresholds.json")) == b"1"
    assert publish(model, serving, added=evaluations[0]) == back.version
    other = write_version(tmp_path / "B", "B")
    publish(other, serving, added=evaluations[0])
    roll_back(serving)
    with pytest.raises(DataError, match="not pushed: this model was served"):
        publish(other, serving, added=evaluations[1])


def test_rolled_back_from_a_model_that_followed_a_rollback(serving: str, tmp_path: Path) -> None:
    """Neither the bad model before nor the served one, but what the rollback served."""
    for content in "AB":
        push(content, serving, tmp_path)
    roll_back(serving)
    push("C", serving, tmp_path)
    roll_back(serving)
    assert contents(serving) == ["A", "B", "A", "C", "A"]
    with pytest.raises(DataError, match="nothing to roll back to"):
        roll_back(serving)


def test_the_same_rollback_again_changes_nothing(serving: str, tmp_path: Path) -> None:
    first, second = (push(content, serving, tmp_path) for content in "AB")
    done = roll_back(serving, to=first)
    again = roll_back(serving, to=first)
    assert again.version == files.resolve(done.version)
    assert again.files_of == first
    assert contents(serving) == ["A", "B", "A"]
    assert roll_back(serving, to=second).files_of == second


def test_what_cannot_be_rolled_back_is_explained(serving: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="serving: no version there"):
        roll_back(serving)
    only = push("A", serving, tmp_path)
    with pytest.raises(DataError, match=rf"nothing to roll back to\. The versions are {only}"):
        roll_back(serving)
    with pytest.raises(DataError, match=rf"no version 5, only {only}"):
        roll_back(serving, to=5)
    push("B", serving, tmp_path)
    files.remove_file(join(serving, str(only), "variables/variables.index"))
    with pytest.raises(DataError, match=rf"{only}: damaged, variables/variables\.index is missing"):
        roll_back(serving)
    files.remove_file(join(serving, str(only), MARKER))
    with pytest.raises(DataError, match=rf"{only}: damaged, saved_model\.pb, variables"):
        roll_back(serving, to=only)
    newest = push("C", serving, tmp_path)
    for content in (b"{}", b'{"version": Infinity, "replaced": 1, "refused_models": []}'):
        write_bytes(join(serving, str(newest), ROLLBACK_RECORD), content)
        with pytest.raises(DataError, match=r"rollback\.json: not the record of a rollback of this version: version"):
            roll_back(serving)


def test_foreign_entries_are_left_out_and_named(serving: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    versions = [push(content, serving, tmp_path) for content in "AB"]
    # A model server reads 64 bits; the highest number has no next one.
    foreign = [str(2**63 - 1), str(2**63), "9" * 40, "\u0663"]
    for name in foreign:
        write_bytes(join(serving, name, MARKER), b"x")
    rolled = roll_back(serving)
    number = int(rolled.version.rpartition("/")[2])
    assert (rolled.files_of, rolled.replaced) == tuple(versions)
    assert versions[1] < number < versions[1] + 100
    for name in foreign:
        assert f"{join(serving, name)}: no version" in caplog.text
    write_version(tmp_path / "C", "C")
    highest = str(2**63 - 2)
    write_bytes(join(serving, highest, MARKER), b"x")
    with pytest.raises(DataError, match=rf"serving: no number is left after version {highest}"):
        publish(tmp_path / "C", serving)


def test_files_with_numbers_as_names_are_no_versions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    serving = tmp_path / "serving"
    versions = [push(content, str(serving), tmp_path) for content in "AB"]
    (serving / str(2**63 - 2)).write_text("5")
    (serving / str(versions[1] + 1)).symlink_to("nowhere")
    rolled = roll_back(serving)
    assert (rolled.files_of, rolled.replaced) == tuple(versions)
    assert versions[1] + 1 < int(Path(rolled.version).name) < versions[1] + 100
    assert f"{serving / str(2**63 - 2)}: no version: not a folder" in caplog.text


@pytest.mark.parametrize("name", ["-1", str(2**63 - 1)])
def test_what_is_no_version_is_not_rolled_back_to(name: str, tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    push("A", str(serving), tmp_path)
    shutil.copytree(next(serving.iterdir()), serving / name)
    with pytest.raises(DataError, match=rf"serving: no version {name}, only \d+\. Correct --to"):
        roll_back(str(serving), to=int(name))


def test_beside_a_file_of_the_highest_number_no_number_is_left(tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    push("A", str(serving), tmp_path)
    shutil.copytree(next(serving.iterdir()), serving / str(2**63 - 3))
    (serving / str(2**63 - 2)).write_text("5")
    before = sorted(serving.iterdir())
    write_version(tmp_path / "B", "B")
    with pytest.raises(DataError, match=rf"no number is left after version {2**63 - 2}"):
        publish(tmp_path / "B", serving)
    assert sorted(serving.iterdir()) == before


def test_links_that_lead_back_are_refused(tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    served = [push(content, str(serving), tmp_path) for content in "AB"][1]
    # Each file has 2^40 paths before the system refuses to follow so many links.
    for name in ("one", "two"):
        (serving / str(served) / name).symlink_to(".")
    with pytest.raises(DataError, match=rf"{serving / str(served)}/(one|two): this link leads back"):
        roll_back(str(serving))
    with pytest.raises(DataError, match=r"this link leads back"):
        publish(serving / str(served), tmp_path / "other")
    assert not any((tmp_path / "other").iterdir())


@pytest.mark.parametrize("name", ["assets/labels", "variables/variables.data-00000-of-00001"])
def test_a_pipe_in_a_version_is_refused(name: str, tmp_path: Path) -> None:
    serving = tmp_path / "serving"
    served = [push(content, str(serving), tmp_path) for content in "AB"][1]
    pipe = serving / str(served) / name
    pipe.parent.mkdir(exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=rf"{pipe}: a pipe, socket, device or folder"):
        roll_back(serving)
    with pytest.raises(DataError, match=rf"{pipe}: a pipe, socket, device or folder"):
        publish(serving / str(served), tmp_path / "other")


def test_a_version_removed_while_it_is_copied_is_not_published(
    serving: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in "AB":
        push(content, serving, tmp_path)

    answers = [True]  # of the first look; the version goes after it

    def publish_late(source: str, directory: str, **given: Any) -> str:
        remove_old_versions(directory, keep=1)
        write_bytes(join(source, "variables/variables.index"), b"half")
        return publish(source, directory, **given)

    with monkeypatch.context() as patch:
        patch.setattr(rolling, "publish", publish_late)
        patch.setattr(publishing, "is_file", lambda path: answers.pop() if answers else files.is_file(path))
        with pytest.raises(DataError, match=r"no saved_model\.pb any more, so it was not published"):
            roll_back(serving)
    assert contents(serving) == ["B"]


def test_what_a_killed_rollback_left_goes_with_the_next_call(tmp_path: Path) -> None:
    directory = str(tmp_path / "serving")
    numbers = [push(content, directory, tmp_path) for content in "AB"]
    killed = (
        "import os, signal, sys\n"
        "from detection.storage.temporary import temporary_folder\n"
        "with temporary_folder(sys.argv[1]):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", killed, join(directory, PUSH_STEM)], check=False)
    assert len(os.listdir(directory)) == 3
    roll_back(directory, to=numbers[1])  # it is served already
    assert sorted(os.listdir(directory)) == [str(number) for number in numbers]


def test_a_full_disk_is_explained_without_a_key_that_the_command_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path / "serving")
    for content in "AB":
        push(content, directory, tmp_path)

    def full(source: Path, destination: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(destination))

    monkeypatch.setattr(versions.shutil, "copyfile", full)
    with pytest.raises(DataError, match=r"cannot push: No space left on device .*Free space") as caught:
        roll_back(directory)
    assert "--set" not in str(caught.value)
    assert contents(directory) == ["A", "B"]


def test_the_newest_versions_stay(serving: str, tmp_path: Path) -> None:
    numbers = [push(content, serving, tmp_path) for content in "ABCD"]
    files.remove_file(join(serving, str(numbers[1]), MARKER))  # no version: left alone
    write_bytes(join(serving, "notes.txt"), b"mine")
    removed = remove_old_versions(serving, keep=2)
    assert removed == [str(numbers[0])]
    assert contents(serving) == ["C", "D"]
    assert sorted(files.list_folder(serving)) == sorted([*map(str, numbers[1:]), "notes.txt"])
    assert remove_old_versions(serving, keep=1) == [str(numbers[2])]
    assert remove_old_versions(serving, keep=1) == []
    assert contents(serving) == ["D"]


def test_a_rollback_survives_the_removal_of_its_source(serving: str, tmp_path: Path) -> None:
    for content in "AB":
        push(content, serving, tmp_path)
    roll_back(serving)
    remove_old_versions(serving, keep=1)
    assert contents(serving) == ["A"]
    with pytest.raises(DataError, match="rolled back"):  # still
        push("B", serving, tmp_path)
    push("C", serving, tmp_path)
    remove_old_versions(serving, keep=2)
    assert roll_back(serving).files_of == sorted(whole_versions(serving))[0]
    assert contents(serving) == ["A", "C", "A"]


def test_a_version_that_another_removed_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = str(tmp_path / "serving")
    for content in "AB":
        push(content, serving, tmp_path)
    rename = Path.rename

    def remove_first(self: Path, target: Path) -> Path:
        files.remove_folder(self)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", remove_first)
    remove_old_versions(serving, keep=1)
    assert contents(serving) == ["B"]


def test_a_version_that_cannot_be_removed_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serving = str(tmp_path / "serving")
    for content in "AB":
        push(content, serving, tmp_path)

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        assert remove_old_versions(serving, keep=1) == []
    assert "cannot remove an old version: [Errno 13] Permission denied. Check the permissions" in caplog.text
    assert "the new version is in place" in caplog.text
    assert contents(serving) == ["A", "B"]


def test_the_marker_goes_first_and_a_kill_at_any_write_is_ended_by_the_next_push(tmp_path: Path, gcs: Bucket) -> None:
    for content in ("old", "new"):
        for name in (MARKER, "variables"):
            write_bytes(tmp_path / content / name, content.encode())
    for number in range(20):
        directory = f"{gcs.path}/{number}"
        for name in (MARKER, "variables"):
            files.copy_file(tmp_path / "old" / name, f"{directory}/5/{name}")
        old = f"{directory}/5"
        if not killed_at_write(gcs, number, versions.remove_version, old, MARKER, after=bool(number % 2)):
            break
        left = [name for name in files.walk_files(old) if name != ".unfinished"]
        assert left in ([MARKER, "variables"], ["variables"], [])
        newest = publish(tmp_path / "new", directory)
        # Without a word of the removal, of which nothing has been written, the version stays.
        assert list(whole_versions(directory).values()) == ([old, newest] if number == 0 else [newest])
        assert len(files.list_folder(directory)) == (2 if number == 0 else 1)
    assert number == 4  # note, marker, file, note


def test_the_program(serving: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline_runner import main

    first, second = (push(content, serving, tmp_path) for content in "AB")
    assert main(["rollback", "--directory", serving]) == 0
    out, err = capsys.readouterr()
    assert content_of(out.strip()) == "A"
    assert err == f"version {second + 1} has the files of version {first} and replaces {second}\n"
    assert main(["rollback", "--directory", serving, "--to", str(first)]) == 0
    assert capsys.readouterr().err == f"version {second + 1} is served, and has the files of version {first}\n"
    assert main(["rollback", "--directory", serving, "--to", "3"]) == 1
    assert "error: " in capsys.readouterr().err
    assert main(["rollback", "--directory", "s3://bucket/serving"]) == 2


def test_the_record_is_json_for_other_tools(tmp_path: Path) -> None:
    serving = str(tmp_path / "serving")
    first, second = (push(content, serving, tmp_path) for content in "AB")
    content = json.loads(Path(roll_back(serving).version, ROLLBACK_RECORD).read_text())
    assert {key: content[key] for key in ("version", "replaced")} == {"version": first, "replaced": second}
    assert [len(digest) for digest in content["refused_models"]] == [64]
