"""The files of outputs: what a record holds of them, and whether they are still as they were."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from components.history.records import DESTINATION_PROPERTY, Entry, Execution, Output
from detection.storage.file_system import FileState
from detection.storage.files import walk_states
from detection.storage.gcs.objects import crc32c
from detection.storage.paths import join, name_of
from schemas.artifacts import CHECKPOINTS, LABELS_JSON, SAVED_MODEL_FILE, TRAINING_JSON, VALIDATION

# Beyond these limits only the file count, the total bytes and a digest of names and sizes are recorded, so that a
# record stays below 256 KB.
_MANY = 2000
_MAX_BYTES = 192 << 10
_ENTRY_BYTES = 128  # bytes per file in a record, besides its path
_HAVE_CHECKSUMS = "Examples"  # TFRecords hold checksums, which every reader verifies
# TensorBoard logs of a training, and the files that `follow` adds, may change.
_LASTING = {"ModelRun": frozenset({LABELS_JSON, TRAINING_JSON, CHECKPOINTS, VALIDATION})}


def entries_of(outputs: Iterable[Output]) -> dict[str, Entry]:
    """Returns the entries of the present files of outputs, by path.

    Raises:
        DataError: a file or folder cannot be read.
    """
    entries: dict[str, Entry] = {}
    left = _MAX_BYTES
    for output in outputs:
        states = _states(output)
        size = sum(len(path.encode()) + _ENTRY_BYTES for path in states)
        if len(states) > _MANY or size > left:
            entries[output.uri] = _summary(states)
            continue
        left -= size
        for path, state in states.items():
            checksum = None if output.type == _HAVE_CHECKSUMS else state.checksum or crc32c(Path(path))
            entries[path] = (state.size, state.version, checksum)
    return entries


def damage_of(execution: Execution) -> str | None:
    """Returns what is wrong with the files of an execution, as part of a sentence; None: they are as recorded.

    A file of the recorded size and time, or generation, counts as unchanged; for any other the checksum decides.

    Raises:
        DataError: a file or folder cannot be read.
    """
    states = {output.uri: _states(output) for listed in execution.outputs.values() for output in listed}
    present = {path: state for listed in states.values() for path, state in listed.items()}
    for path in sorted(execution.files, key=lambda one: (name_of(one) != SAVED_MODEL_FILE, one)):
        recorded = execution.files[path]
        if path in states:
            if _summary(states[path]) != recorded:
                return f"{path}: its {recorded[0]} files are not those that were written"
            continue
        state = present.get(path)
        if state is None:
            return f"{path} is missing"
        if state.size != recorded[0]:
            return f"{path} has {state.size} bytes instead of {recorded[0]}"
        is_certain = recorded[2] is None or state.version == recorded[1]
        if not is_certain and (state.checksum or crc32c(Path(path))) != recorded[2]:
            return f"{path} was changed"
    return None


def _summary(states: dict[str, FileState]) -> Entry:
    sizes = sorted((name_of(path), state.size) for path, state in states.items())
    digest = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    return len(states), sum(state.size for state in states.values()), digest


def _states(output: Output) -> dict[str, FileState]:
    """Returns the states of the files that an output consists of; those of a pushed version are among them."""
    folders = (output.uri, output.properties.get(DESTINATION_PROPERTY))
    return {
        join(folder, name): state
        for folder in map(str, filter(None, folders))
        for name, state in walk_states(folder).items()
        if _counts(name, output.type)
    }


def _counts(name: str, kind: str) -> bool:
    """Returns whether a file belongs to the output: file systems and desktops create hidden ones."""
    last = name_of(name)
    if last.startswith("."):
        return False
    return kind not in _LASTING or name.split("/", maxsplit=1)[0] in _LASTING[kind]
