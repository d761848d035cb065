"""The built wheel, and an environment that has it in place of the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

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
    """Makes a virtual environment of the wheel and this one's dependencies; returns its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    dependencies = Path(yaml.__file__).parents[1]
    # A path in a .pth file is searched, but its own .pth files, as that of the editable install, are not read.
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return folder / "bin"
