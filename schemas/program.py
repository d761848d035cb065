"""The program's version, the commands of installed programs, and installation hints."""

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

from schemas.errors import ConfigError

PROGRAM = "cocoflow"
VERSION = "0.1.0"
SCRIPT = "pipeline_runner.py"  # the same program in a source tree
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
    """Returns the instruction to install a missing module, in a source tree or with the wheel."""
    if Path(__file__).parents[1].joinpath("environment.sh").exists():
        return "Install the environment with `make env`, and activate it in this shell: `source .venv/bin/activate`."
    wheel = f"{PROGRAM}-{VERSION}-py3-none-any.whl"
    for extra, modules in EXTRAS.items():
        if module.startswith(modules):
            return f"Install Cocoflow with its extra `{extra}`: `uv pip install '{wheel}[{extra}]'`."
    return f"Install Cocoflow with its dependencies: `pip install {wheel}`."


def _is_found(path: Path) -> bool:
    found = shutil.which(path.name)
    return found is not None and path.exists() and path.samefile(found)
