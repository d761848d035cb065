"""The emulator's process: a proxy that answers for Google's hosts itself, with TLS under its own authority.

    python -m tests.storage_emulator.server FOLDER

writes certificates to FOLDER, prints its port, and ends when its standard input does.
Plain requests to the port are answered as well, so that STORAGE_EMULATOR_HOST works.
Those below `/_emulator/` make buckets and faults, and tell what was requested.
"""

import contextlib
import functools
import json
import socket
import ssl
import struct
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.storage_emulator.api import Answer, Api, Request, name_in, query_of
from tests.storage_emulator.certificates import SERVER_FILE, write_certificates
from tests.storage_emulator.faults import Faults, Rule, kill
from tests.storage_emulator.store import Store

CONTROL = "/_emulator/"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Server"
    _secure = False

    def do_CONNECT(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self._secure, self.close_connection = True, False

    def _serve(self) -> None:
        body = self._body()
        url = urllib.parse.urlsplit(self.path)
        if url.path.startswith(CONTROL):
            return self._send(self.server.control(url.path.removeprefix(CONTROL), body))
        if self._secure and "-aiplatform." in self.headers["Host"]:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, url.path, query_of(url.query), headers, body, "")
            answer = self.server.vertex.answer(request)
            return self._send(answer) if answer.status else self._drop()
        target = urllib.parse.unquote(self.path) + name_in(self.path, body)
        rule = self.server.faults.firing(self.command, target)
        origin = f"{'https' if self._secure else 'http'}://{self.headers['Host']}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = None
        if rule is None or rule.after:
            request = Request(self.command, url.path, query_of(url.query), headers, body, origin)
            answer = self.server.api.answer(request)
        status = answer.status if rule is None and answer else (rule.status if rule and rule.action == "status" else 0)
        self.server.faults.log({"method": self.command, "target": target, "status": status, "received": len(body)})
        if rule is not None:
            return self._fail(rule)
        assert answer is not None
        return self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _fail(self, rule: Rule) -> None:
        if rule.action == "status":
            message = {"error": {"code": rule.status, "message": "A fault of the emulator.", "errors": []}}
            return self._send(Answer(rule.status, json.dumps(message).encode()))
        if rule.action == "kill":
            kill(rule.process)
        return self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        # Without lingering, the client sees a reset in place of an end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _body(self) -> bytes:
        # To a proxy, urllib3 sends the body only after the headers are acknowledged, which Linux puts off for 40 ms.
        if hasattr(socket, "TCP_QUICKACK"):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        # TensorFlow sends "identity", and a length beside its chunks.
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            content = bytearray()
            while size := int(self.rfile.readline().split(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return bytes(content)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def handle(self) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, ValueError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the server's name)
        pass


class Server(ThreadingHTTPServer):
    """All connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        write_certificates(folder)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(folder / SERVER_FILE)
        self.faults = Faults()
        self.store = Store()
        self.api = Api(self.store)

    @functools.cached_property
    def vertex(self) -> Any:
        """The loopback Vertex AI, whose messages take a second to import."""
        from tests.vertex_service.service import VertexService

        return VertexService(self.store)

    def control(self, command: str, body: bytes) -> Answer:
        """Carries a test's order out."""
        value = json.loads(body or b"null")
        result: Any = None
        if command.startswith("vertex/"):
            result = self.vertex.control(command.removeprefix("vertex/"), value)
        elif command == "bucket":
            self.store.make_bucket(value)
        elif command == "fault":
            self.faults.add(value)
        elif command == "clear":
            result = self.faults.clear()
        elif command == "log":
            result = self.faults.take_log()
        elif command == "clock":
            self.store.clock_ahead = value
        elif command == "page":
            self.store.page_size = value
        else:
            return Answer(404)
        return Answer(200, json.dumps(result).encode(), {"Content-Type": "application/json"})


def main() -> None:
    """Serves until standard input ends."""
    server = Server(Path(sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
