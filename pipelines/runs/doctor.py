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

from packaging.requirements import Requirement

from detection.storage.gcs.client import FILE_VARIABLE, find_credentials
from detection.storage.paths import is_remote
from pipelines.folders import RunLayout
from pipelines.runners.kubeflow_connection import TOKEN_VARIABLE
from pipelines.tables import print_table
from schemas.config.config import Config
from schemas.config.run import ACCELERATOR_VARIABLE
from schemas.errors import DataError
from schemas.program import (
    EXTRAS,
    LOCK,
    PROGRAM,
    SOURCE_TREE,
    install_command,
    install_hint,
    is_locked,
    own_distribution,
)
from schemas.quoting import one_line, shortened

_PACKAGES = ("cocoflow", "tensorflow", "keras", "tfx", "apache-beam", "kfp")
_CUDA = "nvidia-"  # packages that only environments for GPUs have
_GOOGLE, _VERTEX = "Google credentials", "Vertex AI project"
_CLOUDS = (_GOOGLE, _VERTEX)
_MEMINFO = Path("/proc/meminfo")
_GIGABYTE = 1e9
_MIN_MEMORY = 3e9  # bytes that a process with TFX and a small training takes
_MIN_DISK = 2e9  # bytes of the records, checkpoints and model of a small run

State = Literal["ok", "missing", "broken"]

_LONGEST = 300  # characters of a cell


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
        lock: requirements.lock to compare with; None: the lock by which environment.sh made the environment.

    Raises:
        ConfigError: `run.root` or `push.directory` is not supported.
    """
    return [
        *_check_versions(),
        *_check_packages(_find_lock() if lock is None else lock),
        *_check_devices(config),
        *_check_memory(),
        *_check_disk(config),
        *_check_google_credentials(config),
        *_check_variables(config),
    ]


def print_checks(checks: Sequence[Check]) -> None:
    """Prints the checks as tables on stdout: what a run needs, and what is only for GPUs or clouds."""
    colors = {"ok": "green", "missing": "yellow", "broken": "red"}
    titles = {check.subject: _title(check) for check in checks}
    for title in dict.fromkeys(["", *titles.values()]):
        rows = [
            check._replace(found=shortened(check.found, _LONGEST), remedy=shortened(check.remedy, _LONGEST))
            for check in checks
            if titles[check.subject] == title
        ]
        if rows:
            print_table(("check", "state", "found", "remedy"), rows, colors, title=title)


def _title(check: Check) -> str:
    """Returns the title of the table for what other configurations need; what this one needs has none."""
    if check.state == "broken":
        return ""
    if ".so." in check.subject:
        return "Only for GPUs"
    return "Only for clouds" if check.subject in _CLOUDS else ""


def _check(subject: str, found: str, remedy: str, *, fails: bool, state: State = "broken") -> Check:
    """Returns a check that is ok unless it fails; then its state is the given one, and its remedy counts."""
    return Check(subject, state, found, remedy) if fails else Check(subject, "ok", found)


def _check_versions() -> Iterator[Check]:
    yield _check("python", platform.python_version(), "use 3.11", fails=sys.version_info < (3, 11))
    for name in _PACKAGES:
        version = _installed_version(name)
        # An environment of environment.sh has all extras; elsewhere, an extra is the user's choice.
        optional = name in EXTRAS["tfx"] and not is_locked()
        hint = f"only for pipelines: {install_command('tfx')}" if optional else install_hint(name)
        state: State = "missing" if optional else "broken"
        yield _check(name, version or "not installed", hint, fails=version is None, state=state)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_lock() -> Path | None:
    """Returns the lock of the source tree, or the image's; None: environment.sh did not make the environment."""
    folders = (SOURCE_TREE, Path(sys.prefix))
    return next((folder / LOCK for folder in folders if (folder / LOCK).is_file()), None) if is_locked() else None


def _check_packages(lock: Path | None) -> Iterator[Check]:
    """Compares installed packages with the lock, or with the requirements of Cocoflow itself."""
    if lock is not None:
        yield from _check_lock(lock)
        return
    yield from _check_requirements()
    advice = "optional: the tested versions are those of the lock, see docs/installation.md"
    yield Check(LOCK, "missing", "not compared: this environment was not made by environment.sh", advice)


def _check_requirements() -> Iterator[Check]:
    """Compares installed packages with the metadata of the installed Cocoflow."""
    own = own_distribution()
    if own is None:
        yield Check("requirements", "missing", f"{PROGRAM} is not installed", install_command())
        return
    requirements = [Requirement(text) for text in own.requires or ()]
    checked = _of_extra(requirements, "")
    wrong = False
    for extra in ("", *EXTRAS):
        added = [one for one in _of_extra(requirements, extra) if one not in checked or not extra]
        # An extra is the user's choice: one that is not installed has no requirements.
        if extra and not all(_installed_version(one.name) for one in added):
            continue
        for one in added:
            version = _installed_version(one.name)
            if version is None or not one.specifier.contains(version, prereleases=True):
                wrong = True
                found = f"{version or 'not installed'}; required: {one.specifier or 'any version'}"
                yield Check(one.name, "broken", found, install_command(extra))
    if not wrong:
        yield Check("requirements", "ok", f"all {len(checked)} required packages have versions that {PROGRAM} takes")


def _of_extra(requirements: Sequence[Requirement], extra: str) -> list[Requirement]:
    return [one for one in requirements if not one.marker or one.marker.evaluate({"extra": extra})]


def _check_lock(lock: Path) -> Iterator[Check]:
    """Compares installed packages with the lock; the lock decides by its markers which ones belong here."""
    pins = [Requirement(line.rstrip("\\ ")) for line in lock.read_text().splitlines() if line[:1].isalnum()]
    locked = {
        pin.name: str(pin.specifier).removeprefix("==") for pin in pins if not pin.marker or pin.marker.evaluate()
    }
    installed = {name: version for name in locked if (version := _installed_version(name)) is not None}
    if not any(name.startswith(_CUDA) for name in installed):
        locked = {name: version for name, version in locked.items() if not name.startswith(_CUDA)}
    different = [name for name, version in locked.items() if installed.get(name) != version]
    for name in different:
        found = f"{installed.get(name, 'not installed')}; locked: {locked[name]}"
        yield Check(name, "broken", found, install_command())
    if not different:
        yield Check(LOCK, "ok", f"all {len(locked)} packages have the locked versions")


def _check_devices(config: Config) -> Iterator[Check]:
    try:
        import tensorflow as tf
    except (ImportError, OSError) as error:
        yield Check("devices", "broken", f"TensorFlow cannot be imported: {one_line(error)}", install_command())
        return
    from detection.devices import (
        DRIVER_LIBRARIES,
        describe_devices,
        has_gpu,
        load_gpu_libraries,
        no_gpu_reason,
        unsupported_gpus,
    )

    libraries = load_gpu_libraries()
    sees_gpu = bool(tf.config.list_physical_devices("GPU"))
    # A GPU that TensorFlow does not see would be idle while the CPU trains.
    wanted = config.train.strategy == "mirrored" or ACCELERATOR_VARIABLE in os.environ or has_gpu()
    broken: State = "broken" if wanted else "missing"
    reason = unsupported_gpus() if sees_gpu else f"no GPU: {no_gpu_reason()}" if wanted else None
    yield _check("devices", reason or describe_devices(), "docs/gpu.md", fails=reason is not None)
    install = f"only for GPUs: {install_command('gpu')}, see docs/gpu.md"
    for name, error in libraries.items():
        remedy = "only for GPUs: install NVIDIA's driver" if name in DRIVER_LIBRARIES else install
        message = "loads" if error is None else error.removeprefix(f"{name}: ")
        yield _check(name, message, remedy, fails=error is not None, state="missing" if sees_gpu else broken)


def _check_memory() -> Iterator[Check]:
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    found = f"{available / _GIGABYTE:.1f} of {total / _GIGABYTE:.1f} GB available"
    remedy = f"a run takes at least {_MIN_MEMORY / _GIGABYTE:.0f} GB: end programs"
    yield _check("memory", found, remedy, fails=available < _MIN_MEMORY)


def _check_disk(config: Config) -> Iterator[Check]:
    root = RunLayout(config).root
    places = {"temporary files": tempfile.gettempdir()} | ({} if is_remote(root) else {"run.root": root})
    for subject, place in places.items():
        folder = next(one for one in (Path(place), *Path(place).parents) if one.is_dir())
        free = shutil.disk_usage(folder).free
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Check(subject, "broken", f"{place}: {folder} is not writable", "choose another folder")
        else:
            found = f"{place}: {free / _GIGABYTE:.1f} GB free"
            remedy = f"a run takes at least {_MIN_DISK / _GIGABYTE:.0f} GB: free space"
            yield _check(subject, found, remedy, fails=free < _MIN_DISK)


def _check_google_credentials(config: Config) -> Iterator[Check]:
    """Checks that there are credentials, not that Google accepts them."""
    paths = [config.run.root, config.data.root, config.push.directory]
    needed_by = [path for path in paths if path and is_remote(path)]
    needed_by += ["run.vertex.project"] if config.run.vertex.project else []
    needed_by += ["push.vertex.model_registry"] if config.push.vertex.model_registry else []
    absent: State = "broken" if needed_by else "missing"
    why = f"needed for {', '.join(needed_by)}" if needed_by else "only for gs:// and Vertex AI"
    remedy = f"{why}: gcloud auth application-default login, or set {FILE_VARIABLE} to a key file"
    try:
        found = find_credentials()
        message = "none" if found is None else found.source
    except DataError as error:
        found, message = None, str(error)
    yield _check(_GOOGLE, message, remedy, fails=found is None, state=absent)
    project = config.run.vertex.project or os.environ.get("GOOGLE_CLOUD_PROJECT") or (found and found.project)
    only = "only for Vertex AI: set run.vertex.project"
    yield _check(_VERTEX, project or "none", only, fails=not project, state="missing")


def _check_variables(config: Config) -> Iterator[Check]:
    """Checks the environment variables that hold the secrets of other services."""
    if config.run.kubeflow.credentials == "token":
        name, key = TOKEN_VARIABLE, "run.kubeflow.credentials = token"
        found = f"set, for {key}" if os.environ.get(name) else f"empty, but {key} needs it"
        yield _check(name, found, f"export {name}=...", fails=not os.environ.get(name))
