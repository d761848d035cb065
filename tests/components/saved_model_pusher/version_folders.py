"""Small stand-ins for SavedModels whose files vouch for each other."""

import hashlib
import json
from pathlib import Path

from detection.storage.files import walk_files
from detection.storage.paths import join
from detection.storage.reading import read_bytes

MARKER = "saved_model.pb"
FILES = ("variables/variables.index", "variables/variables.data-00000-of-00001", "assets.extra/config.yaml")


def write_version(folder: Path, content: str) -> Path:
    """Writes a model; `saved_model.pb` has the checksums of the others."""
    sums = {}
    for number, name in enumerate(FILES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        data = f"{name} of {content}\n".encode() * (1 + 4000 * (number == 1))
        (folder / name).write_bytes(data)
        sums[name] = hashlib.sha256(data).hexdigest()
    (folder / MARKER).write_text(json.dumps({"content": content, "files": sums}))
    return folder


def content_of(version: str | Path) -> str:
    """Returns the content of a whole model.

    Raises:
        AssertionError, DataError, OSError: a file is missing, or is another one's.
    """
    marker = json.loads(read_bytes(join(version, MARKER)))
    for name, expected in marker["files"].items():
        assert hashlib.sha256(read_bytes(join(version, name))).hexdigest() == expected, f"{version}: {name}"
    assert {MARKER, *FILES} <= set(walk_files(version))
    return str(marker["content"])
