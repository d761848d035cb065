"""A run's ML Metadata database: opens and checks it, and explains its failures."""

import contextlib
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from pipelines.folders import RunLayout
from schemas.errors import CocoflowError, DataError, causes
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

_LOCK_SECONDS = 2.0  # ML Metadata would wait for more than a minute, without a word
_FAILED_QUERY = re.compile(r"Error when executing query: (.+?)\s+query:", re.DOTALL)  # in ML Metadata's errors
_BRING_BACK = "Restore a copy of it"
_PRIMARY = 0xFF  # SQLite's extended error codes hold the plain ones


def check_metadata(layout: RunLayout) -> None:
    """Sees that a run can use the metadata database, which need not be there yet.

    Raises:
        DataError: it is damaged, of another version, cannot be written, or is no database at all.
        CocoflowError: another process has locked it.
    """
    path = layout.metadata
    if os.path.lexists(path) and not path.is_file():
        raise DataError(f"{path}: this is no file, but the run's metadata database belongs there. Move it away.")
    if not path.exists() or not path.stat().st_size:
        return
    try:
        _check_content(path)
    except sqlite3.Error as error:
        raise _explained(error, layout) from error
    _check_version(layout)


@contextlib.contextmanager
def metadata_failures_explained(layout: RunLayout) -> Iterator[None]:
    """Says in plain words that the database could not be read or written in the block.

    Raises:
        CocoflowError: that happened.
    """
    try:
        yield
    except Exception as error:
        for cause in causes(error):
            found = _FAILED_QUERY.search(str(cause))
            if found:
                raise CocoflowError(
                    f"{layout.metadata}: the run's metadata cannot be read or written: {found[1]}. See that the disk "
                    "has free space and the file may be written, then start the run again: what the components have "
                    f"finished is reused, and training goes on from its checkpoints below {layout.training}."
                ) from error
        raise


def _check_content(path: Path) -> None:
    uri = f"file:{urllib.parse.quote(str(path))}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None)) as database:
        # Also sees that it can be written, and undoes what a killed run has not ended.
        database.execute("BEGIN IMMEDIATE")
        (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
        database.execute("ROLLBACK")
    if answer != "ok":
        raise sqlite3.DatabaseError(answer.splitlines()[-1])


def _explained(error: sqlite3.Error, layout: RunLayout) -> CocoflowError:
    path = layout.metadata
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CocoflowError(
            f"{path}: {_lock_holder(path)} has locked the run's metadata database. "
            "Wait until it has ended, or end it, and start the run again."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _unusable(layout, f"is damaged ({error})", remedy=_BRING_BACK)
    return DataError(
        f"{path}: the run's metadata database cannot be used: {error}. See that it may be read and written."
    )


def _check_version(layout: RunLayout) -> None:
    """Has ML Metadata itself open the database."""
    from ml_metadata.metadata_store import metadata_store
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(layout.metadata)
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE
    try:
        metadata_store.MetadataStore(connection)
    except RuntimeError as error:
        sentence = str(error).partition(". ")[0]
        how = f"does not fit the installed ML Metadata ({sentence})"
        raise _unusable(layout, how, remedy="Run with the installation that wrote it") from error


def _unusable(layout: RunLayout, how: str, *, remedy: str) -> DataError:
    return DataError(
        f"{layout.metadata}: the run's metadata database {how}. {remedy}, or remove it: then the run begins with an "
        f"empty history and moves the results of earlier runs to {layout.unregistered}. What was pushed stays, and a "
        f"training that was cut off goes on from its checkpoints below {layout.training}."
    )


def _lock_holder(path: Path) -> str:
    """Who holds SQLite's lock, as far as Linux tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "POSIX" in fields and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                command = Path("/proc", fields[4], "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                return f"process {fields[4]} ({command.strip()[:100]!r})"
    return "another process"


def open_store(metadata_file: Path, *, read_only: bool = False) -> metadata_store.MetadataStore:
    """Opens the store; makes it if need be, unless it is only read."""
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(metadata_file)
    mode = mlmd.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = mode.READONLY if read_only else mode.READWRITE_OPENCREATE
    return metadata_store.MetadataStore(connection)


def node_name(store: metadata_store.MetadataStore, execution_id: int) -> str:
    """The pipeline node of an execution: TFX names a node's context PIPELINE.NODE."""
    contexts = store.get_contexts_by_execution(execution_id)
    return next((context.name.rpartition(".")[2] for context in contexts if context.type == "node"), "")


def producer_of(store: metadata_store.MetadataStore, artifact_id: int) -> str:
    """The node that made an artifact; empty if none is known."""
    events = store.get_events_by_artifact_ids([artifact_id])
    makers = [event.execution_id for event in events if event.type == mlmd.Event.OUTPUT]
    return node_name(store, min(makers)) if makers else ""
