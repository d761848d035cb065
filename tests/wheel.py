"""The built wheel, and an environment that has it in place of the repository."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PARTS = ("schemas", "detection", "components", "pipelines", "tests", "pipeline_runner.py", "setup.py")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel from a copy, as setuptools leaves its workings beside setup.py."""
    folder.mkdir(parents=True)
    for name in _PARTS:
        (folder / name).symlink_to(ROOT / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "setup.py", "-q", "bdist_wheel"], cwd=folder, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def make_environment(folder: Path, wheel: Path) -> Path:
    """Installs the wheel as the container image does; returns the environment's folder of programs."""
    python = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "environment.sh", folder, wheel], check=True, capture_output=True, text=True, env=python)
    return folder / "bin"
