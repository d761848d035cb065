"""The environment with CUDA libraries: what is installed, and that Python finds it.

A stand-in for uv keeps the packages that it is told to install; the last test needs the real ones.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement

from schemas.program import VERSION

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
_UV = """#!/bin/sh
case "$*" in
*"pip sync"*) cat >"$0.synced" ;;
venv*) exec "$4" -m venv --without-pip "$5" ;;
esac
"""
STAMP = f".synced-{sys.version_info.major}.{sys.version_info.minor}"


class Environment(NamedTuple):
    """A virtual environment without packages, into which environment.sh installs by a stand-in for uv."""

    folder: Path
    uv: Path

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def install(self, *arguments: str) -> str:
        """Runs environment.sh; returns the packages to install."""
        flags = [argument for argument in arguments if argument.startswith("--")]
        package = [argument for argument in arguments if argument not in flags]
        subprocess.run(
            [ROOT / "environment.sh", *flags, self.folder, *package],
            env=os.environ | {"UV": str(self.uv), "PYTHON": sys.executable},
            check=True,
        )
        return Path(f"{self.uv}.synced").read_text()

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs the environment's Python with few variables."""
        return subprocess.run(
            [self.folder / "bin/python", *arguments],
            env={"PATH": os.defpath, **variables},
            input="from stdin",
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    venv.create(tmp_path / "env", symlinks=True)
    uv = tmp_path / "uv"
    uv.write_text(_UV)
    uv.chmod(0o755)
    made = Environment(tmp_path / "env", uv)
    # Takes the place of the editable package, whose .pth file comes first, too.
    (made.site_packages / "__editable__.pth").write_text(f"{ROOT}\n")
    return made


def _names(lock: str) -> list[str]:
    return re.findall(r"^([a-zA-Z0-9._-]+)==", lock, re.MULTILINE)


def test_the_flag_alone_installs_the_cuda_libraries(environment: Environment) -> None:
    without, complete = environment.install("."), environment.install("--gpu", ".")
    assert complete == LOCK
    assert _names(without) == [name for name in _names(LOCK) if not name.startswith("nvidia-")]
    # Every package kept its hashes, and nothing else is left of those that went.
    blocks = re.findall(r"^\S.*(?:\n .*)*\n", LOCK, re.MULTILINE)
    assert "".join(block for block in blocks if not block.startswith("nvidia-")) == without


def test_the_lock_has_what_this_tensorflow_requires_for_gpus() -> None:
    required = map(Requirement, importlib.metadata.requires("tensorflow") or [])
    cuda = [one for one in required if one.marker and "and-cuda" in str(one.marker)]
    locked = [Requirement(line.rstrip("\\ ")) for line in LOCK.splitlines() if line.startswith("nvidia-")]
    here = {one.name: one.specifier for one in locked if one.marker is None or one.marker.evaluate()}
    assert len(cuda) > 8
    for requirement in cuda:
        [pin] = here[requirement.name]
        assert requirement.specifier.contains(pin.version), requirement


def _plant_library(environment: Environment, name: str) -> Path:
    """Puts some shared library where a wheel of CUDA would; returns the folder."""
    spec = importlib.util.find_spec("markupsafe._speedups")
    assert spec is not None
    assert spec.origin is not None
    folder = environment.site_packages / "nvidia/cuda_runtime/lib"
    folder.mkdir(parents=True)
    shutil.copy(spec.origin, folder / name)
    return folder


def test_python_starts_with_the_libraries_loadable_by_name(environment: Environment) -> None:
    folder = _plant_library(environment, "libplanted.so.12")
    load = "import ctypes, os, subprocess, sys; ctypes.CDLL('libplanted.so.12'); print(sys.argv, sys.stdin.read())"
    environment.install(".")
    assert "libplanted.so.12: cannot open shared object file" in environment.python("-c", load).stderr
    environment.install("--gpu", ".")
    started = environment.python("-c", load, "a b", "c")
    assert (started.returncode, started.stdout, started.stderr) == (0, "['-c', 'a b', 'c'] from stdin\n", "")
    path = "import os; print(os.environ['LD_LIBRARY_PATH'])"
    assert environment.python("-c", path, LD_LIBRARY_PATH="/of/mine").stdout == f"{folder}:/of/mine\n"
    # A child process has the variable, and does not add to it.
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {path!r}])"
    assert environment.python("-c", child).stdout == f"{folder}\n"
    assert environment.python("-c", "raise SystemExit(7)").returncode == 7
    environment.install(".")
    assert "LD_LIBRARY_PATH" in environment.python("-c", path).stderr  # a KeyError


def test_the_program_makes_the_libraries_of_a_plain_installation_loadable(environment: Environment) -> None:
    folder = _plant_library(environment, "libplanted.so.12")
    (environment.site_packages / "dependencies.pth").write_text(f"{Path(yaml.__file__).parents[1]}\n")
    code = """
import os, sys
print(os.environ.get("LD_LIBRARY_PATH"), flush=True)
sys.argv[1:] = ["--version"]
import pipeline_runner
pipeline_runner.program()"""
    started = environment.python("-c", code)
    assert (started.stdout, started.stderr) == (f"None\n{folder}\ncocoflow {VERSION}\n", "")


def test_the_dependencies_alone_do_not_call_the_package(environment: Environment) -> None:
    environment.install("--gpu")
    assert not list(environment.site_packages.glob("cocoflow*"))


@pytest.mark.parametrize(("shown", "told"), [("3.10", "is Python 3.10"), ("", "is no Python")])
def test_a_wrong_python_is_refused_before_anything_is_made(shown: str, told: str, tmp_path: Path) -> None:
    python = _python_of_version(tmp_path / "python", shown)
    environment = os.environ | {"PYTHON": str(python)}
    command = [str(ROOT / "environment.sh"), str(tmp_path / "env"), "."]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{python} {told}, but Cocoflow needs Python 3.11, 3.12 or 3.13.\n" in done.stderr
    assert "make env PYTHON=python3.11" in done.stderr
    assert not (tmp_path / "env").exists()


def test_a_python_for_which_this_system_is_too_old_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    def install(libc: str) -> subprocess.CompletedProcess[str]:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\ncase "$*" in *libc*) echo {libc} ;; *) echo 3.13 ;; esac\n')
        python.chmod(0o755)
        venv.create(tmp_path / "env")
        variables = os.environ | {"PYTHON": str(python), "UV": "false"}
        command = [str(ROOT / "environment.sh"), str(tmp_path / "env")]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    done = install("2.36")
    assert done.returncode == 2
    assert "on Python 3.13, TFX needs glibc 2.39 (Debian 13), and this system has 2.36.\n" in done.stderr
    assert "make env PYTHON=python3.11" in done.stderr
    assert (tmp_path / "env/bin/python").exists()
    for libc in ("2.39", "2.41", ""):
        assert "glibc" not in install(libc).stderr, "musl and macOS have none"


def test_an_environment_of_another_python_is_made_anew_and_other_folders_are_kept(
    environment: Environment, tmp_path: Path
) -> None:
    own = environment.folder / "own"
    own.touch()
    environment.install()
    assert own.exists()
    (environment.folder / "bin/python").unlink()
    _python_of_version(environment.folder / "bin/python", "3.10")
    environment.install()
    assert not own.exists()
    assert environment.python("-c", "import sys; print(*sys.version_info[:2], sep='.')").stdout in STAMP + "\n"
    (tmp_path / "kept/bin").mkdir(parents=True)
    environment._replace(folder=tmp_path / "kept").install()
    assert (tmp_path / "kept/bin").is_dir()


def _python_of_version(path: Path, version: str) -> Path:
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_make_clean_removes_what_make_builds_and_no_results(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    built = [".venv/bin/python", ".uv/bin/uv", "build/x", "cocoflow.egg-info/PKG-INFO", ".mypy_cache/x"]
    built += [".pytest_cache/x", "detection/__pycache__/x.pyc", "tests/storage_emulator/__pycache__/x.pyc"]
    kept = ["runs/mine/serving/1/saved_model.pb", "runs/mine/__pycache__/x", "detection/x.py"]
    for name in built + kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True)
    assert [name for name in built + kept if (tmp_path / name).exists()] == kept


@pytest.mark.parametrize(
    ("stamp", "flag", "command"),
    [
        (STAMP, [], None),
        (f"{STAMP}-gpu", [], None),
        (STAMP, ["GPU=1"], r"environment\.sh --gpu \S+ \."),
        (f"{STAMP}-gpu", ["GPU=1"], None),
        (f"{STAMP}-gpu", ["GPU=0"], r"environment\.sh +\S+ \."),
        (".synced-3.8", [], r"environment\.sh +\S+ \."),
        (None, [], r"environment\.sh +\S+ \."),
    ],
)
def test_make_env_notices_a_change_of_python_or_gpu(
    stamp: str | None, flag: list[str], command: str | None, tmp_path: Path
) -> None:
    if stamp is not None:
        (tmp_path / stamp).touch()
    make = ["make", "--dry-run", "env", f"VENV={tmp_path}", f"PYTHON={sys.executable}", *flag]
    environment = {name: value for name, value in os.environ.items() if name not in ("GPU", "MAKEFLAGS", "MAKELEVEL")}
    said = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert ("environment.sh" in said) == (command is not None)
    assert command is None or re.search(command, said)


def test_the_demo_on_photographs_takes_a_public_set_or_yours() -> None:
    make, environment = ["make", "--dry-run", "demo-photos"], {"PATH": os.environ["PATH"]}
    said = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    address = r"https://github\.com/\S+/BCCD_Dataset/archive/\w{40}\.zip#BCCD=\w{64}"
    assert re.search(f"cocoflow run --data '{address}' ", said)
    said = subprocess.run(
        [*make, "DATA=my photos"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "cocoflow run --data 'my photos' " in said


def test_the_image_passes_the_choice_on() -> None:
    build, last = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]
    assert "\nARG GPU=\n" in build
    assert re.findall(r"environment\.sh (.*?) ?/opt", build) == ["${GPU:+--gpu}"] * 2
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in last


@pytest.mark.extended
def test_the_real_libraries_load_by_name() -> None:
    try:
        cudnn = importlib.metadata.version("nvidia-cudnn-cu12")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the CUDA libraries are not installed: make env GPU=1")
    for name in ("libcudart.so.12", "libcublas.so.12", f"libcudnn.so.{cudnn.split('.')[0]}"):
        ctypes.CDLL(name)
    assert subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcublas.so.12')"], check=True)
