"""Fixtures that every room's tests share."""

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import pytest
from hypothesis import settings

from tests.browser import Browser, find_browser, running_browser
from tests.detection.export.mediapipe.detector_process import Detect, detect, missing_library
from tests.processor_time import ProcessorTime
from tests.storage_emulator.client import TENSORFLOW_ENVIRONMENT
from tests.storage_emulator.fixture import gcs, storage_emulator
from tests.vertex_service.fixture import vertex, vertex_over_rest
from tests.wheel import build_wheel, make_environment

__all__ = ["gcs", "storage_emulator", "vertex", "vertex_over_rest"]  # fixtures

os.environ.update(TENSORFLOW_ENVIRONMENT)
# No test fetches weights, or finds those that this machine has: `auto` is the same everywhere.
os.environ.update(COCOFLOW_OFFLINE="1", COCOFLOW_WEIGHTS=os.devnull, KERAS_HOME=os.devnull)
# Tables and help do not depend on the terminal in which the tests run.
os.environ["COLUMNS"] = "80"
# Whether a step compiles, and to what, is tested; how fast the code is, is not: optimizing it takes twice as long.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# Imported once, not by each process that converts a model: that takes five times as long as the conversion.
multiprocessing.set_forkserver_preload(["detection.export.litert"])

# An example's time is the machine's affair: on two busy cores Hypothesis' deadline of 200 ms fails at random.
settings.register_profile("cocoflow", deadline=None)
settings.load_profile("cocoflow")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_configure(config: pytest.Config) -> None:
    """Adds what the tests cost to the summary."""
    config.pluginmanager.register(ProcessorTime())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first: started last, one of them would leave the other worker idle."""
    files = {mark: {item.path for item in items if item.get_closest_marker(mark)} for mark in ("e2e", "slow")}
    items.sort(key=lambda item: (item.path not in files["e2e"], item.path not in files["slow"]))


def pytest_collection_finish() -> None:
    """Leaves what was imported to the end of the process: going through it again and again took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 3)
    if "apache_beam.transforms.core" in sys.modules:
        _remember_signatures(sys.modules["apache_beam.transforms.core"])


def _remember_signatures(beam: Any) -> None:
    """Makes Beam read the signature of a method once: it does so thousands of times for each pipeline."""
    read, known = beam.get_function_args_defaults, WeakKeyDictionary[Any, tuple[list[str], list[Any]]]()

    def args_and_defaults(function: Any) -> tuple[list[str], list[Any]]:
        if not isinstance(function, MethodType):
            return read(function)
        if function.__func__ not in known:
            known[function.__func__] = read(function)
        args, defaults = known[function.__func__]
        return list(args), list(defaults)

    beam.get_function_args_defaults = args_and_defaults


def _shared(folder: str) -> Path:
    path = SHARED / folder
    if not path.is_dir():
        pytest.skip(f"{path} is absent: real data and oracle numbers lie beside the project, not in it")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets; skips where it is absent."""
    return _shared("data")


@pytest.fixture(scope="session")
def oracle_dir() -> Path:
    """Folder of oracle files; skips where it is absent."""
    return _shared("oracles")


@pytest.fixture(scope="session")
def oracles(oracle_dir: Path) -> dict[str, dict[str, Any]]:
    """Entries of oracles.json by id."""
    entries = json.loads((oracle_dir / "oracles.json").read_text())["oracles"]
    return {entry["id"]: entry for entry in entries}


def _miss(reason: str) -> NoReturn:
    """Skips a test that needs a program of Debian's; CI installs them, and so fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless browser; without one installed it skips, and under CI fails."""
    program = find_browser()
    if program is None:
        _miss("no browser to open pages in: run `make browser` as root, or install chromium")
    with running_browser(program) as running:
        yield running


@pytest.fixture(scope="session")
def mediapipe_detect() -> Detect:
    """`detector_process.detect`; without the libraries of MediaPipe it skips, and under CI fails."""
    library = missing_library()
    if library is not None:
        _miss(f"no {library}, which MediaPipe loads: run `make mediapipe` as root, or install it")
    return detect


@pytest.fixture(scope="session")
def installed_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of an environment in which the built wheel is installed, made before any proxy is set."""
    folder = tmp_path_factory.mktemp("installed")
    return make_environment(folder / "environment", build_wheel(folder / "build"))
