"""The JSON API's methods on the emulator's store: requests in, answers out, no sockets."""

import json
import re
import urllib.parse
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.storage_emulator.store import RefusedError, Store, StoredObject, crc32c


@dataclass(frozen=True)
class Request:
    """A request whose body is read.

    Attributes:
        method: of HTTP.
        path: still with percent escapes, without the query.
        query: without percent escapes.
        headers: names in lower case.
        body: decoded from chunks.
        origin: scheme and host, for the addresses of uploads.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    origin: str


@dataclass
class Answer:
    """What is sent back."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class _Upload:
    bucket: str
    name: str
    query: dict[str, str]
    properties: dict[str, Any]
    content: bytearray = field(default_factory=bytearray)
    done: StoredObject | None = None


class Api:
    """Answers requests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._uploads: dict[str, _Upload] = {}

    def answer(self, request: Request) -> Answer:
        """Carries a request out; refusals become answers."""
        try:
            return self._route(request)
        except RefusedError as error:
            if error.status == 304:
                return Answer(304)
            detail = {"message": str(error), "domain": "global", "reason": "refused"}
            return _json({"error": {"code": error.status, "message": str(error), "errors": [detail]}}, error.status)

    def _route(self, request: Request) -> Answer:  # noqa: PLR0911 (a table)
        parts = [urllib.parse.unquote(part) for part in request.path.strip("/").split("/")]
        match parts:
            case ["token"]:
                return _json({"access_token": "emulated", "expires_in": 3600, "token_type": "Bearer"})
            case ["batch", "storage", "v1"]:
                return self._batch(request)
            case ["storage", "v1", "b"] if request.method == "POST":
                name = json.loads(request.body)["name"]
                self._store.make_bucket(name)
                return _json({"kind": "storage#bucket", "name": name})
            case ["storage", "v1", "b", bucket]:
                self._store.bucket(bucket)
                return _json({"kind": "storage#bucket", "name": bucket, "id": bucket, "location": "US"})
            case ["storage", "v1", "b", bucket, "o"] if request.method == "GET":
                return _json(self._store.list(bucket, request.query))
            case ["storage", "v1", "b", bucket, "o", name]:
                return self._object(request, bucket, name)
            case ["download", "storage", "v1", "b", bucket, "o", name]:
                return self._media(request, bucket, name)
            case ["storage", "v1", "b", bucket, "o", name, "compose"]:
                return self._compose(request, bucket, name)
            case ["storage", "v1", "b", bucket, "o", name, "rewriteTo" | "copyTo" as kind, "b", other, "o", copy]:
                return self._copy(request, (bucket, name), (other, copy), rewrite=kind == "rewriteTo")
            case [*_, "upload", "storage", "v1", "b", bucket, "o"]:
                return self._upload(request, bucket)
            case [bucket, *names] if names and request.method in {"GET", "HEAD"}:
                return self._media(request, bucket, "/".join(names))
        raise RefusedError(404, f"The emulator has no {request.method} {request.path}")

    def _object(self, request: Request, bucket: str, name: str) -> Answer:
        if request.method == "GET" and request.query.get("alt") == "media":
            return self._media(request, bucket, name)
        if request.method == "GET":
            return _json(self._store.get(bucket, name, request.query).resource())
        if request.method == "DELETE":
            self._store.delete(bucket, name, request.query)
            return Answer(204)
        if request.method in {"PATCH", "PUT"}:
            stored = self._store.get(bucket, name, request.query)
            return _json(self._store.patch(stored, json.loads(request.body or b"{}")).resource())
        raise RefusedError(405, f"{request.method} is no method of objects")

    def _media(self, request: Request, bucket: str, name: str) -> Answer:
        stored = self._store.get(bucket, name, request.query)
        content, size = stored.content, len(stored.content)
        headers = {
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": f'"{stored.generation}"',
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Hash": f"crc32c={crc32c(content)}",
        }
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if wanted is None or not (wanted[1] or wanted[2]):
            return Answer(200, content, headers)
        if wanted[1]:
            start, end = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
        else:
            start, end = max(0, size - int(wanted[2])), size - 1
        if start >= size:
            return Answer(416, b"The requested range cannot be satisfied.", {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        return Answer(206, content[start : end + 1], headers)

    def _copy(self, request: Request, source: tuple[str, str], copy: tuple[str, str], *, rewrite: bool) -> Answer:
        with self._store.lock:
            rules = {key: value for key, value in request.query.items() if key.startswith("ifSource")}
            if "sourceGeneration" in request.query:
                rules["ifSourceGenerationMatch"] = request.query["sourceGeneration"]
            original = self._store.get(*source, {})
            self._store.check(original, rules, "ifSource")
            properties = original.properties | json.loads(request.body or b"{}")
            stored = self._store.put(*copy, original.content, request.query, properties)
        if not rewrite:
            return _json(stored.resource())
        size = str(len(original.content))
        return _json(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": stored.resource(),
            }
        )

    def _compose(self, request: Request, bucket: str, name: str) -> Answer:
        body = json.loads(request.body)
        with self._store.lock:
            pieces = [self._store.get(bucket, one["name"], {}).content for one in body["sourceObjects"]]
            stored = self._store.put(bucket, name, b"".join(pieces), request.query, body.get("destination", {}))
        return _json(stored.resource())

    def _upload(self, request: Request, bucket: str) -> Answer:
        kind = request.query.get("uploadType")
        if "upload_id" in request.query:
            return self._continue(request, request.query["upload_id"])
        if kind == "media":
            properties = {"contentType": request.headers.get("content-type", "application/octet-stream")}
            return _json(
                self._store.put(bucket, request.query["name"], request.body, request.query, properties).resource()
            )
        if kind == "multipart":
            (_, metadata), (_, content) = _parts(request.headers["content-type"], request.body)
            properties = json.loads(metadata or b"{}")
            name = properties.get("name") or request.query["name"]
            return _json(self._store.put(bucket, name, content, request.query, properties).resource())
        if kind == "resumable":
            return self._start(request, bucket)
        raise RefusedError(400, f"uploadType={kind} is unknown")

    def _start(self, request: Request, bucket: str) -> Answer:
        properties = json.loads(request.body or b"{}")
        name = properties.get("name") or request.query["name"]
        self._store.check(self._store.bucket(bucket).get(name), request.query)
        session = uuid.uuid4().hex
        self._uploads[session] = _Upload(bucket, name, request.query, properties)
        place = f"{request.origin}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session}"
        return Answer(200, b"", {"Location": place, "X-GUploader-UploadID": session})

    def _continue(self, request: Request, session: str) -> Answer:
        upload = self._uploads.get(session)
        if upload is None:
            raise RefusedError(404, "No such upload.")
        if request.method == "DELETE":
            del self._uploads[session]
            return Answer(499)
        if upload.done is not None:
            return _json(upload.done.resource())
        wanted = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("content-range", ""))
        total: int | None = None
        if wanted is None:
            upload.content[:] = request.body
            total = len(request.body)
        else:
            total = None if wanted[3] == "*" else int(wanted[3])
            if wanted[1] is not None:
                start = int(wanted[1])
                if start > len(upload.content):
                    raise RefusedError(503, "Bytes before this range are missing.")
                upload.content[start:] = request.body
        if total is None or len(upload.content) < total:
            kept = {"Range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
            return Answer(308, b"", kept)
        upload.done = self._store.put(
            upload.bucket, upload.name, bytes(upload.content), upload.query, upload.properties
        )
        return _json(upload.done.resource())

    def _batch(self, request: Request) -> Answer:
        boundary, answers = uuid.uuid4().hex, []
        for outer, payload in _parts(request.headers["content-type"], request.body):
            head, _, body = payload.replace(b"\r\n", b"\n").partition(b"\n\n")
            lines = head.decode().split("\n")
            method, target = lines[0].split(" ")[:2]
            url = urllib.parse.urlsplit(target)
            inner = self.answer(
                Request(method, url.path, query_of(url.query), _headers(lines[1:]), body.strip(), request.origin)
            )
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\n"
                f"Content-ID: <response-{outer.get('content-id', '').strip('<>')}>\r\n\r\n"
                f"HTTP/1.1 {inner.status} -\r\nContent-Type: application/json; charset=UTF-8\r\n"
                f"Content-Length: {len(inner.body)}\r\n\r\n{inner.body.decode()}\r\n"
            )
        text = "".join(answers) + f"--{boundary}--\r\n"
        return Answer(200, text.encode(), {"Content-Type": f"multipart/mixed; boundary={boundary}"})


def query_of(text: str) -> dict[str, str]:
    """A query without percent escapes."""
    return dict(urllib.parse.parse_qsl(text, keep_blank_values=True))


def name_in(target: str, body: bytes) -> str:
    """The object's name in a body, as further part of the request's query; "": the query has it."""
    if "uploadType=multipart" not in target:
        return ""
    name = re.search(rb'"name": *("(?:[^"\\\\]|\\\\.)*")', body[:4096])
    return f"&name={json.loads(name[1])}" if name else ""


def _parts(content_type: str, body: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Headers and content of the parts of a multipart body, whose lines may end in either way."""
    wanted = re.search(r'boundary="?([^";]+)', content_type)
    if wanted is None:
        raise RefusedError(400, "This is no multipart body.")
    end = b"\r\n" if b"\r\n--" + wanted[1].encode() in body else b"\n"
    parts = []
    for piece in (end + body).split(end + b"--" + wanted[1].encode())[1:]:
        if piece.startswith(b"--"):
            break
        head, _, content = piece.removeprefix(end).partition(end + end)
        parts.append((_headers(head.decode().split(end.decode())), content))
    return parts


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})
