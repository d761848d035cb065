import contextlib
import itertools
import threading
from pathlib import Path

import pytest

from detection.storage import files
from detection.storage.atomic import write_bytes
from detection.storage.file_system import FileState, WorkingFolder
from detection.storage.gcs import objects
from detection.storage.lock import open_working_folder
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket

LAST = ("*.index", "checkpoint")


def save(mirror: WorkingFolder, step: int) -> None:
    """As TensorFlow saves checkpoints, the older ones removed."""
    for path in mirror.local.glob("ckpt-*"):
        path.unlink()
    for part in ("data-0", "data-1", "index"):
        (mirror.local / f"ckpt-{step}.{part}").write_text(f"{part} of {step}")
    (mirror.local / "checkpoint").write_text(str(step))


def read(path: str) -> int:
    """The step that a reader finds; every state that it can see is whole."""
    with open_working_folder(path) as mirror:
        if not (mirror.local / "checkpoint").exists():
            return 0
        step = int((mirror.local / "checkpoint").read_text())
        for part in ("data-0", "data-1", "index"):
            assert (mirror.local / f"ckpt-{step}.{part}").read_text() == f"{part} of {step}"
        return step


def writes(gcs: Bucket) -> list[str]:
    return [
        request["target"]
        for request in gcs.emulator.requests()
        if request["method"] != "GET" and "/b/" in request["target"]
    ]


def test_a_local_folder_is_worked_in_itself(tmp_path: Path) -> None:
    with open_working_folder(tmp_path / "new") as mirror:
        assert mirror.local == tmp_path / "new"
        assert mirror.local.is_dir()
        mirror.push()
        mirror.pull()


def test_only_what_changed_is_pushed_and_the_rest_is_removed_here_and_there(gcs: Bucket) -> None:
    path = f"{gcs.path}/run"
    with open_working_folder(path, last=LAST, exclude=("*.log",)) as mirror:
        save(mirror, 1)
        for name in ("deep/er/x", "a.log", ".x.tmp", ".lock"):
            write_bytes(mirror.local / name, b"x", durable=False)
        mirror.push()
        assert read(path) == 1
        assert "deep/er/x" in files.walk_files(path)
        assert not [name for name in files.walk_files(path) if name.endswith((".log", ".tmp", ".lock"))]
        gcs.emulator.requests()
        mirror.push()
        assert writes(gcs) == []
        save(mirror, 2)
        mirror.push()
        assert len(writes(gcs)) == 4 + 3
        assert read(path) == 2
        local = mirror.local
    assert not local.exists()
    assert sorted(files.walk_files(path)) == [
        "checkpoint",
        "ckpt-2.data-0",
        "ckpt-2.data-1",
        "ckpt-2.index",
        "deep/er/x",
    ]


def test_a_reader_follows(gcs: Bucket) -> None:
    path = f"{gcs.path}/run"
    with open_working_folder(path, last=LAST) as writer, open_working_folder(path) as reader:
        (reader.local / "mine").touch()
        for step in (1, 2):
            save(writer, step)
            writer.push()
            reader.pull()
            assert sorted(path.name for path in reader.local.iterdir()) == sorted(
                ["mine", *(path.name for path in writer.local.iterdir())]
            )
        gcs.emulator.requests()
        reader.pull()
        assert len(gcs.emulator.requests()) == 1


@pytest.mark.parametrize(("after", "times"), [(False, 1), (True, 0)], ids=["refused once", "answers lost from then on"])
def test_whichever_write_of_a_push_fails_readers_see_a_complete_checkpoint_and_the_next_push_ends(
    after: bool, times: int, gcs: Bucket
) -> None:
    for number in itertools.count():
        path = f"{gcs.path}/{number}"
        with open_working_folder(path, last=LAST) as mirror:
            save(mirror, 1)
            mirror.push()
            save(mirror, 2)
            gcs.emulator.fail(status=403, method="write", path="/b/", skip=number, times=times, after=after)
            failed = False
            try:
                mirror.push()
            except DataError:
                failed = True
            fired = gcs.emulator.clear()
            assert failed == bool(fired)
            if not fired:
                break
            assert read(path) in (1, 2)
            # After a refusal the work goes on; after a lost response, which is an error, another run resumes it.
            with open_working_folder(path, last=LAST) if after else contextlib.nullcontext(mirror) as working:
                save(working, 3)
                working.push()
            assert read(path) == 3
            assert len(files.walk_files(path)) == 4
    assert number == 4 + 3


def test_what_another_process_wrote_is_not_overwritten(gcs: Bucket) -> None:
    path = f"{gcs.path}/run"
    with open_working_folder(path) as first, open_working_folder(path) as second:
        save(first, 1)
        first.push()
        save(second, 2)
        with pytest.raises(DataError, match="another process wrote or removed this object"):
            second.push()
        assert (read(path), objects.read(f"{path}/checkpoint")) == (1, b"1")


def test_a_folder_that_changes_during_the_pull_is_pulled_as_of_one_moment(
    gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, download = f"{gcs.path}/run", objects.download
    with open_working_folder(path, last=LAST) as writer:
        save(writer, 1)
        writer.push()
        steps, one_at_a_time = iter([2, 3]), threading.Lock()

        def save_first(stored: FileState, destination: Path) -> None:
            with one_at_a_time:
                for step in itertools.islice(steps, 1):
                    save(writer, step)
                    writer.push()
            download(stored, destination)

        monkeypatch.setattr(objects, "download", save_first)
        assert read(path) == 3
