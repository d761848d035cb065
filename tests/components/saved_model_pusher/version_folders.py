"""Small stand-ins for SavedModels: some whose files vouch for each other, and one of known bytes."""

import hashlib
import json
from pathlib import Path

from detection.storage.files import read_bytes, walk_files
from detection.storage.paths import join

MARKER = "saved_model.pb"
FILES = ("variables/variables.index", "variables/variables.data-00000-of-00001", "assets.extra/config.yaml")
# The files of a model for tests that compare bytes.
PARTS = {
    "saved_model.pb": b"graph",
    "variables/variables.index": b"index",
    "variables/variables.data-00000-of-00001": bytes(range(256)) * 40,
    "assets/vocabulary.txt": b"",
    "assets.extra/config.yaml": b"train: {}\n",
}


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


def write_parts(folder: Path) -> Path:
    """Writes the model `PARTS`."""
    for name, content in PARTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def parts(folder: Path) -> dict[str, bytes]:
    """Returns the content of all files by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def another(model: Path) -> Path:
    """Returns the model with other weights, in its place."""
    weights = model / "variables/variables.data-00000-of-00001"
    weights.write_bytes(weights.read_bytes()[1:] + weights.read_bytes()[:1])
    return model


def hidden(folder: Path) -> list[str]:
    """Returns the names that a model server does not see."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]
