"""Fixture of the loopback Vertex AI."""

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from tests.storage_emulator.fixture import Bucket

PROJECT = "my-project"
PARENT = f"projects/{PROJECT}/locations/us-central1"  # in requests
NAMED = "projects/12345/locations/us-central1"  # in answers


@dataclass(frozen=True)
class LoopbackVertex:
    """The service, empty at the start of a test, beside a bucket."""

    bucket: Bucket

    def requests(self, method: str = "", path: str = "") -> list[dict[str, Any]]:
        """The requests since the last call that it understood: method, path, query, body; only those that begin so."""
        log: list[dict[str, Any]] = self.bucket.emulator.vertex("log")
        return [one for one in log if one["method"].startswith(method) and path in one["path"]]

    def fail(self, status: int, body: dict[str, Any], *, method: str = "POST", path: str = "", **rule: Any) -> None:
        """Makes the next request of this kind fail; see `VertexService.control`.  Status 0 breaks the connection."""
        self.bucket.emulator.vertex("fail", {"method": method, "path": path, "status": status, "body": body, **rule})

    def refuse(self, status: int, message: str, *, info: dict[str, Any] | None = None, **rule: Any) -> None:
        """Makes the next request fail with an error of the service's form.

        Args:
            status: of HTTP.
            message: of the error.
            info: its ErrorInfo: reason and metadata.
            rule: see `fail`.
        """
        names = {403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        error: dict[str, Any] = {"code": status, "message": message, "status": names.get(status, "UNKNOWN")}
        if info is not None:
            error["details"] = [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com", **info}
            ]
        self.fail(status, {"error": error}, **rule)

    def change(self, name: str, **fields: Any) -> None:
        """Changes a resource."""
        self.bucket.emulator.vertex("change", {"name": name, "fields": fields})

    def kept(self, part: str) -> dict[str, dict[str, Any]]:
        """The resources whose name has this part."""
        found: dict[str, dict[str, Any]] = self.bucket.emulator.vertex("kept")
        return {name: one for name, one in found.items() if part in name}


@pytest.fixture
def vertex(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> LoopbackVertex:
    """An empty Vertex AI; this process and its children find it at Google's addresses, over REST alone."""
    service = LoopbackVertex(gcs)
    gcs.emulator.vertex("reset")
    return service


@pytest.fixture
def vertex_over_rest(vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch) -> LoopbackVertex:
    """An empty Vertex AI for the clients that prefer gRPC, with the same messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from google.cloud import aiplatform_v1
    for client in (aiplatform_v1.ModelServiceClient, aiplatform_v1.EndpointServiceClient):
        transports = type(client)._transport_registry
        monkeypatch.setattr(type(client), "_transport_registry", {"rest": transports["rest"]})
    return vertex
