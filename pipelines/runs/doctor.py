"""Checks the machine and its environment for what a run needs, without starting one."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import rich.box
import rich.table
from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from detection.storage.gcs.credentials import FILE_VARIABLE, find_credentials
from detection.storage.paths import is_remote
from pipelines.folders import RunLayout
from pipelines.runners.kubeflow_connection import TOKEN_VARIABLE
from schemas.config.config import Config
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.errors import DataError
from schemas.program import install_hint
from schemas.quoting import one_line, printable

_PACKAGES = ("cocoflow", "tensorflow", "keras", "tfx", "apache-beam", "kfp")
_LOCK = "requirements.lock"
_PIPED_COLUMNS = 160  # width of a table that goes to a file
_CUDA = "nvidia-"  # packages that only environments for GPUs have
_INSTALL = "make env"
_INSTALL_CUDA = "only for GPUs: make env GPU=1, see docs/gpu.md"
_MEMINFO = Path("/proc/meminfo")
_GIGABYTE = 1e9
_MIN_MEMORY = 3e9  # bytes that a process with TFX and a small training takes
_MIN_DISK = 2e9  # bytes of the records, checkpoints and model of a small run

State = Literal["ok", "missing", "broken"]


class Check(NamedTuple):
    """The outcome of one check.

    subject: name of what was checked.
    state: ok; missing: this configuration runs without it; broken: a run needs it.
    found: what was found.
    remedy: what to do about it; empty for ok.
    """

    subject: str
    state: State
    found: str
    remedy: str = ""


def diagnose(config: Config, lock: Path | None = None) -> list[Check]:
    """Checks versions, devices, memory, disk and credentials.

    No check waits for the network for more than a second.

    Args:
        config: configuration of the runs to come, which says what they need.
        lock: requirements.lock; None: that of this source tree, or else of the environment.

    Raises:
        ConfigError: `run.root` or `push.directory` is not supported.
    """
    return [
        *_check_versions(),
        *_check_lock(_find_lock() if lock is None else lock),
        *_check_devices(config),
        *_check_memory(),
        *_check_disk(config),
        *_check_google_credentials(config),
        *_check_variables(config),
    ]


def print_checks(checks: Sequence[Check]) -> None:
    """Prints the checks as a table on stdout."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_COLUMNS)
    colors = {"ok": "green", "missing": "yellow", "broken": "red"}
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in ("check", "state", "found", "remedy"):
        table.add_column(column, overflow="fold")
    for check in checks:
        cells = [Text(printable(cell)) for cell in check]
        cells[1].stylize(colors[check.state])
        table.add_row(*cells)
    console.print(table)


def _check_versions() -> Iterator[Check]:
    supported = sys.version_info >= (3, 11)
    yield Check("python", "ok" if supported else "broken", platform.python_version(), "" if supported else "use 3.11")
    for name in _PACKAGES:
        version = _installed_version(name)
        yield Check(name, *(("broken", "not installed", install_hint(name)) if version is None else ("ok", version)))


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_lock() -> Path | None:
    """Returns the lock of the source tree, or the one that environment.sh left in the environment."""
    folders = (Path(__file__).parents[2], Path(sys.prefix))
    return next((folder / _LOCK for folder in folders if (folder / _LOCK).is_file()), None)


def _check_lock(lock: Path | None) -> Iterator[Check]:
    """Compares installed packages with the lock; the lock decides by its markers which ones belong here."""
    if lock is None:
        yield Check(_LOCK, "missing", "neither in the source tree nor in the environment", f"install with {_INSTALL}")
        return
    pins = [Requirement(line.rstrip("\\ ")) for line in lock.read_text().splitlines() if line[:1].isalnum()]
    locked = {
        pin.name: str(pin.specifier).removeprefix("==") for pin in pins if not pin.marker or pin.marker.evaluate()
    }
    installed = {name: version for name in locked if (version := _installed_version(name)) is not None}
    if not any(name.startswith(_CUDA) for name in installed):
        locked = {name: version for name, version in locked.items() if not name.startswith(_CUDA)}
    different = [name for name, version in locked.items() if installed.get(name) != version]
    for name in different:
        yield Check(name, "broken", f"{installed.get(name, 'not installed')}; locked: {locked[name]}", _INSTALL)
    if not different:
        yield Check(_LOCK, "ok", f"all {len(locked)} packages have the locked versions")


def _check_devices(config: Config) -> Iterator[Check]:
    try:
        import tensorflow as tf
    except (ImportError, OSError) as error:
        yield Check("devices", "broken", f"TensorFlow cannot be imported: {one_line(error)}", _INSTALL)
        return
    from detection.devices import DRIVER, describe_devices, has_gpu, load_gpu_libraries, no_gpu_reason

    libraries = load_gpu_libraries()
    sees_gpu = bool(tf.config.list_physical_devices("GPU"))
    # A GPU that TensorFlow does not see would be idle while the CPU trains.
    wanted = config.train.strategy == "mirrored" or ACCELERATOR_VARIABLE in os.environ or has_gpu()
    broken: State = "broken" if wanted else "missing"
    if sees_gpu or not wanted:
        yield Check("devices", "ok", describe_devices())
    else:
        yield Check("devices", "broken", f"no GPU: {no_gpu_reason()}", "docs/gpu.md")
    for name, reason in libraries.items():
        remedy = "only for GPUs: install NVIDIA's driver" if name == DRIVER else _INSTALL_CUDA
        if reason is None:
            yield Check(name, "ok", "loads")
        else:
            yield Check(name, "missing" if sees_gpu else broken, reason.removeprefix(f"{name}: "), remedy)


def _check_memory() -> Iterator[Check]:
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    found = f"{available / _GIGABYTE:.1f} of {total / _GIGABYTE:.1f} GB available"
    if available < _MIN_MEMORY:
        yield Check("memory", "broken", found, f"a run takes at least {_MIN_MEMORY / _GIGABYTE:.0f} GB: end programs")
    else:
        yield Check("memory", "ok", found)


def _check_disk(config: Config) -> Iterator[Check]:
    root = RunLayout(config).root
    places = {"temporary files": tempfile.gettempdir()} | ({} if is_remote(root) else {"run.root": root})
    for subject, place in places.items():
        folder = next(one for one in (Path(place), *Path(place).parents) if one.is_dir())
        free = shutil.disk_usage(folder).free
        found = f"{place}: {free / _GIGABYTE:.1f} GB free"
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Check(subject, "broken", f"{place}: {folder} is not writable", "choose another folder")
        elif free < _MIN_DISK:
            yield Check(subject, "broken", found, f"a run takes at least {_MIN_DISK / _GIGABYTE:.0f} GB: free space")
        else:
            yield Check(subject, "ok", found)


def _check_google_credentials(config: Config) -> Iterator[Check]:
    """Checks that there are credentials, not that Google accepts them."""
    paths = [config.run.root, config.data.root, config.push.directory]
    needed_by = [path for path in paths if path and is_remote(path)]
    needed_by += ["run.vertex.project"] if config.run.vertex.project else []
    needed_by += ["push.vertex.model_registry"] if config.push.vertex.model_registry else []
    absent: State = "broken" if needed_by else "missing"
    why = f"needed for {', '.join(needed_by)}" if needed_by else "only for gs:// and Vertex AI"
    remedy = f"{why}: gcloud auth application-default login, or set {FILE_VARIABLE} to a key file"
    check, found = Check("Google credentials", absent, "none", remedy), None
    try:
        found = find_credentials()
    except DataError as error:
        check = check._replace(found=str(error))
    yield check if found is None else Check("Google credentials", "ok", found.source)
    project = config.run.vertex.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or (found and found.project)
    if project:
        yield Check("Vertex AI project", "ok", project)
    else:
        yield Check("Vertex AI project", "missing", "none", "only for Vertex AI: set run.vertex.project")


def _check_variables(config: Config) -> Iterator[Check]:
    """Checks the environment variables that hold the secrets of other services."""
    variables = {"run.metadata.password_env": config.run.metadata.password_env}
    if config.run.kubeflow.credentials == "token":
        variables["run.kubeflow.credentials = token"] = TOKEN_VARIABLE
    for key, name in variables.items():
        if name is not None and os.environ.get(name):
            yield Check(name, "ok", f"set, for {key}")
        elif name is not None:
            yield Check(name, "broken", f"empty, but {key} needs it", f"export {name}=...")
