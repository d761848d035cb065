import hashlib
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detection.web.downloads import UnreachableError, fetch, unpack
from schemas.errors import DataError
from tests.detection.pretrained.publisher import Publisher, archive, running_publisher


@pytest.fixture(scope="module")
def publisher() -> Iterator[Publisher]:
    with running_publisher() as running:
        yield running


def test_a_file_arrives_with_its_hash(publisher: Publisher, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    publisher.files["/whole"] = content
    assert fetch(f"{publisher.url}/whole", tmp_path / "file") == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "file").read_bytes() == content


def test_damage_is_found(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["/damaged"] = publisher.files["/cut"] = bytes(3_000_000)
    publisher.damaged.add("/damaged")
    publisher.cut.add("/cut")
    with pytest.raises(DataError, match=r"/damaged: damaged in transfer: its MD5 differs from the server's"):
        fetch(f"{publisher.url}/damaged", tmp_path / "file")
    with pytest.raises(UnreachableError, match=r"/cut: the connection ended after 1500000 of 3000000 bytes"):
        fetch(f"{publisher.url}/cut", tmp_path / "file")


def test_a_refusal_is_not_a_missing_connection(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/none: the server responded 404") as refused:
        fetch(f"{publisher.url}/none", tmp_path / "file")
    assert not isinstance(refused.value, UnreachableError)


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(UnreachableError, match=r"/file: no connection: .*refused"):
            fetch(url, tmp_path / "file")


def test_plain_files_are_unpacked(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("d0")
    folder.type = tarfile.DIRTYPE
    (tmp_path / "archive").write_bytes(archive({"d0": folder, "d0/model.index": b"index", "./d0/checkpoint": b"state"}))
    unpack(tmp_path / "archive", tmp_path / "to", origin="it")
    found = {file.relative_to(tmp_path / "to").as_posix(): file.read_bytes() for file in (tmp_path / "to").rglob("*.*")}
    assert found == {"d0/model.index": b"index"}
    assert (tmp_path / "to" / "d0" / "checkpoint").read_bytes() == b"state"


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(archive({"d0": b"a file", "d0/model.index": b"index"}))
    with pytest.raises(DataError, match=r"it: not a ZIP or tar archive, or damaged: .*d0"):
        unpack(tmp_path / "archive", tmp_path / "to", origin="it")


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("name", "member", "reason"),
    [
        ("../outside", b"content", "is outside of the destination folder"),
        ("d0/../../outside", b"content", "is outside of the destination folder"),
        ("/absolute", b"content", "is outside of the destination folder"),
        ("link", _member("link", tarfile.SYMTYPE, "/etc/passwd"), "is neither a file nor a folder"),
        ("link", _member("link", tarfile.SYMTYPE, "d0"), "is neither a file nor a folder"),
        ("hard", _member("hard", tarfile.LNKTYPE, "d0/model"), "is neither a file nor a folder"),
        ("device", _member("device", tarfile.CHRTYPE), "is neither a file nor a folder"),
        ("pipe", _member("pipe", tarfile.FIFOTYPE), "is neither a file nor a folder"),
    ],
)
def test_harmful_members_are_refused(tmp_path: Path, name: str, member: bytes | tarfile.TarInfo, reason: str) -> None:
    (tmp_path / "archive").write_bytes(archive({name: member}))
    with pytest.raises(DataError, match=rf"it: refused: its member '.*' {reason}"):
        unpack(tmp_path / "archive", tmp_path / "to", origin="it")
    assert not list((tmp_path / "to").iterdir())
    assert not (tmp_path / "outside").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("huge")
    huge.size = 9 << 30
    (tmp_path / "archive").write_bytes(huge.tobuf())
    with pytest.raises(DataError, match=r"member 'huge' makes it larger than 8 GiB"):
        unpack(tmp_path / "archive", tmp_path / "to", origin="it")


@pytest.mark.parametrize("content", [b"", b"no archive", archive({"a": bytes(100_000)})[:-40]])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(DataError, match="it: not a ZIP or tar archive, or damaged"):
        unpack(tmp_path / "archive", tmp_path / "to", origin="it")
