"""Repairs a run folder before a run: cleans up after killed runs, and prevents the reuse of damaged outputs.

TFX reuses an execution if its output artifacts are LIVE and their folders exist.  Here every
output is compared with its files as they were recorded; an artifact that is not whole
is marked DELETED, so that TFX makes it again, and no resolver takes it for a baseline, a
model to start from or a span.
"""

import logging
from collections.abc import Sequence
from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd
from pipelines.runs.artifact_files import FileRecords
from pipelines.folders import RunLayout
from pipelines.runs.metadata import open_store, producer_of
import re
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from detection.storage.temporary_folder import remove_leftovers
from pipelines.runs.metadata import node_name

_LISTED = 10  # outputs that are named one by one

_LOGGER = logging.getLogger("cocoflow.run")


def repair(layout: RunLayout, nodes: Sequence[str]) -> None:
    """Makes a run folder ready for the next run; tells what it finds.

    Args:
        layout: of a folder that this process holds.
        nodes: ids of the nodes that will run.

    Raises:
        DataError: the folder cannot be written.
    """
    if not layout.metadata.exists() and not layout.artifacts.exists():
        return
    store = open_store(layout.metadata)
    closed = close_dead_executions(store)
    if closed:
        _LOGGER.info("an earlier run ended in the middle of %s", ", ".join(dict.fromkeys(closed)))
    removed = remove_dead_folders(store, layout.artifacts)
    if removed:
        _LOGGER.info("folders that killed or failed runs left, now removed: %d", len(removed))
    aside = set_unregistered_aside(store, layout.artifacts, nodes, layout.unregistered)
    if aside is not None:
        _LOGGER.warning("%s: not in %s, so set aside. Remove the folder to free space.", aside, layout.metadata.name)
    forget_damaged_outputs(store, FileRecords(layout.file_records))


def record_outputs(layout: RunLayout) -> None:
    """Records the files of what a run made, for the next run's `repair`.

    Raises:
        DataError: the records cannot be written.
    """
    forget_damaged_outputs(open_store(layout.metadata), FileRecords(layout.file_records))


def forget_damaged_outputs(store: metadata_store.MetadataStore, records: FileRecords) -> list[int]:
    """Marks every artifact DELETED that is not whole, and records the others; returns the ids of the marked ones.

    Raises:
        DataError: the records cannot be written.
    """
    damaged: list[mlmd.Artifact] = []
    for artifact in store.get_artifacts():
        if artifact.state != mlmd.Artifact.LIVE:
            continue
        problem = records.check(artifact)
        if problem is None:
            continue
        if len(damaged) < _LISTED:
            _LOGGER.warning("%s: %s, so this result is not reused", producer_of(store, artifact.id), problem)
        artifact.state = mlmd.Artifact.DELETED
        damaged.append(artifact)
    if len(damaged) > _LISTED:
        _LOGGER.warning("... and %d more results that are not reused", len(damaged) - _LISTED)
    store.put_artifacts(damaged)
    for artifact in damaged:
        records.forget(artifact)
    return [artifact.id for artifact in damaged]


_UNFINISHED = (mlmd.Execution.NEW, mlmd.Execution.RUNNING)
_FAILED = (*_UNFINISHED, mlmd.Execution.FAILED, mlmd.Execution.CANCELED)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# TFX's folders in a node's folder: .system/executor_execution/<execution id>/, .system/stateful_working_dir/<uuid>/.
_SYSTEM = ".system"
_EXECUTOR_EXECUTION = "executor_execution"
_WORKING = "stateful_working_dir"


def close_dead_executions(store: metadata_store.MetadataStore) -> list[str]:
    """Marks every unfinished execution as failed; returns their nodes."""
    dead = [execution for execution in store.get_executions() if execution.last_known_state in _UNFINISHED]
    for execution in dead:
        execution.last_known_state = mlmd.Execution.FAILED
    store.put_executions(dead)
    return [node_name(store, execution.id) for execution in dead]


def remove_dead_folders(store: metadata_store.MetadataStore, artifacts: Path) -> list[Path]:
    """Removes what failed executions left: outputs that are no artifact, TFX's and Beam's working folders.

    Only folders that TFX named after such an execution go, and temporary folders of ours whose
    process is dead.

    Args:
        store: without unfinished executions.
        artifacts: the pipeline root.

    Returns:
        The removed folders.
    """
    registered = {artifact.uri for artifact in store.get_artifacts()}
    failed = [execution for execution in store.get_executions() if execution.last_known_state in _FAILED]
    removed = []
    for execution in failed:
        node = node_name(store, execution.id)
        if not node:
            continue
        outputs = [key / str(execution.id) for key in _output_keys(artifacts / node)]
        system = artifacts / node / _SYSTEM
        own = [
            *(path for path in outputs if str(path) not in registered),
            system / _EXECUTOR_EXECUTION / str(execution.id),
        ]
        removed += _remove(own)
        # TFX names these by chance, and keeps none of a successful execution.
        removed += _remove(path for path in _folders(system / _WORKING) if _UUID.fullmatch(path.name))
        for key in _output_keys(artifacts / node):
            removed += remove_leftovers(key, str(execution.id))
    return removed


def set_unregistered_aside(
    store: metadata_store.MetadataStore, artifacts: Path, nodes: Sequence[str], aside: Path
) -> Path | None:
    """Moves outputs away that the metadata do not know and whose places future executions will take.

    Such are there after the metadata database was removed or replaced by an older one.  An
    execution would mix its files with theirs.

    Args:
        store: the metadata.
        artifacts: the pipeline root.
        nodes: of the pipeline.
        aside: folder to move them to, below the time; made if need be.

    Returns:
        The folder that holds them now; None: there are none.
    """
    last = max((execution.id for execution in store.get_executions()), default=0)
    unknown = [
        path
        for node in nodes
        for key in _output_keys(artifacts / node)
        for path in _folders(key)
        if path.name.isdecimal() and int(path.name) > last
    ]
    if not unknown:
        return None
    goal = aside / datetime.now(UTC).strftime("%Y%m%d-%H%M%S.%f")
    for path in unknown:
        place = goal / path.relative_to(artifacts)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return goal


def _output_keys(node: Path) -> list[Path]:
    return [folder for folder in _folders(node) if folder.name != _SYSTEM]


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _remove(folders: Iterable[Path]) -> list[Path]:
    found = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return found
