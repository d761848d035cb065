"""The shape of the house, read from the syntax trees: nothing is imported here but the contracts."""

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from schemas import artifacts, features

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pipeline_runner", "pipelines", "components", "detection", "schemas")
# Package -> the packages that it may import; a module belongs to the longest name that begins its own.
# Each row may name rows above it only, so that there is no cycle.
ALLOWED_IMPORTS = {
    package: frozenset(allowed.split())
    for package, allowed in {
        "schemas": "",
        "schemas.config": "schemas",
        "detection.types": "",
        "detection.devices": "schemas schemas.config",
        "detection.storage": "schemas",
        "detection.web": "schemas detection.storage",
        "detection.config_files": "schemas schemas.config detection.storage",
        "detection.images": "schemas detection.storage",
        "detection.ops": "",
        "detection.datasets": "schemas schemas.config detection.storage detection.images",
        "detection.models": "schemas schemas.config detection.types detection.ops",
        "detection.input_pipeline": "schemas detection.types detection.storage detection.images detection.ops "
        "detection.datasets",
        "detection.weights": "schemas schemas.config detection.storage detection.datasets detection.models",
        "detection.interop": "schemas schemas.config detection.storage detection.models detection.weights",
        **dict.fromkeys(
            ("detection.interop.automl", "detection.interop.tpu_mask_rcnn"),
            "schemas detection.models detection.weights detection.interop",
        ),
        "detection.interop.od_api": "schemas schemas.config detection.models detection.weights detection.interop",
        "detection.interop.dfine": "schemas schemas.config detection.storage detection.models detection.weights "
        "detection.interop",
        "detection.pretrained": "schemas schemas.config detection.storage detection.web detection.models "
        "detection.weights detection.interop detection.interop.dfine",
        "detection.coco": "schemas detection.storage detection.datasets",
        "detection.analysis": "schemas schemas.config detection.storage detection.datasets detection.coco",
        "detection.export.mediapipe": "schemas",
        "detection.inference": "schemas schemas.config detection.types detection.storage detection.images "
        "detection.datasets detection.ops detection.input_pipeline detection.models detection.weights "
        "detection.pretrained detection.coco detection.export.mediapipe",
        "detection": "detection.inference",
        "detection.export": "schemas schemas.config detection.types detection.storage detection.images "
        "detection.datasets detection.ops detection.input_pipeline detection.models detection.weights "
        "detection.pretrained detection.coco detection.analysis detection.export.mediapipe detection.inference",
        "detection.reports": "schemas schemas.config detection.storage detection.images detection.datasets "
        "detection.coco detection.analysis",
        "detection.training.engine": "schemas schemas.config detection.ops detection.input_pipeline detection.models",
        "detection.training.distributed": "schemas detection.ops detection.models detection.training.engine "
        "detection.devices",
        "detection.training.initialization": "schemas schemas.config detection.datasets detection.models "
        "detection.weights detection.interop detection.pretrained detection.training.engine",
        "detection.training.checkpoints": "schemas schemas.config detection.storage detection.models detection.weights "
        "detection.training.engine",
        "detection.training.monitoring": "schemas detection.types detection.storage detection.images "
        "detection.datasets detection.input_pipeline detection.weights detection.training.engine "
        "detection.training.checkpoints",
        "detection.training.validation": "schemas schemas.config detection.storage detection.images "
        "detection.input_pipeline detection.models detection.coco detection.inference detection.analysis "
        "detection.reports detection.training.checkpoints",
        "detection.training": "schemas schemas.config detection.storage detection.input_pipeline detection.models "
        "detection.weights detection.pretrained detection.inference detection.export "
        "detection.training.engine detection.training.distributed detection.training.initialization "
        "detection.training.checkpoints detection.training.monitoring detection.training.validation "
        "detection.types detection.datasets detection.devices",
        "components.history": "schemas detection.storage",
        "components.stock": "components.history",
        "components.vertex_errors": "schemas",
        "components.record_schema_gen": "schemas detection.storage components.history",
        "components.coco_example_gen.spans": "schemas schemas.config detection.storage detection.web detection.images "
        "detection.datasets components.history",
        "components.beam": "schemas detection.storage",
        "components.coco_example_gen": "schemas schemas.config detection.storage detection.images detection.datasets "
        "detection.reports detection.training components.history components.beam components.coco_example_gen.spans",
        "components.detection_trainer": "schemas schemas.config detection.storage detection.datasets "
        "detection.config_files detection.input_pipeline detection.weights detection.pretrained "
        "detection.training.distributed detection.training.checkpoints detection.training.validation "
        "detection.training components.history components.coco_example_gen components.vertex_errors",
        "components.coco_evaluator": "schemas schemas.config detection.types detection.storage detection.images "
        "detection.datasets detection.input_pipeline detection.coco detection.inference detection.analysis "
        "detection.reports detection.pretrained detection.weights components.history components.beam "
        "components.coco_example_gen detection.devices",
        "components.saved_model_pusher": "schemas schemas.config detection.storage detection.datasets "
        "detection.inference detection.export detection.analysis components.history components.vertex_errors",
        "components.selection": "schemas schemas.config components.history components.coco_example_gen.spans "
        "components.detection_trainer",
        "components": "components.coco_example_gen components.detection_trainer components.coco_evaluator "
        "components.saved_model_pusher",
        "components.run_report": "schemas detection.storage detection.coco components.history",
        "pipelines": "schemas schemas.config detection.config_files detection.storage components.coco_example_gen "
        "components.detection_trainer components.coco_evaluator components.saved_model_pusher "
        "components.record_schema_gen components.beam components.stock components.selection components.run_report",
        "pipelines.runners": "detection.storage detection.pretrained schemas schemas.config "
        "components.vertex_errors components.beam pipelines",
        "pipelines.runs": "schemas schemas.config detection.storage detection.datasets detection.models "
        "detection.weights detection.coco detection.inference detection.export detection.training.distributed "
        "detection.training components.history components.beam components.coco_example_gen "
        "components.coco_example_gen.spans components.detection_trainer detection.devices pipelines.runners pipelines "
        "detection.analysis detection.reports detection.training.validation",
        "pipelines.commands": "schemas schemas.config detection.storage detection.web detection.config_files "
        "detection.datasets detection.interop detection.pretrained detection.coco detection.inference detection.export "
        "detection.export.mediapipe detection.reports detection.training.validation components.beam "
        "components.coco_example_gen components.coco_example_gen.spans components.detection_trainer "
        "components.coco_evaluator components.saved_model_pusher pipelines pipelines.runners pipelines.runs",
        "pipeline_runner": "schemas pipelines",
    }.items()
}
# Pieces that a reader can hold: lines of a file, lines of a function without its docstring, files of a package.
MOST_LINES, MOST_FUNCTION_LINES, MOST_FILES = 400, 60, 12
LARGE_PACKAGES = {
    "detection/reports/evaluation": 13,
    "detection/storage": 13,
    "pipelines/commands": 21,  # one for each command
    "schemas/config": 14,
}
# The library works without TFX installed, and without what TFX brings.
ORCHESTRATION = {
    "apache_beam",
    "kfp",
    "ml_metadata",
    "tensorflow_data_validation",
    "tensorflow_model_analysis",
    "tensorflow_transform",
    "tfx",
    "tfx_bsl",
}
# Seconds each; `--help` has less than two.
SLOW_TO_IMPORT = ORCHESTRATION | {"keras", "sklearn", "tensorflow"}
EXPORTED_PROGRAM = "detection/export/client.py"  # runs without the contracts
FEATURE_KEYS = {value for name, value in vars(features).items() if name.isupper()}
ARTIFACT_FILES = {value for name, value in vars(artifacts).items() if name.isupper() and "." in value}


def sources() -> dict[str, str]:
    """Path below the repository -> content, of every module of ours."""
    paths = [ROOT / "pipeline_runner.py"]
    for room in [*ROOMS, "benchmarks"]:
        paths.extend((ROOT / room).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


parsed = functools.cache(ast.parse)  # each rule walks each file


def room_of(path: str) -> str:
    return path.split("/", maxsplit=1)[0].removesuffix(".py")


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of all import statements; `from a import b` gives `a.b`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.split("/")[: -node.level]
                base = ".".join([*package, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: no function bodies, nothing for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from run_at_import(node)


def prefixes(name: str) -> list[str]:
    """`a.b.c`, `a.b` and `a` of `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def package_of(name: str) -> str | None:
    """The package of a module, or of something in it; None: nothing of ours."""
    return next((prefix for prefix in prefixes(name) if prefix in ALLOWED_IMPORTS), None)


def packages_imported(path: str, source: str) -> Iterator[tuple[int, str, str]]:
    """(line, name, its package) of all imports of our other packages."""
    for line, name in imported(path, ast.walk(parsed(source))):
        other = package_of(name)
        if other not in (None, package_of(module_name(path))):
            yield line, name, str(other)


def upward_imports(path: str, source: str) -> list[str]:
    """Imports between packages that `ALLOWED_IMPORTS` does not list; benchmarks may import everything."""
    package = package_of(module_name(path))
    return [
        f"{path}:{line} imports {name}: {package} may not import {other}"
        for line, name, other in packages_imported(path, source)
        if package is not None and other not in ALLOWED_IMPORTS[package]
    ]


def orchestration_imports(path: str, source: str) -> list[str]:
    if room_of(path) not in {"detection", "schemas"}:
        return []
    return [
        f"{path}:{line} imports {name}: {room_of(path)}/ works without it"
        for line, name in imported(path, ast.walk(parsed(source)))
        if name.split(".")[0] in ORCHESTRATION
    ]


def second_definitions(path: str, source: str) -> list[str]:
    """Feature keys, and paths that end in an artifact's file name, outside schemas/."""
    if room_of(path) == "schemas" or path == EXPORTED_PROGRAM:
        return []
    return [
        f"{path}:{node.lineno} spells {node.value!r}: use the constant in schemas/"
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (node.value in FEATURE_KEYS or node.value.split("/")[-1] in ARTIFACT_FILES)
    ]


def slow_help(files: dict[str, str]) -> list[str]:
    """Slow imports at module level in anything that the program's parsers pull in."""
    by_name = {module_name(path): path for path in files}
    waiting = ["pipeline_runner.py", *(path for path in files if path.startswith("pipelines/commands/"))]
    reached: set[str] = set()
    violations = []
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        # A module's packages are imported with it.
        for line, name in [(1, module_name(path)), *imported(path, run_at_import(parsed(files[path])))]:
            if name.split(".")[0] in SLOW_TO_IMPORT:
                violations.append(f"{path}:{line} imports {name} when --help does: import it where it is used")
            waiting.extend(by_name[prefix] for prefix in prefixes(name) if prefix in by_name)
    return violations


def too_large(path: str, source: str) -> list[str]:
    """The file itself, and its functions, above the limits of lines."""
    if room_of(path) == "benchmarks":
        return []
    lines = source.count("\n")
    large = [f"{path} has {lines} lines"] if lines > MOST_LINES else []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]
            if lines > MOST_FUNCTION_LINES:
                large.append(f"{path}:{node.lineno} {node.name} has {lines} lines")
    return large


def import_circle(files: dict[str, str]) -> list[str]:
    """Returns files each of which imports the one before, and the first one again at the end; []: there is no circle.

    Imports inside functions count, as they only hide a circle; those for type checkers do, as a reader follows them.
    """
    by_name = {module_name(path): path for path in files}
    graph: dict[str, set[str]] = {path: set() for path in files}
    for path, source in files.items():
        for _, name in imported(path, ast.walk(parsed(source))):
            module = next((prefix for prefix in prefixes(name) if prefix in by_name), None)
            if module is not None:
                graph[path] |= {by_name[module]} - {path}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return sources()


@pytest.mark.parametrize("check", [upward_imports, orchestration_imports, second_definitions, too_large])
def test_every_module_keeps_the_rule(files: dict[str, str], check) -> None:  # type: ignore[no-untyped-def]
    assert [violation for path, source in files.items() for violation in check(path, source)] == []


def test_a_package_has_few_files(files: dict[str, str]) -> None:
    packages = Counter(path.rpartition("/")[0] for path in files if not path.endswith("__init__.py"))
    del packages["benchmarks"]
    assert {package: count for package, count in packages.items() if count > MOST_FILES} == LARGE_PACKAGES


def test_help_imports_nothing_slow(files: dict[str, str]) -> None:
    assert slow_help(files) == []


def test_no_files_import_each_other(files: dict[str, str]) -> None:
    assert import_circle(files) == []


def test_the_table_has_no_cycle_and_no_row_without_a_module(files: dict[str, str]) -> None:
    packages = list(ALLOWED_IMPORTS)
    for number, (package, allowed) in enumerate(ALLOWED_IMPORTS.items()):
        assert allowed <= set(packages[:number]), package
    assert {package_of(module_name(path)) for path in files} - {None} == set(packages)


def test_every_import_that_the_table_allows_is_there(files: dict[str, str]) -> None:
    unused = {package: set(allowed) for package, allowed in ALLOWED_IMPORTS.items()}
    for path, source in files.items():
        if package := package_of(module_name(path)):
            unused[package] -= {other for _, _, other in packages_imported(path, source)}
    assert {package: names for package, names in unused.items() if names} == {}


def test_the_rooms_are_where_the_rules_look(files: dict[str, str]) -> None:
    assert {room_of(path) for path in files} >= set(ROOMS)
    assert "pipelines/commands/__init__.py" in files


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("schemas/config/config.py", "import detection.storage.atomic"),
        ("schemas/artifacts.py", "from schemas.config.section import Section"),
        ("detection/export/export.py", "from detection.training.engine.state import TrainState"),
        ("detection/reports/html/render.py", "import detection.input_pipeline.sample"),
        ("detection/export/export.py", "from components.coco_evaluator import executor"),
        ("detection/models/retinanet.py", "def build():\n    import components.coco_evaluator.executor"),
        ("components/coco_evaluator/executor.py", "from pipelines import baseline"),
        ("pipelines/pipeline.py", "from pipeline_runner import main"),
    ],
)
def test_an_upward_import_is_caught(path: str, source: str) -> None:
    assert len(upward_imports(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("pipelines/pipeline.py", "from components.coco_evaluator.component import CocoEvaluator"),
        ("detection/models/x.py", "from . import components\nfrom ..ops import boxes"),
        ("pipeline_runner.py", "import pipelines.console, schemas.errors, componentsx"),
        ("benchmarks/speed.py", "import pipeline_runner"),
    ],
)
def test_a_downward_import_is_not(path: str, source: str) -> None:
    assert upward_imports(path, source) == []


@pytest.mark.parametrize(
    "last",
    [
        *("import a.b.first", "from a.b import first", "from a.b.first import f", "from .b.first import f"),
        *("def f():\n    from a.b import first", "if TYPE_CHECKING:\n    from a.b.first import f"),
    ],
)
def test_a_circle_is_caught(last: str) -> None:
    chain = {"a/b/first.py": "from a.second import g", "a/second.py": "def g():\n    import a.last, os, a.second.x"}
    assert import_circle({**chain, "a/last.py": "from a.b import other"}) == []
    assert set(import_circle({**chain, "a/last.py": last})) == {*chain, "a/last.py"}


@pytest.mark.parametrize("source", ["import tfx.v1 as tfx", "def f():\n    from apache_beam import Map", "import kfp"])
def test_orchestration_in_the_library_is_caught(source: str) -> None:
    assert len(orchestration_imports("detection/data/reader.py", source)) == 1
    assert orchestration_imports("components/coco_evaluator/executor.py", source) == []


@pytest.mark.parametrize(
    "source", ["KEY = 'image/encoded'", "open(f'{folder}/metrics.json')", "x = {'config.yaml': 1}"]
)
def test_a_second_definition_is_caught(source: str) -> None:
    assert len(second_definitions("detection/export/export.py", source)) == 1
    assert second_definitions("schemas/features.py", source) == []


def test_a_docstring_that_mentions_a_file_is_not_one() -> None:
    assert second_definitions("detection/x.py", '"""Writes metrics.json beside it."""\nNAME = "image"') == []


@pytest.mark.parametrize(
    ("planted", "where"),
    [
        ({"pipeline_runner.py": "import tensorflow as tf"}, "pipeline_runner.py:1"),
        ({"pipelines/commands/train.py": "try:\n    from tfx import v1\nexcept ImportError:\n    pass"}, "train.py:2"),
        (
            {
                "pipelines/commands/train.py": "from detection.ops import losses",
                "detection/ops/losses.py": "import keras",
            },
            "losses.py",
        ),
        (
            {"pipelines/commands/train.py": "import detection.ops.losses", "detection/__init__.py": "import keras"},
            "__init__.py",
        ),
        ({"pipelines/__init__.py": "import apache_beam", "pipelines/commands/train.py": ""}, "pipelines/__init__.py:1"),
        (
            {"pipelines/commands/train.py": "from .common import f", "pipelines/commands/common.py": "import kfp"},
            "common.py:1",
        ),
    ],
)
def test_a_slow_help_is_caught(planted: dict[str, str], where: str) -> None:
    violations = slow_help({"pipeline_runner.py": "", **planted})
    assert len(violations) == 1
    assert where in violations[0]


def test_a_slow_import_where_it_is_used_is_fine() -> None:
    command = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras\ndef run():\n    import tfx"
    assert (
        slow_help({"pipeline_runner.py": "", "pipelines/commands/train.py": command, "detection/x.py": "import keras"})
        == []
    )
