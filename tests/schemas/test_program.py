"""What tells how to install something: the same tool, from the same source, into the same environment."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from schemas import program
from schemas.program import LOCK, VERSION, install_command

ROOT = Path(__file__).parents[2]
WHEEL = f"cocoflow-{VERSION}-py3-none-any.whl"
TFX = "uv pip install" if sys.version_info >= (3, 12) else "pip install uv && uv pip install"
_CODE = """
from schemas.program import install_command, install_hint
print(install_command(), install_command("onnx"), install_command("tfx"), install_hint("onnx.helper"), sep="\\n")"""


def _site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def _installed(folder: Path, installer: str, origin: Path | None, *, is_tree: bool = False) -> Path:
    """Makes a virtual environment with the metadata that an installer leaves; returns its interpreter."""
    venv.create(folder, symlinks=True)
    site_packages = _site_packages(folder)
    metadata = site_packages / f"cocoflow-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: cocoflow\nVersion: {VERSION}\n")
    (metadata / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps({"url": origin.as_uri()}))
    if is_tree:
        (site_packages / "tree.pth").write_text(f"{origin}\n")
    else:
        shutil.copytree(ROOT / "schemas", site_packages / "schemas")
    return folder / "bin/python"


def _commands(python: Path, **variables: str) -> list[str]:
    environment = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [python, "-c", _CODE], env=environment, cwd=python.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_an_environment_of_ones_own_is_added_to_with_its_installer(tmp_path: Path) -> None:
    pip = _installed(tmp_path / "pip", "pip", None)
    plain, onnx, tfx, hint = _commands(pip, VIRTUAL_ENV=str(tmp_path / "pip"))
    assert plain == f"pip install {WHEEL}"
    assert onnx == f"pip install '{WHEEL}[onnx]'"
    assert tfx.endswith(f"pip install '{WHEEL}[tfx]'")
    assert ("uv pip" in tfx) == (sys.version_info < (3, 12)), "pip refuses TFX 1.16 on Python 3.11"
    assert hint == f"Install Cocoflow with its extra `onnx`: `pip install '{WHEEL}[onnx]'`."
    uv = _installed(tmp_path / "uv", "uv", None)
    assert _commands(uv)[:3] == [
        f"uv pip install {WHEEL}",
        f"uv pip install '{WHEEL}[onnx]'",
        f"uv pip install '{WHEEL}[tfx]'",
    ]
    # Both tools install into the environment that is active in the shell.
    assert f"activate its environment (`source {tmp_path}/uv/bin/activate`), then `uv pip" in _commands(uv)[3]


def test_a_wheel_that_is_still_there_is_named_by_its_path(tmp_path: Path) -> None:
    wheel = tmp_path / "my wheels" / WHEEL
    wheel.parent.mkdir()
    wheel.touch()
    assert _commands(_installed(tmp_path / "a", "pip", wheel))[0] == f"pip install '{wheel}'"
    wheel.unlink()
    assert _commands(_installed(tmp_path / "b", "pip", wheel))[0] == f"pip install {WHEEL}"


def test_a_source_tree_in_an_environment_of_ones_own_is_installed_there_again(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "schemas", tree / "schemas")
    (tree / "environment.sh").touch()
    python = _installed(tmp_path / "env", "pip", tree, is_tree=True)
    assert _commands(python)[:2] == [f"pip install --editable {tree}", f"pip install --editable '{tree}[onnx]'"]
    (tmp_path / "env" / LOCK).touch()
    assert _commands(python)[0] == "make env"


def test_what_environment_sh_has_installed_it_installs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = _installed(tmp_path / "env", "uv", None)
    (tmp_path / "env" / LOCK).touch()
    assert _commands(python)[0] == f"./environment.sh {tmp_path}/env {WHEEL}"
    monkeypatch.setattr(program, "SOURCE_TREE", Path(program.IMAGE_PREFIX, "lib/python3.11/site-packages"))
    monkeypatch.setattr(sys, "prefix", program.IMAGE_PREFIX)
    monkeypatch.setattr(program, "is_locked", lambda: True)
    assert install_command() == "docker build --tag IMAGE ."
    assert install_command("gpu") == "docker build --build-arg GPU=1 --tag IMAGE ."
    assert f"/environment.sh ${{GPU:+--gpu}} {program.IMAGE_PREFIX}" in (ROOT / "Dockerfile").read_text()


def test_this_environment_is_that_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "is_locked", lambda: True)
    assert (install_command("tfx"), install_command("gpu")) == ("make env", "make env GPU=1")
