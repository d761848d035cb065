"""Cleans up after killed runs before a run: half-made outputs, which no record names.

Only the process that holds the run folder calls this: every earlier run of this machine has ended.
"""

import contextlib
import logging
import os
from collections.abc import Collection, Sequence

from components.history.records import read_new_records
from detection.storage import files
from detection.storage.paths import join
from detection.storage.temporary import remove_leftovers
from pipelines.folders import RunLayout
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.run")


def sweep(layout: RunLayout, nodes: Sequence[str], runs: Collection[str]) -> None:
    """Removes outputs of ended runs that no record names, and the temporary folders beside them.

    Removes only folders that a driver named after one of the runs; see `components.history.driver`.

    Args:
        layout: layout of a folder that this process holds.
        nodes: ids of the nodes.
        runs: ids of the runs that have ended.

    Raises:
        DataError: a record cannot be read.
    """
    removed = 0
    for node in nodes:
        folder = join(layout.artifacts, node)
        keys = [join(folder, name) for name in files.list_folders(folder)]
        half = [(key, name) for key in keys for name in files.list_folders(key) if _is_of(name, runs)]
        if not half:
            continue
        outputs = [output for record in read_new_records(layout.root, node) for output in record.outputs.values()]
        recorded = {one.uri for listed in outputs for one in listed}
        for key, name in half:
            path = join(key, name)
            if path not in recorded and not os.path.islink(path):
                removed += 1
                with contextlib.suppress(DataError):  # the next run tries again
                    files.remove_folder(path)
                remove_leftovers(key, name)
    if removed:
        _LOGGER.info("removed folders of killed or failed runs: %d", removed)


def _is_of(name: str, runs: Collection[str]) -> bool:
    run, _, attempt = name.rpartition(".")
    return run in runs and attempt.isdecimal()
