"""What `setup.py` builds for Beam workers and images."""

import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from schemas.program import VERSION
from tests.wheel import build_wheel

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("package") / "build"))


def test_it_holds_the_rooms_and_their_data_but_no_tests(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"pipeline_runner.py", "schemas/records.pbtxt", "pipelines/configs/default.yaml"} <= names
    assert {"components/coco_evaluator/executor.py", "detection/reports/dataset/report.html.j2"} <= names
    assert {"detection/reports/html/base.html.j2", "detection/reports/html/style.css"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_it_requires_nothing_and_has_name_and_version(wheel: zipfile.ZipFile) -> None:
    (path,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = Parser().parsestr(wheel.read(path).decode())
    assert metadata.get_all("Requires-Dist") is None
    assert (metadata["Name"], metadata["Version"]) == ("cocoflow", VERSION)


def test_the_lock_is_hashed_and_names_no_host() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(pinned) > 100
    assert all("==" in line and line.endswith("\\") for line in pinned)
    assert all(line.strip().startswith("--hash=sha256:") for line in lines if line.startswith(" "))
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    for version in ("< '3.12'", ">= '3.12'"):
        assert any(line.startswith("tfx==") and version in line for line in pinned)
