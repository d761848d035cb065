"""Repairs a run folder before a run: cleans up after killed runs, and prevents the reuse of damaged outputs.

TFX reuses an execution if its output artifacts are LIVE and their folders exist.  Here the
files of every output are compared with their records; a damaged artifact is marked DELETED,
so that TFX produces it again, and no resolver selects it as baseline, base model or span.
Only the process that holds the run folder calls this: every unfinished execution of its pipelines is dead.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.history.read import REMOVED_PROPERTY
from detection.storage import files
from detection.storage.paths import is_remote, join, name_of, parent, relative
from detection.storage.temporary import remove_leftovers
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.artifact_files import FileRecords, pushed_path
from pipelines.runs.metadata import RunStore, node_name, open_run_store, producer_of
from schemas.errors import DataError

_LISTED = 10  # outputs named in the log

_LOGGER = logging.getLogger("cocoflow.run")


def repair(layout: RunLayout, database: MetadataDatabase, nodes: Sequence[str]) -> None:
    """Prepares a run folder for the next run, and logs the repairs.

    Args:
        layout: layout of a folder that this process holds.
        database: metadata database, perhaps with runs of other folders.
        nodes: ids of the nodes that will run.

    Raises:
        DataError: the folder cannot be written.
    """
    if database.file is not None and not database.file.exists() and not files.is_dir(layout.artifacts):
        return
    store = open_run_store(database)
    closed = close_dead_executions(store)
    if closed:
        _LOGGER.info("an earlier run was interrupted in %s", ", ".join(dict.fromkeys(closed)))
    removed = remove_dead_folders(store, layout.artifacts)
    if removed:
        _LOGGER.info("removed folders of killed or failed runs: %d", len(removed))
    aside = set_unregistered_aside(store, layout.artifacts, nodes, layout.unregistered)
    if aside is not None:
        listing = name_of(layout.metadata) if database.file is not None else database.place
        _LOGGER.warning(
            "%s: set aside, as %s does not list these outputs. Remove the folder to free space.", aside, listing
        )
    forget_damaged_outputs(store, FileRecords(layout.file_records))


def record_outputs(layout: RunLayout, database: MetadataDatabase) -> None:
    """Records the files of a run's outputs, for the next run's `repair`.

    Raises:
        DataError: the records cannot be written.
    """
    forget_damaged_outputs(open_run_store(database), FileRecords(layout.file_records))


def forget_damaged_outputs(store: RunStore, records: FileRecords) -> list[int]:
    """Marks damaged artifacts DELETED and records the others; returns the ids of the damaged.

    Raises:
        DataError: the records cannot be written.
    """
    artifacts = store.artifacts()
    live = [artifact for artifact in artifacts if artifact.state == mlmd.Artifact.LIVE]
    checked = [(artifact, records.check(artifact)) for artifact in live]
    damaged = {artifact.id: damage for artifact, damage in checked if damage is not None}
    gone = [artifact for artifact in live if artifact.id in damaged]
    _tell(store, gone, damaged, removed=_removed_versions(artifacts))
    for artifact in gone:
        artifact.state = mlmd.Artifact.DELETED
    store.store.put_artifacts(gone)
    for artifact in gone:
        records.forget(artifact)
    return [artifact.id for artifact in gone]


def _tell(
    store: RunStore, gone: Iterable[mlmd.Artifact], damaged: Mapping[int, str], *, removed: Collection[str]
) -> None:
    """Logs the damaged outputs, and apart from them the pushed versions that their pusher removed."""
    unexpected = 0
    for artifact in gone:
        if pushed_path(artifact) in removed:
            _LOGGER.info(
                "%s: %s was removed by push.keep_versions, so its push is not reused",
                producer_of(store.store, artifact.id),
                pushed_path(artifact),
            )
            continue
        unexpected += 1
        if unexpected <= _LISTED:
            _LOGGER.warning(
                "%s: %s, so this result is not reused", producer_of(store.store, artifact.id), damaged[artifact.id]
            )
    if unexpected > _LISTED:
        _LOGGER.warning("... and %d more results that are not reused", unexpected - _LISTED)


def _removed_versions(artifacts: Iterable[mlmd.Artifact]) -> set[str]:
    """Returns the paths of the versions that the pushes of these artifacts removed."""
    told = (one.custom_properties[REMOVED_PROPERTY] for one in artifacts if REMOVED_PROPERTY in one.custom_properties)
    return {path for value in told for path in json.loads(value.string_value)}


_UNFINISHED = (mlmd.Execution.NEW, mlmd.Execution.RUNNING)
_FAILED = (*_UNFINISHED, mlmd.Execution.FAILED, mlmd.Execution.CANCELED)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# TFX's folders in a node's folder: .system/executor_execution/<execution id>/, .system/stateful_working_dir/<uuid>/.
_SYSTEM = ".system"
_EXECUTOR_EXECUTION = "executor_execution"
_WORKING = "stateful_working_dir"


def close_dead_executions(store: RunStore) -> list[str]:
    """Marks unfinished executions as failed; returns their nodes."""
    dead = [execution for execution in store.executions() if execution.last_known_state in _UNFINISHED]
    for execution in dead:
        execution.last_known_state = mlmd.Execution.FAILED
    store.store.put_executions(dead)
    return [node_name(store.store, execution.id) for execution in dead]


def remove_dead_folders(store: RunStore, artifacts: str) -> list[str]:
    """Removes leftovers of failed executions: unregistered outputs, working folders of TFX and Beam.

    Removes only folders that TFX named after such an execution, and our temporary folders
    whose process is dead.

    Args:
        store: metadata without unfinished executions.
        artifacts: pipeline root.

    Returns:
        The removed folders.
    """
    registered = {artifact.uri for artifact in store.artifacts()}
    failed = [execution for execution in store.executions() if execution.last_known_state in _FAILED]
    removed = []
    for execution in failed:
        node = node_name(store.store, execution.id)
        if not node:
            continue
        keys = _output_keys(join(artifacts, node))
        outputs = [join(key, str(execution.id)) for key in keys]
        system = join(artifacts, node, _SYSTEM)
        own = [
            *(path for path in outputs if path not in registered),
            join(system, _EXECUTOR_EXECUTION, str(execution.id)),
        ]
        removed += _remove(own)
        # TFX names these randomly, and keeps none of a successful execution.
        working = join(system, _WORKING)
        removed += _remove(join(working, name) for name in files.list_folders(working) if _UUID.fullmatch(name))
        for key in keys:
            if not is_remote(key):
                removed += map(str, remove_leftovers(key, str(execution.id)))
    return removed


def set_unregistered_aside(store: RunStore, artifacts: str, nodes: Sequence[str], aside: str) -> str | None:
    """Moves outputs that the metadata do not list, in folders that future executions will use.

    They exist after the metadata database was removed or replaced by an older one.  An
    execution would mix its files with theirs.

    Args:
        store: metadata.
        artifacts: pipeline root.
        nodes: ids of the pipeline's nodes.
        aside: destination; receives a folder named after the time.

    Returns:
        The new folder; None: nothing to move.
    """
    last = store.last_execution()
    unknown = [
        join(key, name)
        for node in nodes
        for key in _output_keys(join(artifacts, node))
        for name in files.list_folders(key)
        if name.isdecimal() and int(name) > last
    ]
    if not unknown:
        return None
    destination = join(aside, datetime.now(UTC).strftime("%Y%m%d-%H%M%S.%f"))
    for path in unknown:
        _move(path, join(destination, relative(path, artifacts)))
    return destination


def _move(folder: str, target: str) -> None:
    if not is_remote(folder):
        files.make_folder(parent(target))
        os.rename(folder, target)
        return
    for name in files.walk_files(folder):
        files.copy_file(join(folder, name), join(target, name))
    files.remove_folder(folder)


def _output_keys(node: str) -> list[str]:
    return [join(node, name) for name in files.list_folders(node) if name != _SYSTEM]


def _remove(folders: Iterable[str]) -> list[str]:
    existing = [folder for folder in folders if files.is_dir(folder) and not os.path.islink(folder)]
    for folder in existing:
        with contextlib.suppress(DataError):  # the next run tries again
            files.remove_folder(folder)
    return existing
