"""What the emulator keeps: buckets of objects with generations, in memory."""

import base64
import hashlib
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import google_crc32c


class RefusedError(Exception):
    """A request that the service answers with a status other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class StoredObject:
    """One object's newest generation."""

    bucket: str
    name: str
    content: bytes
    generation: int
    created: float
    properties: dict[str, Any] = field(default_factory=dict)
    metageneration: int = 1
    updated: float = 0.0

    def resource(self) -> dict[str, Any]:
        """The object's JSON."""
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.content)),
            "crc32c": crc32c(self.content),
            "md5Hash": base64.b64encode(hashlib.md5(self.content, usedforsecurity=False).digest()).decode(),
            "timeCreated": _text(self.created),
            "updated": _text(self.updated or self.created),
            "storageClass": "STANDARD",
            "contentType": "application/octet-stream",
            "etag": f"{self.generation}/{self.metageneration}",
            **self.properties,
        }


class Store:
    """All buckets."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock_ahead = 0.0  # seconds, for tests of leases
        self.page_size = 1000  # of lists
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._generation = 0

    def make_bucket(self, name: str) -> None:
        """Adds an empty bucket, or empties it."""
        with self.lock:
            self._buckets[name] = {}

    def bucket(self, name: str) -> dict[str, StoredObject]:
        """The objects of a bucket by name."""
        try:
            return self._buckets[name]
        except KeyError:
            raise RefusedError(404, "The specified bucket does not exist.") from None

    def get(self, bucket: str, name: str, query: dict[str, str]) -> StoredObject:
        """An object that fulfils the query's preconditions."""
        with self.lock:
            stored = self.bucket(bucket).get(name)
            if stored is None or query.get("generation", str(stored.generation)) != str(stored.generation):
                raise RefusedError(404, f"No such object: {bucket}/{name}")
            self.check(stored, query)
            return stored

    def put(
        self, bucket: str, name: str, content: bytes, query: dict[str, str], properties: dict[str, Any]
    ) -> StoredObject:
        """Writes an object if the query's preconditions hold."""
        with self.lock:
            objects = self.bucket(bucket)
            self.check(objects.get(name), query)
            claimed = {key: value for key, value in properties.items() if key in {"crc32c", "md5Hash"}}
            kept = {key: value for key, value in properties.items() if key in {"contentType", "metadata"}}
            now = time.time() + self.clock_ahead
            self._generation = max(self._generation + 1, int(now * 1e6))
            stored = StoredObject(bucket, name, content, self._generation, now, kept)
            for key, value in claimed.items():
                if stored.resource()[key] != value:
                    raise RefusedError(400, f"Provided {key} does not match the content.")
            objects[name] = stored
            return stored

    def patch(self, stored: StoredObject, properties: dict[str, Any]) -> StoredObject:
        """Changes an object's metadata."""
        with self.lock:
            stored.properties |= {key: value for key, value in properties.items() if key in {"contentType", "metadata"}}
            stored.metageneration += 1
            stored.updated = time.time() + self.clock_ahead
            return stored

    def delete(self, bucket: str, name: str, query: dict[str, str]) -> None:
        """Removes an object if the query's preconditions hold."""
        with self.lock:
            self.get(bucket, name, query)
            del self.bucket(bucket)[name]

    def check(self, stored: StoredObject | None, query: dict[str, str], prefix: str = "if") -> None:
        """Refuses a request whose preconditions do not hold.

        Args:
            stored: the object that they are about; None: there is none.
            query: of the request.
            prefix: of the conditions' names: `ifSource` for those of a copy's source.
        """
        generation = stored.generation if stored else 0
        metageneration = stored.metageneration if stored else 0
        for kind, value in (("Generation", generation), ("Metageneration", metageneration)):
            wanted, unwanted = query.get(f"{prefix}{kind}Match"), query.get(f"{prefix}{kind}NotMatch")
            if wanted is not None and int(wanted) != value:
                raise RefusedError(412, "At least one of the pre-conditions you specified did not hold.")
            if unwanted is not None and int(unwanted) == value:
                raise RefusedError(304, "Not modified")

    def list(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        """A page of a bucket's objects, and prefixes up to the delimiter, in one order of names."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        size = min(int(query.get("maxResults", "1000")), self.page_size)
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        start, end = query.get("startOffset", ""), query.get("endOffset")
        with self.lock:
            entries: dict[str, StoredObject | None] = {}
            for name, stored in sorted(self.bucket(bucket).items()):
                if not name.startswith(prefix) or name < start or (end and name >= end):
                    continue
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    entries[name[: cut + len(delimiter)]] = None
                else:
                    entries[name] = stored
            names = [name for name in sorted(entries) if name > after]
            page = names[:size]
            answer: dict[str, Any] = {"kind": "storage#objects"}
            items = [entry.resource() for name in page if (entry := entries[name]) is not None]
            prefixes = [name for name in page if entries[name] is None]
            if items:
                answer["items"] = items
            if prefixes:
                answer["prefixes"] = prefixes
            if len(names) > size:
                answer["nextPageToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
            return answer


def crc32c(content: bytes) -> str:
    """Checksum as the API writes it."""
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
