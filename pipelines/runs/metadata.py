"""A run's ML Metadata database: opens and checks it, and explains its failures."""

import contextlib
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from schemas.errors import CocoflowError, DataError, causes

_LOCK_SECONDS = 2.0  # ML Metadata would wait silently for more than a minute
# In ML Metadata's errors, of SQLite and of servers.
_FAILED_QUERY = re.compile(
    r"Error when executing query: (.+?)\s+query:|(?:SQL metadata source error|mysql_\w+ failed): ([^\n]*)", re.DOTALL
)
_PRIMARY = 0xFF  # mask of the primary codes in SQLite's extended error codes


def check_metadata(layout: RunLayout, database: MetadataDatabase) -> None:
    """Checks that a run can use the metadata database, which may not exist yet.

    Args:
        layout: of the run.
        database: database that the run works on.

    Raises:
        DataError: the database is damaged, of another version or read-only, or no database.
        CocoflowError: another process has locked it, or its server cannot be reached.
        ConfigError: see `MetadataDatabase.connection`.
    """
    if database.file is None:
        database.open()
    else:
        _check_file(layout, database.file)


def _check_file(layout: RunLayout, database: Path) -> None:
    if os.path.lexists(database) and not database.is_file():
        raise DataError(f"{layout.metadata}: not a file, but the run's metadata database belongs there. Move it away.")
    if not database.exists() or not database.stat().st_size:
        return
    try:
        _check_content(database)
    except sqlite3.Error as error:
        raise _explained(error, layout, database) from error
    _check_version(layout, database)


@contextlib.contextmanager
def metadata_failures_explained(layout: RunLayout, database: MetadataDatabase) -> Iterator[None]:
    """Replaces errors of reading and writing the database in the block by one with advice.

    Raises:
        CocoflowError: the database could not be read or written.
    """
    try:
        yield
    except Exception as error:
        for cause in causes(error):
            failed = _FAILED_QUERY.search(str(cause))
            if failed:
                reason = failed[1] or failed[2] or "the connection is lost"
                remedy = "the disk has free space and the file is writable"
                if database.file is None:
                    remedy = "the server runs and its disk has free space"
                raise CocoflowError(
                    f"{layout.metadata if database.file is not None else database.place}: the run's metadata cannot "
                    f"be read or written: {reason}. Make sure that {remedy}, then start the run again: it reuses the "
                    f"finished components, and training resumes from its checkpoints below {layout.training}."
                ) from error
        raise


def check_readable(layout: RunLayout, database: Path) -> None:
    """Checks that no process has locked a SQLite database: ML Metadata would wait 40 s for it, without a message.

    Raises:
        DataError: the database is damaged.
        CocoflowError: another process has locked it.
    """
    try:
        with _connection(database, "ro") as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        raise _explained(error, layout, database) from error


def _connection(path: Path, mode: Literal["ro", "rw"]) -> "contextlib.closing[sqlite3.Connection]":
    uri = f"file:{urllib.parse.quote(str(path))}?mode={mode}"
    return contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS, isolation_level=None))


def _check_content(path: Path) -> None:
    with _connection(path, "rw") as database:
        # Also checks that it is writable, and rolls back what a killed run left open.
        database.execute("BEGIN IMMEDIATE")
        (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
        database.execute("ROLLBACK")
    if answer != "ok":
        raise sqlite3.DatabaseError(answer.splitlines()[-1])


def _explained(error: sqlite3.Error, layout: RunLayout, database: Path) -> CocoflowError:
    path = layout.metadata
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CocoflowError(
            f"{path}: {_lock_holder(database)} has locked the run's metadata database. "
            "Wait until it ends, or end it, and start the run again."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _unusable(layout, f"is damaged ({error})", remedy="Restore a copy of it")
    return DataError(
        f"{path}: the run's metadata database cannot be used: {error}. Make sure that it is readable and writable."
    )


def _check_version(layout: RunLayout, database: Path) -> None:
    """Lets ML Metadata open the database, which checks its version."""
    try:
        MetadataDatabase.of_file(database).open()
    except RuntimeError as error:
        sentence = str(error).partition(". ")[0]
        how = f"does not fit the installed ML Metadata ({sentence})"
        raise _unusable(layout, how, remedy="Run with the installation that wrote it") from error


def _unusable(layout: RunLayout, how: str, *, remedy: str) -> DataError:
    return DataError(
        f"{layout.metadata}: the run's metadata database {how}. {remedy}, or remove it: then the run starts with an "
        f"empty history and moves the results of earlier runs to {layout.unregistered}. Pushed models stay, and an "
        f"interrupted training resumes from its checkpoints below {layout.training}."
    )


def _lock_holder(path: Path) -> str:
    """Names the process that holds SQLite's lock, if Linux tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "POSIX" in fields and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                command = Path("/proc", fields[4], "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                return f"process {fields[4]} ({command.strip()[:100]!r})"
    return "another process"


class RunStore:
    """What ML Metadata lists of the pipelines of a `run.root`; other roots may share the database.

    Args:
        store: the database's store.
        database: the database of the root.
    """

    def __init__(self, store: metadata_store.MetadataStore, database: MetadataDatabase) -> None:
        self.store = store
        self._database = database

    def executions(self) -> list[mlmd.Execution]:
        """Returns the executions, oldest first."""
        if self._database.file is not None:
            return sorted(self.store.get_executions(), key=lambda execution: execution.id)
        found = [one for context in self._pipelines() for one in self.store.get_executions_by_context(context.id)]
        return [one for _, one in sorted({execution.id: execution for execution in found}.items())]

    def artifacts(self) -> list[mlmd.Artifact]:
        """Returns the artifacts, oldest first."""
        if self._database.file is not None:
            return sorted(self.store.get_artifacts(), key=lambda artifact: artifact.id)
        found = [one for context in self._pipelines() for one in self.store.get_artifacts_by_context(context.id)]
        return [one for _, one in sorted({artifact.id: artifact for artifact in found}.items())]

    def is_empty(self) -> bool:
        """Returns whether no run came before."""
        return not self._pipelines()

    def last_execution(self) -> int:
        """Returns the highest id of an execution of the whole database; 0: there is none."""
        newest = metadata_store.ListOptions(
            limit=1, order_by=metadata_store.OrderByField.ID, is_asc=False, filter_query=None
        )
        return max((execution.id for execution in self.store.get_executions(newest)), default=0)

    def _pipelines(self) -> list[mlmd.Context]:
        contexts = self.store.get_contexts_by_type("pipeline")
        return [context for context in contexts if self._database.is_own(context.name)]


def open_run_store(database: MetadataDatabase, *, read_only: bool = False) -> RunStore:
    """Opens the store of a `run.root`, see `MetadataDatabase.open`."""
    return RunStore(database.open(read_only=read_only), database)


def node_name(store: metadata_store.MetadataStore, execution_id: int) -> str:
    """Returns the pipeline node of an execution: TFX names a node's context PIPELINE.NODE."""
    contexts = store.get_contexts_by_execution(execution_id)
    return next((context.name.rpartition(".")[2] for context in contexts if context.type == "node"), "")


def producer_of(store: metadata_store.MetadataStore, artifact_id: int) -> str:
    """Returns the node that produced an artifact; empty if unknown."""
    events = store.get_events_by_artifact_ids([artifact_id])
    makers = [event.execution_id for event in events if event.type == mlmd.Event.OUTPUT]
    return node_name(store, min(makers)) if makers else ""
