"""Outputs that cannot be written, or that another process writes, are refused before the work."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.outputs import output_folder, require_output_file, require_output_folder, require_room
from schemas.errors import CocoflowError, DataError
from tests.storage_emulator.fixture import Bucket


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A disk with 10 MB; the folders whose disk was asked for."""
    asked: list[str] = []
    usage = shutil.disk_usage("/")

    def of(folder: Path) -> Any:
        asked.append(str(folder))
        return usage._replace(free=10_000_000)

    monkeypatch.setattr(shutil, "disk_usage", of)
    return asked


def _new(path: str, flag: str) -> None:
    require_output_folder(path, flag, new=True)


CHECKS: list[Callable[[str, str], None]] = [require_output_file, require_output_folder, _new]


@pytest.mark.parametrize("check", CHECKS)
def test_a_path_that_can_be_written_is_not_created(check: Callable[[str, str], None], tmp_path: Path) -> None:
    for name in ("new", "some/folders/new"):
        check(str(tmp_path / name), "--output")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("check", CHECKS)
def test_a_file_in_the_place_of_a_folder_is_named(
    check: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with pytest.raises(DataError, match=rf"--output file/deep/new: cannot write: {tmp_path}/file is a file\."):
        check("file/deep/new", "--output")
    assert Path("file").read_text() == "mine"


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_that_cannot_be_written_is_named(
    check: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "touch", refuse)  # root may write everywhere
    with pytest.raises(DataError, match=f"{tmp_path}: cannot write: Permission denied"):
        check(str(tmp_path / "new" / "one"), "--output")
    assert list(tmp_path.iterdir()) == []


def test_the_other_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    with pytest.raises(DataError, match=r"--output folder: this is a folder\. Name a file in it\."):
        require_output_file("folder", "--output")
    require_output_file("file", "--output")
    with pytest.raises(DataError, match=r"--output file: this is a file\. Name a folder\."):
        require_output_folder("file", "--output")
    require_output_folder("folder", "--output", new=True)
    Path("folder/mine").touch()
    require_output_folder("folder", "--output")
    with pytest.raises(DataError, match="folder: cannot write: not a new or empty folder"):
        require_output_folder("folder", "--output", new=True)


@pytest.mark.parametrize("check", CHECKS)
def test_a_full_disk_is_refused(check: Callable[[str, str], None], tmp_path: Path, full_disk: list[str]) -> None:
    with pytest.raises(
        CocoflowError, match=rf"/new: needs at least 50 MB, and the disk of {tmp_path} has 10 MB free\. Free space"
    ):
        check(str(tmp_path / "deep" / "new"), "--output")
    assert full_disk == [str(tmp_path)]


def test_room_is_that_of_the_disk(tmp_path: Path, full_disk: list[str]) -> None:
    require_room(tmp_path / "new", 10_000_000, advice="")
    with pytest.raises(CocoflowError, match=r"needs at least 12,346 MB, and .* has 10 MB free\. Buy one\."):
        require_room(tmp_path / "new", 12_345_678_901, advice="Buy one.")


def test_on_cloud_storage_the_bucket_and_the_disk_of_temporary_files_count(gcs: Bucket) -> None:
    require_output_file(f"{gcs.path}/a/detections.json", "--output")
    require_output_folder(f"{gcs.path}/b", "--output", new=True)
    assert files.walk_files(gcs.path) == []
    write_text(f"{gcs.path}/b/mine", "")
    with pytest.raises(DataError, match="/b: cannot write: not a new or empty folder"):
        require_output_folder(f"{gcs.path}/b", "--output", new=True)
    with pytest.raises(DataError, match="no-such-bucket"):
        require_output_file("gs://no-such-bucket/detections.json", "--output")
    with pytest.raises(CocoflowError, match=f"and the disk of {tempfile.gettempdir()}"):
        require_room(f"{gcs.path}/b", 10**18, advice="")


def test_a_second_writer_is_told_at_its_start_who_writes(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    with output_folder(output, last="x") as folder:
        Path(folder, "x").write_text("first")
        with (
            pytest.raises(CocoflowError, match=rf"out: in use by process {os.getpid()} on .* name another folder"),
            output_folder(output, last="x"),
        ):
            pytest.fail("it began")
        with output_folder(f"{output}2", last="x"):
            pass
    assert Path(output, "x").read_text() == "first"
