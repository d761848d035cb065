"""The same tree, local and remote: the same answers."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.storage import files, paths
from detection.storage.atomic import write_bytes
from detection.storage.files import open_stream, read_bytes
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket

NAMES = ["a", "b.txt", ".h", "c[1]", "d*", "a b", "ü", "x.json"]
TREE = {
    "train.json": b"{}",
    "images/1.jpg": b"one",
    "images/2.jpg": b"",
    "images/.hidden": b"h",
    "images/deep/er/3.jpg": b"three",
    ".git/config": b"",
    "run[1]/shard-00000": b"r",
    "run[1]/shard-00001": b"r",
    "run1/shard-00002": b"r",
    "sp ace/#%?.txt": b"odd",
}
_PATTERNS = """
* *.json images/* images/.* images/?.jpg images/[2-9].jpg images/[!2].jpg */ ** **/ **/*.jpg images/** images/**/3*
*/shard-* run[1]/* run[[]1]/* none/* images/1.jpg image images */*/*/*.jpg **/er/** sp*/* images/deep/*/
"""


def plant(base: str, tree: dict[str, bytes]) -> str:
    for name, content in tree.items():
        write_bytes(paths.join(base, name), content, durable=False)
    return base


@pytest.mark.parametrize("pattern", _PATTERNS.split())
def test_patterns_match_the_same(pattern: str, gcs: Bucket, tmp_path: Path) -> None:
    local, remote = plant(str(tmp_path), TREE), plant(f"{gcs.path}/data", TREE)
    matches = [path.removeprefix(remote) for path in files.glob(paths.join(remote, pattern) + _slash(pattern))]
    assert matches == sorted(path.removeprefix(local) for path in files.glob(paths.join(local, pattern)))


def _slash(pattern: str) -> str:
    return "/" if pattern.endswith("/") else ""


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), min_size=1, max_size=6),
    pattern=st.lists(st.sampled_from([*NAMES, "*", "?", "**", "[a-c]*", "*.*"]), min_size=1, max_size=3).map("/".join),
)
def test_any_tree_gives_the_same_answers(
    names: set[str], pattern: str, gcs: Bucket, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    local = tmp_path_factory.mktemp("tree")
    remote = f"{gcs.path}/{local.name}"
    for base in (str(local), remote):
        plant(base, dict.fromkeys(kept, b"content"))
    assert files.walk_files(remote) == files.walk_files(local)
    folders = {"/".join(name.split("/")[:depth]) for name in kept for depth in range(1, 3)} | {"absent"}
    for name in kept | folders:
        here, there = paths.join(local, name), paths.join(remote, name)
        for ask in (files.exists, files.is_file, files.is_dir):
            assert ask(there) == ask(here), (ask, name)
        if files.is_dir(here):
            assert files.list_folder(there) == files.list_folder(here)
    assert _below(files.glob(paths.join(remote, pattern)), remote) == _below(
        files.glob(paths.join(local, pattern)), str(local)
    )
    assert files.glob(paths.join(paths.escape(remote), pattern)) == files.glob(paths.join(remote, pattern))


def _below(matches: list[str], base: str) -> list[str]:
    return sorted({path.removeprefix(base).strip("/") for path in matches})


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_file_is_written_looked_at_copied_and_removed(kind: str, gcs: Bucket, tmp_path: Path) -> None:
    base = f"{gcs.path}/data" if kind == "remote" else str(tmp_path / "data")
    path = plant(base, TREE) + "/images/1.jpg"
    before = files.find_file(path)
    assert before is not None
    assert before.size == 3
    assert files.find_file(path) == before
    write_bytes(path, b"two")
    after = files.find_file(path)
    assert after is not None
    assert after.version != before.version
    assert after.modified >= before.modified
    assert files.find_file(f"{base}/images") is None
    for goal in (f"{gcs.path}/copy", str(tmp_path / "deep" / "copy")):
        files.copy_file(path, goal)
        assert read_bytes(goal) == b"two"
    files.remove_file(path)
    files.remove_file(path)
    assert not files.exists(path)
    files.remove_folder(base)
    files.remove_folder(base)
    assert not files.exists(base)
    assert files.walk_files(base) == []
    with pytest.raises(DataError, match=r"data: cannot list the folder: No such .*\. Check the path"):
        files.list_folder(base)


def test_folders_that_tensorflow_marks_with_an_object_are_folders(gcs: Bucket) -> None:
    from detection.storage.gcs import objects

    objects._blob(f"{gcs.path}/run/empty/").upload_from_string(b"")
    assert files.is_dir(f"{gcs.path}/run/empty")
    assert not files.is_file(f"{gcs.path}/run/empty")
    assert files.list_folder(f"{gcs.path}/run") == ["empty"]
    assert files.list_folder(f"{gcs.path}/run/empty") == []
    assert files.walk_files(f"{gcs.path}/run") == []
    files.remove_folder(f"{gcs.path}/run")
    assert not files.is_dir(f"{gcs.path}/run")


def test_a_bucket_is_a_folder_and_is_not_removed(gcs: Bucket) -> None:
    assert files.is_dir(gcs.path)
    assert not files.is_dir("gs://there-is-none")
    assert not files.exists("gs://there-is-none/x")
    with pytest.raises(DataError, match="this is a bucket, which is not removed"):
        files.remove_folder(gcs.path)


def test_lists_of_more_than_a_page_are_whole(gcs: Bucket) -> None:
    from detection.storage.gcs import client, objects

    names = [f"{number:02}" for number in range(20)]
    client.in_parallel(lambda name: objects.write(f"{gcs.path}/many/{name}", b""), names)
    client.in_parallel(lambda name: objects.write(f"{gcs.path}/many/folder-{name}/x", b""), names)
    gcs.emulator.set_page_size(7)
    assert files.list_folder(f"{gcs.path}/many") == [*names, *(f"folder-{name}" for name in names)]
    assert len(files.walk_files(f"{gcs.path}/many")) == 40
    files.remove_folder(f"{gcs.path}/many")
    assert files.walk_files(gcs.path) == []


def test_a_stream_seeks_and_stays_with_one_generation(gcs: Bucket) -> None:
    content = bytes(range(256)) * 100_000
    write_bytes(f"{gcs.path}/large", content)
    with open_stream(f"{gcs.path}/large") as stream:
        assert stream.read(5) == content[:5]
        assert stream.seek(-7, 2) == len(content) - 7
        assert stream.read() == content[-7:]
        assert stream.read() == b""
        stream.seek(9_000_000)
        assert stream.read(9_000_000) == content[9_000_000:18_000_000]
        write_bytes(f"{gcs.path}/large", b"other")
        stream.seek(0)
        with pytest.raises(DataError, match="another process wrote or removed"):
            stream.read()


def test_a_missing_remote_file_is_explained_by_what_lies_beside_it(gcs: Bucket) -> None:
    write_bytes(f"{gcs.path}/data/a.json", b"{}")
    with pytest.raises(DataError, match=r"data/b.json: cannot read the file: .* JSON files in gs://.*/data: a.json"):
        read_bytes(f"{gcs.path}/data/b.json")
    with pytest.raises(DataError, match=r"JSON files in gs://.*/none: none"):
        read_bytes(f"{gcs.path}/none/b.json")
    with pytest.raises(DataError, match="more than 1 bytes"):
        read_bytes(f"{gcs.path}/data/a.json", 1)


def test_a_link_to_a_folder_is_listed_as_one_and_never_for_removal(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name, goal in (("loop", "loop"), ("lost", "none")):
        (tmp_path / name).symlink_to(goal)
    assert files.list_folder(tmp_path) == ["folder", "link", "loop", "lost"]
    assert files.list_files(tmp_path) == ["loop", "lost"]
    assert files.list_folders(tmp_path) == ["folder"]
