"""A publisher's server on loopback, with archives laid out as google/automl's."""

import base64
import contextlib
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Publisher:
    """Files by path, and what was asked for.

    Attributes:
        files: content by path of the URL, such as `/efficientdet-d0.tar.gz`.
        cut: paths whose connection ends in the middle.
        damaged: paths whose content differs from its checksum.
        asked: paths of the requests, in order.
        url: beginning of all URLs.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.damaged: set[str] = set()
        self.asked: list[str] = []


@contextlib.contextmanager
def running_publisher() -> Iterator[Publisher]:
    """Serves files while the block runs; sends Cloud Storage's checksum header."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            publisher.asked.append(self.path)
            content = publisher.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("x-goog-hash", "crc32c=AAAAAA==")
            self.send_header("x-goog-hash", f"md5={base64.b64encode(hashlib.md5(content).digest()).decode()}")
            self.end_headers()
            if self.path in publisher.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.wfile.write(content[: len(content) // 2] if self.path in publisher.cut else content)

        def log_message(self, *_arguments: object) -> None:
            """Keeps quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    publisher = Publisher(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield publisher
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def archive(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A .tar.gz of files, or of members made by the test."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        for name, member in members.items():
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(member)
            tar.addfile(info, io.BytesIO(member))
    return content.getvalue()


def published_detector(name: str, checkpoint: Path) -> bytes:
    """An archive as google/automl's: a folder of the detector's name with the checkpoint's files.

    Args:
        name: name of the detector.
        checkpoint: prefix of a checkpoint.
    """
    files = {f"{name}/model{file.name.removeprefix(checkpoint.name)}": file for file in _files(checkpoint)}
    state = b'model_checkpoint_path: "model"\nall_model_checkpoint_paths: "model"\n'
    return archive({f"{name}/checkpoint": state} | {place: file.read_bytes() for place, file in files.items()})


def _files(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.parent.glob(f"{checkpoint.name}.*"))
