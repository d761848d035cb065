"""Clearing up after runs that were killed: their executions, and the folders that they left.

Called by the one process that holds the run folder: every execution that is not finished
is then dead.
"""

import re
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from detection.storage.atomic import remove_leftovers
from pipelines.runs.run_metadata import node_name

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
