"""Fixtures of the emulator, for tests/conftest.py."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from detection.storage.gcs import client
from tests.storage_emulator.client import Emulator, running_emulator


@dataclass(frozen=True)
class Bucket:
    """A test's own bucket on the emulator.

    Attributes:
        emulator: that holds it.
        name: of the bucket.
        path: `gs://NAME`.
    """

    emulator: Emulator
    name: str

    @property
    def path(self) -> str:
        return f"gs://{self.name}"


@pytest.fixture(scope="session")
def storage_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """The emulator of this test process; started by the first test that wants it."""
    with running_emulator(tmp_path_factory.mktemp("storage-emulator")) as emulator:
        yield emulator


@pytest.fixture
def gcs(storage_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket; this process and its children find it at gs://."""
    for name, value in storage_emulator.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(client, "FIRST_DELAY", 0.01)
    client.client.cache_clear()
    bucket = Bucket(storage_emulator, f"test-{uuid.uuid4().hex[:12]}")
    storage_emulator.make_bucket(bucket.name)
    yield bucket
    storage_emulator.clear()
    storage_emulator.set_clock(0.0)
    storage_emulator.set_page_size(1000)
    storage_emulator.requests()
    client.client.cache_clear()
