"""Archives by path and by address: fetched once, taken up again, compared, unpacked with nothing outside."""

import hashlib
import http.server
import io
import json
import multiprocessing
import os
import signal
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detection.web.archives import is_packed, unpacked
from detection.web.downloads import OFFLINE_VARIABLE, UnreachableError
from schemas.errors import ConfigError, DataError


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


class Origin:
    """A server with one archive.

    Attributes:
        content: of the archive.
        cuts: after how many bytes the next responses end, one each.
        etag: whether versions have names.
        asked: headers and statuses of the requests.
        redirect: address to redirect to.
    """

    def __init__(self) -> None:
        self.content = b""
        self.cuts: list[int] = []
        self.etag = True
        self.asked: list[tuple[dict[str, str], int]] = []
        self.redirect = ""
        self.url = ""


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(OFFLINE_VARIABLE, raising=False)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, start, status = f'"{hash(served.content)}"', 0, 200
            if served.redirect:
                status = 302
            elif served.etag and self.headers.get("If-None-Match") == name:
                status = 304
            elif served.etag and self.headers.get("If-Range") == name:
                start, status = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")), 206
            served.asked.append((dict(self.headers), status))
            self.send_response(status)
            if served.redirect:
                self.send_header("Location", served.redirect)
            if served.etag:
                self.send_header("ETag", name)
            content = served.content[start:] if status in (200, 206) else b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: served.cuts.pop(0)] if served.cuts else content)

        def log_message(self, *_: object) -> None:
            """Keeps quiet."""

    served = Origin()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/sets/nuts.zip?key=SECRET"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def contents(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def statuses(origin: Origin) -> list[int]:
    return [status for _, status in origin.asked]


FILES = {"set/data.yaml": b"names: [nut]", "set/images/1.jpg": os.urandom(5000)}


def test_an_address_is_fetched_once_and_its_key_is_nowhere(
    origin: Origin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    origin.content = packed(FILES)
    caplog.set_level("INFO")
    folder = unpacked(origin.url)
    assert contents(folder) == FILES
    assert unpacked(origin.url.replace("SECRET", "OTHER")) == folder
    assert statuses(origin) == [200, 304]
    written = "".join(f"{path} {path.read_bytes()!r}" for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert "SECRET" not in written + folder + caplog.text
    assert "nuts.zip" in written


def test_without_network_the_cache_serves(
    origin: Origin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    origin.content = packed(FILES)
    url = origin.url
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    with pytest.raises(DataError, match=r"nuts\.zip: not in the cache .* and COCOFLOW_OFFLINE forbids") as caught:
        unpacked(url)
    assert "SECRET" not in str(caught.value)
    monkeypatch.delenv(OFFLINE_VARIABLE)
    folder = unpacked(url)
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    assert unpacked(url) == folder
    monkeypatch.delenv(OFFLINE_VARIABLE)
    origin.redirect = "http://127.0.0.1:9/nowhere"
    assert unpacked(url) == folder
    assert "The copy in the cache is used" in caplog.text


def test_a_break_is_taken_up_again(origin: Origin) -> None:
    origin.content = packed(FILES)
    origin.cuts = [1000, 1500]
    assert contents(unpacked(origin.url)) == FILES
    assert statuses(origin) == [200, 206, 206]
    assert origin.asked[2][0]["Range"] == "bytes=2500-"


def test_a_break_is_taken_up_by_the_next_call_unless_the_file_has_changed(origin: Origin) -> None:
    origin.content = packed(FILES)
    origin.cuts = [1000, 0]
    with pytest.raises(UnreachableError, match="the connection ended after 1000 of"):
        unpacked(origin.url)
    origin.content = packed(FILES | {"set/more.txt": b"more"})
    assert contents(unpacked(origin.url)) == FILES | {"set/more.txt": b"more"}
    assert statuses(origin) == [200, 206, 200]


def test_a_changed_file_is_told(origin: Origin, caplog: pytest.LogCaptureFixture) -> None:
    origin.content = packed(FILES)
    first = unpacked(origin.url)
    origin.content = packed({"set/data.yaml": b"names: [bolt]"})
    second = unpacked(origin.url)
    assert contents(second) == {"set/data.yaml": b"names: [bolt]"}
    assert "nuts.zip has changed: SHA-256" in caplog.text
    assert not Path(first).exists()


def test_a_digest_is_demanded(origin: Origin) -> None:
    origin.content = packed(FILES)
    with pytest.raises(DataError, match=r"nuts\.zip: its SHA-256 is [0-9a-f]{64}, not 00\. Check the archive"):
        unpacked(f"{origin.url}#sha256=00")
    folder = unpacked(origin.url)
    digest = json.loads((Path(folder).parents[1] / "archive.json").read_text())["sha256"]
    asked = len(origin.asked)
    assert unpacked(f"{origin.url}#sha256={digest}") == folder
    assert len(origin.asked) == asked, "what is demanded is there"
    origin.content = packed({"other": b""})
    assert unpacked(f"{origin.url}#sha256={digest}") == folder


def test_the_content_of_a_folder_is_demanded_where_an_archive_is_packed_anew(origin: Origin) -> None:
    digests = [
        f"{hashlib.sha256(content).hexdigest()} {name}\n" for name, content in (("a.xml", b"a"), ("b/c.jpg", b"c"))
    ]
    wanted = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
    for number in range(2):
        readme = f"packed {number}".encode()
        origin.content = packed({"x-1/SET/a.xml": b"a", "x-1/SET/b/c.jpg": b"c", "x-1/README": readme})
        assert contents(unpacked(f"{origin.url}#SET={wanted}"))["x-1/SET/a.xml"] == b"a"
    origin.content = packed({"x-1/SET/a.xml": b"changed", "x-1/SET/b/c.jpg": b"c"})
    assert unpacked(f"{origin.url}#SET={wanted}"), "the cache has it"
    with pytest.raises(DataError, match=r"nuts\.zip: the SHA-256 of SET/ in it is [0-9a-f]{64}, not 00"):
        unpacked(f"{origin.url}#SET=00")


@pytest.mark.parametrize("target", ["file:///etc/passwd?key=SECRET", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"])
def test_a_redirect_to_another_scheme_is_refused(origin: Origin, target: str) -> None:
    origin.redirect = target
    with pytest.raises(DataError, match=r"nuts\.zip: (redirects to ftp://, which is refused|.* responded 302 Found)"):
        unpacked(origin.url)


def test_an_address_without_https_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"http://example\.org/a\.zip: http:// is not safe"):
        unpacked("http://example.org/a.zip?key=SECRET")


def _link() -> zipfile.ZipInfo:
    link = zipfile.ZipInfo("set/link")
    link.external_attr = 0o120777 << 16
    return link


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("../outside.txt", "is outside of the destination folder"),
        ("set/../../outside.txt", "is outside"),
        ("/outside.txt", "is outside"),
        ("set\\..\\..\\outside.txt", "is outside"),
        (_link(), "is neither a file nor a folder"),
    ],
)
def test_nothing_outside_the_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str | zipfile.ZipInfo, message: str
) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, "content")
    with pytest.raises(DataError, match=message):
        unpacked(str(tmp_path / "a.zip"))
    assert not list(tmp_path.rglob("outside.txt"))
    assert not list((tmp_path / "cache").rglob("data/*/*/data"))


def test_bombs_and_damage_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("detection.web.archives._LEAST", 1000)
    (tmp_path / "bomb.zip").write_bytes(packed({"zeros": bytes(1_000_000)}))
    with pytest.raises(DataError, match="member 'zeros' makes it larger than"):
        unpacked(str(tmp_path / "bomb.zip"))
    monkeypatch.setattr("detection.web.downloads.MAX_MEMBERS", 3)
    (tmp_path / "many.zip").write_bytes(packed({str(number): b"" for number in range(5)}))
    with pytest.raises(DataError, match="is one of more than 3"):
        unpacked(str(tmp_path / "many.zip"))
    whole = packed({"a": os.urandom(5000), "b": os.urandom(5000)})
    (tmp_path / "cut.zip").write_bytes(whole[:-3000])
    with pytest.raises(DataError, match="not a ZIP or tar archive, or damaged"):
        unpacked(str(tmp_path / "cut.zip"))
    (tmp_path / "wrong.zip").write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    with pytest.raises(DataError, match="damaged"):
        unpacked(str(tmp_path / "wrong.zip"))
    nested = packed({"inner.zip": packed({"1.jpg": b"x"})})
    (tmp_path / "nested.zip").write_bytes(nested)
    assert list(contents(unpacked(str(tmp_path / "nested.zip")))) == ["inner.zip"]


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "zip"])
def test_archives_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    path = tmp_path / f"set.{suffix}"
    if suffix == "zip":
        path.write_bytes(packed(FILES))
    else:
        with tarfile.open(path, "w:gz" if "gz" in suffix else "w") as archive:
            for name, content in FILES.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    assert is_packed(str(path))
    folder = unpacked(str(path))
    assert contents(folder) == FILES
    assert unpacked(str(path)) == folder
    (tmp_path / "folder.zip").mkdir()
    assert not is_packed(str(tmp_path / "folder.zip"))
    with pytest.raises(DataError, match=r"absent\.zip: no such archive"):
        unpacked(str(tmp_path / "absent.zip"))


def _unpack(url: str, queue: "multiprocessing.Queue[str]") -> None:
    queue.put(unpacked(url))


def test_processes_share_the_cache(origin: Origin) -> None:
    origin.content = packed(FILES)
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=_unpack, args=(origin.url, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    folders = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(folders) == 1
    assert contents(folders.pop()) == FILES
    assert sorted(statuses(origin)) == [200, 304, 304]


def _killed(url: str, writes: int) -> None:
    """Unpacks, and dies at the given write, rename or removal of a file."""
    left = [writes]
    for name in ("rename", "replace", "open", "unlink", "fsync"):
        call = getattr(os, name)

        def counted(*args: object, _call: object = call, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return _call(*args, **options)  # type: ignore[operator]

        setattr(os, name, counted)
    unpacked(url)


@pytest.mark.parametrize("writes", range(0, 40, 3))
def test_a_kill_leaves_the_old_or_the_new_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "set.zip"
    path.write_bytes(packed(FILES))
    old = unpacked(str(path))
    path.write_bytes(packed({"new": b"content"}))
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(str(path), writes))
    process.start()
    process.join()
    origin = json.loads(next((tmp_path / "cache").rglob("archive.json")).read_text())
    assert contents(origin["folder"]) in (FILES, {"new": b"content"})
    assert origin["folder"] != old or contents(old) == FILES
    assert contents(unpacked(str(path))) == {"new": b"content"}
