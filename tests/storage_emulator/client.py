"""The tests' side of the emulator: starts it, makes buckets and faults, and says what environment leads to it."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.storage_emulator.certificates import CA_FILE

_ROOT = Path(__file__).resolve().parents[2]
_CREDENTIALS = "credentials.json"
# TensorFlow reads these once, when it is loaded: without caches, tests see what others write at once.
TENSORFLOW_ENVIRONMENT = {
    "GCS_STAT_CACHE_MAX_AGE": "0",
    "GCS_MATCHING_PATHS_CACHE_MAX_AGE": "0",
    "GCS_READ_CACHE_MAX_STALENESS": "0",
    "GCS_RETRY_CONFIG_MAX_RETRIES": "2",
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "10000",
}


@dataclass(frozen=True)
class Emulator:
    """A running emulator.

    Attributes:
        port: that it listens on, on this machine.
        folder: with its certificates.
    """

    port: int
    folder: Path

    def environment(self) -> dict[str, str]:
        """Variables under which every client on this machine takes it for Google."""
        proxy, authority = f"http://127.0.0.1:{self.port}", str(self.folder / CA_FILE)
        return {
            **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
            **dict.fromkeys(("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), authority),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "emulated",
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.folder / _CREDENTIALS),
            "GOOGLE_CLOUD_PROJECT": "emulated",
            **TENSORFLOW_ENVIRONMENT,
        }

    def make_bucket(self, name: str) -> None:
        """Adds an empty bucket, or empties it."""
        self._control("bucket", name)

    def fail(self, action: str = "status", **rule: Any) -> None:
        """Makes requests fail; see `faults.Rule`."""
        self._control("fault", {"action": action, **rule})

    def clear(self) -> int:
        """Ends all faults; returns how many requests failed."""
        return sum(rule["fired"] for rule in self._control("clear", None))

    def requests(self) -> list[dict[str, Any]]:
        """The requests since the last call: method, target (see `faults.Rule.path`), status, received bytes."""
        log: list[dict[str, Any]] = self._control("log", None)
        return log

    def set_clock(self, seconds: float) -> None:
        """Makes the service's clock run ahead of this machine's."""
        self._control("clock", seconds)

    def set_page_size(self, entries: int) -> None:
        """Makes lists come in pages of so many entries at most."""
        self._control("page", entries)

    def vertex(self, command: str, value: Any = None) -> Any:
        """Orders something of the loopback Vertex AI; see `tests.vertex_service.service.VertexService.control`."""
        return self._control(f"vertex/{command}", value)

    def _control(self, command: str, value: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/_emulator/{command}", data=json.dumps(value).encode(), method="POST"
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def running_emulator(folder: Path) -> Iterator[Emulator]:
    """Yields an emulator in a process of its own, which ends with the block or with this process."""
    quietly = ("-W", "ignore::FutureWarning")  # of its libraries, about their own future
    command = [sys.executable, *quietly, "-m", "tests.storage_emulator.server", str(folder)]
    credentials = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}
    (folder / _CREDENTIALS).write_text(json.dumps(credentials))
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(_ROOT)}
    ) as process:
        try:
            assert process.stdout is not None
            yield Emulator(int(process.stdout.readline()), folder)
        finally:
            process.kill()
