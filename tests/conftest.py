"""Fixtures that every room's tests share."""

import json
import sys
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def _determinism_ends_with_the_test() -> Iterator[None]:
    """Training switches op determinism on for its process; here many tests share one."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()
