"""Requests that fail, are repeated, or whose answers get lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detection.storage.gcs import client, objects
from detection.storage.gcs.client import AbsentError, ConflictError
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.killing import in_processes

ROOT = Path(__file__).resolve().parents[4]


def test_an_object_is_written_read_copied_and_deleted(gcs: Bucket, tmp_path: Path) -> None:
    path = f"{gcs.path}/a/ü #%?.bin"
    written = objects.write(path, b"content")
    assert objects.find(path) == written
    assert (written.path, written.size) == (path, 7)
    assert objects.read(path) == b"content"
    assert objects.read(path, 2, 4) == b"nt"
    assert objects.read(path, 5, 100) == b"nt"
    assert objects.read(path, 7, 100) == b""
    copied = objects.copy(written, f"{gcs.path}/b")
    assert objects.read(f"{gcs.path}/b") == b"content"
    objects.download(copied, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"content"
    objects.delete(path, generation=written.version + 1)
    assert objects.find(path) == written
    for _ in range(2):
        objects.delete(path, generation=written.version)
        assert objects.find(path) is None


@pytest.mark.parametrize("size", [0, 1, 9 << 20], ids=["empty", "small", "resumable"])
def test_files_of_any_size_arrive(size: int, gcs: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789abcdef" * (size // 16) + b"x" * (size % 16))
    written = objects.write(f"{gcs.path}/x", source)
    assert (written.size, written.checksum) == (size, objects.crc32c(source))
    objects.download(written, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_generations_keep_writers_apart(gcs: Bucket) -> None:
    path = f"{gcs.path}/x"
    first = objects.write(path, b"1", generation=0)
    with pytest.raises(ConflictError, match="another process wrote or removed this object meanwhile"):
        objects.write(path, b"2", generation=0)
    second = objects.write(path, b"2", generation=first.version)
    assert second.version > first.version
    with pytest.raises(ConflictError):
        objects.copy(first, f"{gcs.path}/y")
    with pytest.raises(ConflictError):
        objects.download(first, Path("/dev/null"))
    with pytest.raises(ConflictError):
        objects.read(path, generation=first.version)


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}, {"action": "reset"}], ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("size", [3, 9 << 20], ids=["small", "resumable"])
def test_a_write_is_repeated_and_knows_its_own_object(
    fault: dict[str, Any], after: bool, size: int, gcs: Bucket
) -> None:
    content = b"x" * size
    for skip in range(2 if size > 8 << 20 else 1):  # the start of an upload, and its content
        path = f"{gcs.path}/{skip}"
        gcs.emulator.fail(method="write", path="/upload/", skip=skip, after=after, **fault)
        written = objects.write(path, content, generation=0)
        assert gcs.emulator.clear() == 1
        assert objects.find(path) == written
        assert objects.read(path) == content


def test_a_claim_whose_answer_got_lost_is_a_claim(gcs: Bucket) -> None:
    gcs.emulator.fail("reset", method="write", path="/upload/", after=True)
    assert objects.claim(f"{gcs.path}/claim", b"mine") is not None
    assert objects.claim(f"{gcs.path}/claim", b"another's") is None


def test_copies_and_deletions_are_repeated(gcs: Bucket) -> None:
    source = objects.write(f"{gcs.path}/x", b"content")
    gcs.emulator.fail("reset", method="write", path="rewriteTo", after=True)
    copied = objects.copy(source, f"{gcs.path}/y", generation=0)
    assert objects.find(f"{gcs.path}/y") == copied
    gcs.emulator.fail("status", method="DELETE", status=503, after=True)
    objects.delete(f"{gcs.path}/y", generation=copied.version)
    assert objects.find(f"{gcs.path}/y") is None


def _claim(path: str, name: str) -> None:
    sys.exit(0 if objects.claim(path, name.encode()) else 7)


def test_of_many_processes_that_claim_at_once_one_wins(gcs: Bucket) -> None:
    codes = in_processes(_claim, [(f"{gcs.path}/claim", str(number)) for number in range(6)])
    assert sorted(code or 0 for code in codes) == [0, 7, 7, 7, 7, 7]
    assert objects.read(f"{gcs.path}/claim").decode() == str(codes.index(0))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_path_role_and_reason(status: int, gcs: Bucket) -> None:
    for action in (
        lambda: objects.write(f"{gcs.path}/x", b""),
        lambda: objects.find(f"{gcs.path}/x"),
        lambda: objects.read(f"{gcs.path}/x"),
        lambda: objects.list_tree(f"{gcs.path}/x"),
    ):
        gcs.emulator.fail(status=status, path="/b/", times=0)
        with pytest.raises(DataError) as refused:
            action()
        gcs.emulator.clear()
        assert str(refused.value).startswith(f"{gcs.path}/x: Cloud Storage refuses access: ")
        assert f"A fault of the emulator (status {status}). Give the account the role" in str(refused.value)


def test_a_service_that_stays_away_is_given_up_and_explained(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.1)
    for path in ("/upload/", "/download/", "/o/", r"/o\?"):
        gcs.emulator.fail(status=503, path=path, times=0)
    for action in (
        lambda: objects.write(f"{gcs.path}/x", b""),
        lambda: objects.read(f"{gcs.path}/x"),
        lambda: objects.find(f"{gcs.path}/x"),
        lambda: objects.list_tree(f"{gcs.path}/x"),
    ):
        with pytest.raises(DataError, match="x: Cloud Storage cannot be reached, also not by repeated requests"):
            action()


def test_no_network_no_credentials_and_no_bucket_are_explained(
    gcs: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(AbsentError, match=r"gs://there-is-none/x: .* bucket there-is-none exists"):
        objects.write("gs://there-is-none/x", b"")
    with pytest.raises(AbsentError, match="there-is-none"):
        objects.list_tree("gs://there-is-none")
    with pytest.raises(DataError, match=f"{gcs.path}: this is a bucket"):
        objects.write(gcs.path, b"")
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.1)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    client.client.cache_clear()
    with pytest.raises(DataError, match="x: Cloud Storage cannot be reached"):
        objects.write(f"{gcs.path}/x", b"")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    client.client.cache_clear()
    with pytest.raises(DataError, match=r"x: no valid credentials .*none\.json was not found\. Run `gcloud auth"):
        objects.write(f"{gcs.path}/x", b"")


@pytest.mark.parametrize("content", ["[]", "no JSON", None], ids=["a list", "text", "a folder"])
def test_credentials_of_another_kind_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "key.json"
    file.mkdir() if content is None else file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    client.client.cache_clear()
    try:
        with pytest.raises(DataError, match=r"key\.json: "):
            objects.write("gs://bucket/x", b"")
    finally:
        client.client.cache_clear()


def test_the_library_is_not_imported_for_local_paths() -> None:
    code = """
import sys, tempfile
from detection.storage import atomic, files, lock
folder = tempfile.mkdtemp()
atomic.write_text(f"{folder}/x", "x"); files.read_text(f"{folder}/x"); files.local_copy(folder)
with lock.lock_folder(folder, instead="wait"), lock.open_working_folder(folder): pass
print([name for name in ("google.cloud.storage", "google.auth", "google.api_core", "requests") if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"


def test_another_emulator_is_found_by_the_usual_variable(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{gcs.emulator.port}")
    for name in ("HTTPS_PROXY", "https_proxy", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name)
    client.client.cache_clear()
    gcs.emulator.requests()
    for size in (3, 9 << 20):
        written = objects.write(f"{gcs.path}/x", b"x" * size)
        assert objects.find(f"{gcs.path}/x") == written
    assert "/token" not in json.dumps(gcs.emulator.requests())
