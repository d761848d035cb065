"""Folders of Cloud Storage that one process at a time may use.

The holder writes an object that must not exist yet, and writes it again every few seconds.
Another process may take over an object that nobody has written for `LEASE_SECONDS`: conditions on its
generation let one process win, and show the old holder that it lost.
"""

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from detection.storage.file_system import LOCK_FILE, FileState, FolderLock, in_use
from detection.storage.gcs import objects
from detection.storage.gcs.client import AbsentError, ConflictError
from detection.storage.gcs.folders import probe
from detection.storage.paths import join, parent
from detection.storage.processes import decode_record, encode_record, has_ended, in_words
from schemas.errors import CocoflowError, DataError

LEASE_SECONDS = 60.0  # without a sign of life, after which a holder counts as ended
RENEW_SECONDS = 10.0
_POLL_SECONDS = 1.0

_LOGGER = logging.getLogger("cocoflow.lock")


@contextlib.contextmanager
def hold_folder(path: str, *, instead: str) -> Iterator[FolderLock]:
    """Holds a folder; see `lock.lock_folder`."""
    lease = _acquire(path, instead)
    try:
        yield lease
    finally:
        lease.release()


class Lease(FolderLock):
    """A held folder; a thread renews the lease until `release`."""

    def __init__(self, stored: FileState, content: bytes) -> None:
        super().__init__(held=True)
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
        """Checks that no other process can have taken the folder over; see `FolderLock`."""
        if not self._lost and time.monotonic() - self._renewed > LEASE_SECONDS / 2:
            self._renew()
        if self._lost:
            raise CocoflowError(
                f"{parent(self._stored.path)}: lost the lock: it was not renewed for {LEASE_SECONDS:g} s, or was "
                "removed, and another process has it. Nothing more is written there. Let one process at a time use "
                "the folder, then rerun."
            )

    def release(self) -> None:
        """Releases the lease unless another process has taken it."""
        self._stop.set()
        if os.getpid() != self._process:  # a forked child has neither the thread nor the folder
            return
        with self._lock, contextlib.suppress(DataError):
            objects.delete(self._stored.path, generation=self._stored.version)

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
                self._stored = objects.write(self._stored.path, self._content, generation=self._stored.version)
                self._renewed = begun
            except ConflictError:
                self._lost = True
                _LOGGER.error("%s: another process has taken over this lock", self._stored.path)


def _acquire(folder: str, instead: str) -> Lease:
    """Takes the lease of a folder.

    A holder on another machine may be busy, or have ended without releasing the lease: this waits for
    its next renewal, or for the end of its lease.
    """
    now = probe(folder)  # by the service's clock
    path = join(folder, LOCK_FILE)
    content = encode_record(token=uuid.uuid4().hex)
    start, first = time.monotonic(), None
    while True:
        current = objects.find(path)
        if current is not None:
            record = _read(current)
            if first is not None and current.version != first.version:
                raise in_use(folder, in_words(record), instead)
            left = LEASE_SECONDS - (now - current.modified + time.monotonic() - start)
            if left >= 0 and not has_ended(record):
                if first is None:
                    first, holder = current, in_words(record)
                    _LOGGER.warning("%s: in use by %s; waiting up to %.0f s for a sign of life", folder, holder, left)
                time.sleep(_POLL_SECONDS)
                continue
        stored = objects.claim(path, content, generation=0 if current is None else current.version)
        if stored is not None:
            return Lease(stored, content)


def _read(stored: FileState) -> dict[str, Any]:
    with contextlib.suppress(AbsentError):
        return decode_record(objects.read(stored.path))
    return {}
