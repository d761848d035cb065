"""Folders of Cloud Storage that one process at a time may use.

The holder writes an object that must not exist yet, and writes it again every few seconds.
An object that nobody has written for `LEASE_SECONDS` may be overtaken: conditions on its
generation let one process win, and tell the old holder.
"""

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from typing import Any

from detection.storage.gcs import objects
from detection.storage.gcs.client import AbsentError, ConflictError
from detection.storage.paths import parent
from detection.storage.processes import has_ended, in_words
from schemas.errors import CocoflowError, DataError

LEASE_SECONDS = 60.0  # without a sign of life, after which a holder counts as ended
RENEW_SECONDS = 10.0
_POLL_SECONDS = 1.0

_LOGGER = logging.getLogger("cocoflow.lock")


class HeldError(Exception):
    """Another process holds the folder.

    Attributes:
        holder: its record, see `processes`; None: nobody can tell.
    """

    def __init__(self, holder: Any) -> None:
        super().__init__()
        self.holder = holder


class Lease:
    """A held folder; a thread renews the lease until `release`."""

    def __init__(self, stored: objects.Stored, content: bytes) -> None:
        self._stored = stored
        self._content = content
        self._process = os.getpid()
        self._renewed = time.monotonic()
        self._lost = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="storage-lease", daemon=True)
        self._thread.start()

    def require_held(self) -> None:
        """Checks that no other process can have taken the folder over; to be called before results are published.

        Raises:
            CocoflowError: another process did.
            DataError: the service cannot be asked.
        """
        if not self._lost and time.monotonic() - self._renewed > LEASE_SECONDS / 2:
            self._renew()
        if self._lost:
            raise CocoflowError(
                f"{parent(self._stored.path)}: another process has taken this folder over, as this one gave no sign "
                f"of life for {LEASE_SECONDS:g} s or its lock was removed. Nothing more is written there. "
                "See that one process at a time uses the folder, and repeat the command."
            )

    def release(self) -> None:
        """Lets others use the folder; a lease that was lost stays with its new holder."""
        self._stop.set()
        if os.getpid() != self._process:  # a forked child has neither the thread nor the folder
            return
        with self._lock, contextlib.suppress(DataError):
            objects.delete(self._stored.path, generation=self._stored.generation)

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with contextlib.suppress(DataError):  # it holds as long as nobody else takes it
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            if self._lost or self._stop.is_set():
                return
            begun = time.monotonic()
            try:
                self._stored = objects.write(self._stored.path, self._content, generation=self._stored.generation)
                self._renewed = begun
            except ConflictError:
                self._lost = True
                _LOGGER.error("%s: another process has taken this lock over", self._stored.path)


def acquire(path: str, holder: dict[str, Any], now: float) -> Lease:
    """Takes a lease, or tells who has it.

    A holder that ended without releasing it, on another machine, cannot be told from a busy one
    at once: this waits for its next sign of life, or for the end of its lease.

    Args:
        path: of the lease's object.
        holder: record of this process.
        now: the service's clock, seconds since 1970.

    Raises:
        HeldError: another process has it.
        DataError: the folder cannot be written.
    """
    content = json.dumps(holder | {"token": uuid.uuid4().hex}).encode()
    start, first = time.monotonic(), None
    while True:
        current = objects.find(path)
        stored = None
        if current is None:
            stored = objects.claim(path, content)
        else:
            record = _read(current)
            if first is not None and current.generation != first.generation:
                raise HeldError(record)
            silent = now - current.updated + time.monotonic() - start
            if silent > LEASE_SECONDS or has_ended(record):
                stored = objects.claim(path, content, generation=current.generation)
            elif first is None:
                first = current
                _LOGGER.warning(
                    "%s: in use by %s; waiting up to %.0f s for a sign of life",
                    parent(path),
                    words_of(record),
                    LEASE_SECONDS - silent,
                )
        if stored is not None:
            return Lease(stored, content)
        time.sleep(_POLL_SECONDS if first is not None else 0.0)


def words_of(record: Any) -> str:
    """Returns who holds a lease, in words."""
    try:
        return in_words(record)
    except (TypeError, KeyError, ValueError):
        return "another process"


def _read(stored: objects.Stored) -> Any:
    try:
        return json.loads(objects.read(stored.path))
    except (AbsentError, ValueError, RecursionError):
        return None
