"""The program's version, the commands of installed programs, and installation hints."""

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from schemas.errors import ConfigError

if TYPE_CHECKING:
    import importlib.metadata

PROGRAM = "cocoflow"
VERSION = "0.1.0"
SCRIPT = "pipeline_runner.py"  # the same program in a source tree
LOCK = "requirements.lock"  # environment.sh leaves a copy in the environments that it makes
SOURCE_TREE = Path(__file__).parents[1]  # or the folder that the wheel is installed in
IMAGE_PREFIX = "/opt/cocoflow"  # the environment of the Dockerfile
# Extra of pyproject.toml -> its modules; other modules are always installed.
EXTRAS = {
    "tfx": (
        "google.cloud.aiplatform",
        "kfp",
        "kfp_server_api",
        "ml_metadata",
        "pandas",
        "tensorflow_data_validation",
        "tensorflow_metadata",
        "tensorflow_model_analysis",
        "tensorflow_serving",
        "tfx",
        "tfx_bsl",
    ),
    "onnx": ("onnx", "onnxruntime", "tf2onnx"),
    "dask": ("distributed",),
}


def program_command() -> str:
    """Returns the command of this program as it was called.

    It works in the same folder and shell, also without activating the environment: `cocoflow` is on the PATH,
    `.venv/bin/cocoflow` or `.venv/bin/python pipeline_runner.py` is not.
    """
    called = Path(sys.argv[0])
    if called.name == SCRIPT:
        return shlex.join([sys.orig_argv[0], sys.argv[0]])
    if called.name != PROGRAM:
        return installed_command(PROGRAM)  # imported by another program
    return PROGRAM if _is_found(called) else shlex.quote(sys.argv[0])


def installed_command(name: str) -> str:
    """Returns the command of a program of this environment: its name if it is on the PATH, else its path."""
    path = Path(sys.executable).with_name(name)
    return name if _is_found(path) else shlex.quote(str(path))


def require_module(name: str) -> None:
    """Requires a top-level module of an extra, before it is imported.

    Raises:
        ConfigError: the module is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"No module named {name!r}. {install_hint(name)}")


def install_hint(module: str) -> str:
    """Returns the instruction to install a missing module into the environment of this process."""
    if _is_made_by_make():
        return "Install the environment with `make env`, and activate it in this shell: `source .venv/bin/activate`."
    extra = next((extra for extra, modules in EXTRAS.items() if module.startswith(modules)), "")
    what = f"its extra `{extra}`" if extra else "its dependencies"
    is_active = sys.prefix in (sys.base_prefix, os.environ.get("VIRTUAL_ENV"))
    activation = "" if is_active else f"activate its environment (`source {sys.prefix}/bin/activate`), then "
    return f"Install Cocoflow with {what}: {activation}`{install_command(extra)}`."


def install_command(extra: str = "") -> str:
    """Returns the shell command that installs Cocoflow's dependencies as this installation was made.

    Args:
        extra: extra of pyproject.toml to install, too; environments with the versions of the lock have all but `gpu`.
    """
    gpu = extra == "gpu"
    if _is_made_by_make():
        return f"make env{' GPU=1' * gpu}"
    own = own_distribution()
    if is_locked():
        if sys.prefix == IMAGE_PREFIX:
            return f"docker build {'--build-arg GPU=1 ' * gpu}--tag IMAGE ."
        return f"./environment.sh {'--gpu ' * gpu}{shlex.quote(sys.prefix)} {shlex.quote(_source(own))}"
    target = shlex.quote(f"{_source(own)}[{extra}]" if extra else _source(own))
    if _has_environment_sh():
        target = f"--editable {target}"
    if _has_uv(own):
        return f"uv pip install {target}"
    # pip refuses TFX 1.16 on Python 3.11, as its metadata allows 3.10 at most; uv ignores upper bounds of Python.
    return f"{'pip install uv && uv ' if extra == 'tfx' and sys.version_info < (3, 12) else ''}pip install {target}"


def is_locked() -> bool:
    """Returns whether environment.sh installed this program: `make env`, or the image."""
    is_here = _has_environment_sh() or SOURCE_TREE.is_relative_to(sys.prefix)
    return is_here and Path(sys.prefix, LOCK).is_file()


def own_distribution() -> "importlib.metadata.Distribution | None":
    """Returns the metadata of the installation that this module belongs to; None: it is not installed."""
    import importlib.metadata

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.distribution(PROGRAM)
        module = Path(str(found.locate_file("schemas/program.py")))
        if _origin(found) == SOURCE_TREE or (module.is_file() and module.samefile(__file__)):
            return found
    return None


def _is_made_by_make() -> bool:
    """Returns whether `make env` made, or will make, the environment of this source tree."""
    return _has_environment_sh() and (is_locked() or sys.prefix == sys.base_prefix)


def _has_environment_sh() -> bool:
    return (SOURCE_TREE / "environment.sh").exists()


def _source(own: "importlib.metadata.Distribution | None") -> str:
    """Returns what was installed: the source tree, the wheel's path if it is still there, else the wheel's name."""
    if _has_environment_sh():
        return str(SOURCE_TREE)
    origin = None if own is None else _origin(own)
    return str(origin) if origin is not None and origin.exists() else f"{PROGRAM}-{VERSION}-py3-none-any.whl"


def _origin(distribution: "importlib.metadata.Distribution") -> Path | None:
    """Returns the local wheel or folder that a distribution was installed from, see PEP 610."""
    text = distribution.read_text("direct_url.json")
    url = urlsplit(json.loads(text)["url"] if text else "")
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _has_uv(own: "importlib.metadata.Distribution | None") -> bool:
    """Returns whether uv installed Cocoflow, or made the environment, which has no pip then."""
    if own is not None and (installer := own.read_text("INSTALLER")):
        return installer.strip() == "uv"
    settings = Path(sys.prefix, "pyvenv.cfg")
    return settings.is_file() and any(line.startswith("uv = ") for line in settings.read_text().splitlines())


def _is_found(path: Path) -> bool:
    found = shutil.which(path.name)
    return found is not None and path.exists() and path.samefile(found)
