"""The built wheel, and an environment that has it in place of the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
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
    """Installs the wheel as the container image does; returns the environment's folder of programs.

    The dependencies are those of this environment: Python would take half a minute to compile them anew.
    """
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    uv = folder / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$2" = sync ] || exec {shutil.which("uv") or ROOT / ".uv/bin/uv"} "$@"\n')
    uv.chmod(0o755)
    variables = os.environ | {"PYTHON": sys.executable, "UV": str(uv)}
    subprocess.run([ROOT / "environment.sh", folder, wheel], check=True, capture_output=True, text=True, env=variables)
    return folder / "bin"
