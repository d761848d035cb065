"""Before a run: closes what killed runs left open, and sees that no damaged result is reused.

TFX reuses an execution if its output artifacts are LIVE and their folders exist.  Here every
output is compared with its files as they were recorded; an artifact that is not whole
is marked DELETED, so that TFX makes it again, and no resolver takes it for a baseline, a
model to start from or a span.
"""

import logging
from collections.abc import Sequence

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.runs.dead_executions import close_dead_executions, remove_dead_folders, set_unregistered_aside
from pipelines.runs.file_records import FileRecords
from pipelines.layout import RunLayout
from pipelines.runs.run_metadata import open_store, producer_of

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
