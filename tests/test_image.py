"""The container image, without Docker: what the Dockerfile says.

`tests/pipelines` runs every component in the environment that its script installs.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGE = re.compile(r"^FROM (\S+)(?: AS (\w+))?$", re.MULTILINE)


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_the_base_is_pinned_and_the_last_stage_builds_nothing(dockerfile: str) -> None:
    assert re.search(
        r"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE
    )
    assert [image for image, _ in STAGE.findall(dockerfile)] == ["${PYTHON_IMAGE}"] * 2
    last = dockerfile[dockerfile.rindex("FROM ") :]
    assert "apt-get" not in last
    assert "environment.sh" not in last
    assert re.search(r"^USER (?!root|0$)\w+$", last, re.MULTILINE)


def test_what_is_copied_is_there_and_not_ignored(dockerfile: str) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    names = {name for line in copied for name in line.split()} - {"."}
    assert names <= allowed
    assert all((ROOT / name).exists() for name in allowed)


def test_beams_worker_is_of_the_locked_version(dockerfile: str) -> None:
    (version,) = re.findall(r"beam_python3\.11_sdk:(\S+) ", dockerfile)
    assert f"\napache-beam=={version} ; python_full_version < '3.12' " in (ROOT / "requirements.lock").read_text()
