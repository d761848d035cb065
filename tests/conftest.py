"""Fixtures that every room's tests share."""

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def _shared(folder: str) -> Path:
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"{path} is absent: real data and oracle numbers lie beside the project, not in it")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets; skips where it is absent."""
    return _shared("data")


@pytest.fixture(scope="session")
def oracle_dir() -> Path:
    """Folder of oracle files; skips where it is absent."""
    return _shared("oracles")


@pytest.fixture(scope="session")
def oracles(oracle_dir: Path) -> dict[str, dict[str, Any]]:
    """Entries of oracles.json by id."""
    entries = json.loads((oracle_dir / "oracles.json").read_text())["oracles"]
    return {entry["id"]: entry for entry in entries}
