"""What `setup.py` builds for Beam workers and images."""

import ast
import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from schemas.program import EXTRAS, VERSION
from tests.test_architecture import imported, sources
from tests.wheel import build_wheel

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("package") / "build"))


def test_it_holds_the_rooms_and_their_data_but_no_tests(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"pipeline_runner.py", "schemas/records.pbtxt", "pipelines/configs/default.yaml"} <= names
    assert {"components/coco_evaluator/executor.py", "detection/reports/dataset/report.html.j2"} <= names
    assert {"detection/reports/html/base.html.j2", "detection/reports/html/style.css"} <= names
    assert not [name for name in names if name.startswith("tests")]


@pytest.fixture(scope="module")
def requirements(wheel: zipfile.ZipFile) -> list[Requirement]:
    """What the wheel requires, extras included."""
    (path,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = Parser().parsestr(wheel.read(path).decode())
    assert (metadata["Name"], metadata["Version"]) == ("cocoflow", VERSION)
    assert set(metadata.get_all("Provides-Extra", [])) == {*EXTRAS, "gpu"}
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def _here(requirements: Iterable[Requirement], extras: Iterable[str]) -> list[Requirement]:
    """The requirements with these extras on this Python."""
    return [one for one in requirements if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]


def _installed_with(requirements: list[Requirement]) -> set[str]:
    """Names of the packages that an installer adds for these requirements."""
    waiting, names = list(requirements), set[tuple[str, str]]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        for extra in {"", *one.extras} - {extra for known, extra in names if known == name}:
            names.add((name, extra))
            texts = importlib.metadata.requires(name) or []
            waiting += _here(map(Requirement, texts), [extra])
    return {name for name, _ in names}


def test_the_lock_has_what_the_wheel_requires(requirements: list[Requirement]) -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [Requirement(line.rstrip("\\ ")) for line in lines if line[:1].isalnum()]
    locked = {pin.name: str(pin.specifier).removeprefix("==") for pin in _here(pins, [""])}
    for requirement in _here(requirements, ["", *EXTRAS, "gpu"]):
        assert requirement.specifier.contains(locked[requirement.name]), requirement


def test_the_wheel_requires_what_its_modules_import(requirements: list[Requirement]) -> None:
    modules = {
        name.split(".")[0]
        for path, source in sources().items()
        if not path.startswith("benchmarks/")
        for _, name in imported(path, ast.walk(ast.parse(source)))
    }
    of_extras = {module for modules in EXTRAS.values() for module in modules}
    providers = importlib.metadata.packages_distributions()
    for extra in ["", *EXTRAS]:
        wanted = set(EXTRAS[extra]) if extra else modules - of_extras - sys.stdlib_module_names
        installed = _installed_with(_here(requirements, {"", extra})) | {"cocoflow"}
        for module in wanted & set(providers):
            assert {canonicalize_name(name) for name in providers[module]} & installed, (extra, module)


def test_without_a_dependency_or_an_extra_one_line_says_what_to_install(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    plain = [sys.executable, "-E", "-S", str(tmp_path / "pipeline_runner.py"), "--help"]
    done = subprocess.run(plain, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No module named ")
    assert done.stderr.endswith(f"`pip install cocoflow-{VERSION}-py3-none-any.whl`.\n")
    without = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules.update(dict.fromkeys({[*EXTRAS["tfx"], *EXTRAS["onnx"]]}))
import pipeline_runner
keys = ["--set", "run.image=image", "--set", "run.root=gs://b/r"]
for command in (
    ["run", "--data", "data"],
    ["compile", "--runner", "vertex", "--output", "p.json", "--data", "gs://b/d", *keys],
    ["export", "--model", "model", "--format", "onnx", "--output", "out"],
):
    assert pipeline_runner.main(command)"""
    done = subprocess.run([sys.executable, "-c", without], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for line, extra in zip(lines, [*2 * ["tfx"], "onnx"], strict=True):
        assert line.startswith("error: ")
        assert line.endswith(f"`uv pip install 'cocoflow-{VERSION}-py3-none-any.whl[{extra}]'`.")


def test_the_lock_is_hashed_and_names_no_host() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(pinned) > 100
    assert all("==" in line and line.endswith("\\") for line in pinned)
    assert all(line.strip().startswith("--hash=sha256:") for line in lines if line.startswith(" "))
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    for version in ("< '3.12'", ">= '3.12'"):
        assert any(line.startswith("tfx==") and version in line for line in pinned)
