"""Who opens, lists, renames or locks paths: `detection/storage/`, and modules whose paths are surely local."""

import ast
import re

import pytest

from tests.test_architecture import sources

STORAGE = "detection/storage/"
_METHODS = """
open read_text write_text read_bytes write_bytes iterdir glob rglob exists is_file is_dir is_symlink stat lstat unlink
rename mkdir rmdir touch symlink_to hardlink_to samefile resolve chmod
"""
METHODS = set(_METHODS.split())
FUNCTIONS = {
    "os": METHODS
    | {"listdir", "scandir", "remove", "replace", "makedirs", "walk", "link", "symlink", "utime", "access"},
    "os.path": {"exists", "isdir", "isfile", "islink", "getsize", "getmtime", "realpath", "samefile"},
    "io": {"open"},
}
MODULES = ("shutil", "tempfile", "fcntl", "tf.io.gfile", "tensorflow.io.gfile", "fileio", "filesystems")

# Module -> why its paths are local for sure: its own files, temporary ones, or copies that storage made.
LOCAL_ONLY = {
    "components/detection_trainer/executor.py": "a local working folder, and new folders that storage yields",
    "components/detection_trainer/working_folder.py": "a training's local working folder, and copies that storage made",
    "components/saved_model_pusher/serving_program.py": "the result file of a process that imports nothing of ours",
    "components/saved_model_pusher/validate.py": "a temporary folder for the result of a process",
    "detection/datasets/annotations/annotation_scan.py": "copies that storage made",
    "detection/datasets/annotations/annotation_file.py": "copies that storage made",
    "detection/datasets/annotations/coco_writer.py": "a temporary folder for a file that storage moves to its place",
    "detection/datasets/demo_data.py": "writes the demo's data set on this machine",
    "detection/datasets/annotations/json_stream.py": "copies that storage made",
    "detection/datasets/readers/coco_files.py": "copies that storage made",
    "detection/datasets/readers/converted.py": "names the folder for temporary files",
    "detection/devices.py": "a file of the kernel",
    "detection/images/files.py": "local images, whose links must not lead out of their folder; storage reads others",
    "detection/export/litert.py": "a temporary folder for the conversion process",
    "detection/export/client.py": "runs alone, without the package",
    "detection/export/model_description.py": "a module of the package",
    "detection/input_pipeline/record_index.py": "copies that storage made, and a temporary file",
    "detection/input_pipeline/record_reader.py": "names the folder for temporary files",
    "detection/pretrained/detectors.py": "a new folder that storage yields",
    "detection/pretrained/efficientnet_lite.py": "a file of an installed package, or a copy that storage made",
    "detection/weights/torch_file.py": "a file of an installed package, or a copy that storage made",
    "detection/pretrained/imagenet.py": "Keras' own cache of downloads",
    "components/record_schema_gen/component.py": "the package's own schema",
    "detection/reports/html/render.py": "templates of the package",
    "detection/web/archives.py": "a local cache",
    "detection/web/downloads.py": "files in that cache, or in a temporary folder",
    "detection/training/build_run.py": "a training's local working folder",
    "detection/training/checkpoints/files.py": "checkpoints in the run's working folder",
    "detection/training/checkpoints/manager.py": "checkpoints in the run's working folder",
    "detection/training/memory.py": "a file of the kernel",
    "detection/training/monitoring/nonfinite.py": "a training's local working folder",
    "detection/training/validation/follow.py": "the local working folder of `follow`",
    "detection/training/validation/history.py": "a training's local working folder",
    "pipelines/__init__.py": "configurations of the package",
    "pipelines/console.py": "the log, which storage uploads",
    "pipelines/cuda_libraries.py": "libraries of the environment",
    "pipelines/runs/execute.py": "artifacts in a local run.root",
    "pipelines/runs/run_log.py": "the log, which storage uploads",
    "pipelines/runs/doctor.py": "the lock of the environment, files of the kernel, and free space",
    "detection/datasets/importers/to_coco.py": "a new folder that storage yields; whether a local folder is in another",
    "pipelines/runs/train_alone.py": "copies that storage made, and a new folder that it yields",
    "schemas/program.py": "the program's own files",
    "schemas/config/config_io.py": "a local configuration; `detection.config_files` reads remote ones",
}


def path_calls(source: str) -> list[str]:
    """`line: call` of everything in a module that touches a file system by itself."""
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("detection.storage")
        for alias in node.names
    }
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [f"{call.lineno}: {ast.unparse(call.func)}" for call in calls if _touches(call.func, ours)]


def _touches(function: ast.expr, ours: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    base, name = ast.unparse(function.value), function.attr
    if base in ours or base in ("Image", "PIL.Image"):
        return False
    if base in FUNCTIONS:
        return name in FUNCTIONS[base]
    if any(base == module or base.endswith(f".{module}") for module in MODULES):
        return True
    return name in METHODS and base not in ("np", "re")


@pytest.fixture(scope="module")
def callers() -> dict[str, list[str]]:
    """Module -> its calls, of all modules that have some; benchmarks and storage left out."""
    modules = {
        path: path_calls(source) for path, source in sources().items() if not path.startswith((STORAGE, "benchmarks/"))
    }
    return {path: calls for path, calls in modules.items() if calls}


def test_nothing_else_touches_paths(callers: dict[str, list[str]]) -> None:
    unlisted = {path: calls for path, calls in callers.items() if path not in LOCAL_ONLY}
    assert unlisted == {}, "use detection.storage, or say in LOCAL_ONLY why the paths are local"


def test_the_table_names_modules_that_need_it(callers: dict[str, list[str]]) -> None:
    assert set(LOCAL_ONLY) - set(callers) == set()


def test_only_one_package_knows_the_client_library() -> None:
    pattern = re.compile(r"^\s*(from|import) google\.(cloud import storage|cloud\.storage|auth|api_core)", re.MULTILINE)
    users = {path for path, source in sources().items() if pattern.search(source)}
    others = {path for path in users if not path.startswith(f"{STORAGE}gcs/")}
    vertex = {"components/vertex_errors.py", "pipelines/runners/vertex.py"}
    assert others == vertex, "they know the libraries' errors and credentials, and nothing of storage"


@pytest.mark.parametrize(
    "call",
    [
        *("open(path)", "io.open(path)", "os.open(path, 0)", "os.path.isfile(path)", "shutil.rmtree(path)"),
        *("Path(path).read_text()", "(folder / 'x').is_file()", "tf.io.gfile.GFile(path)", "fileio.listdir(path)"),
        *("tempfile.mkdtemp()", "fcntl.flock(file, 1)", "os.replace(a, b)", "path.open('rb')"),
    ],
)
def test_a_call_that_touches_a_path_is_caught(call: str) -> None:
    assert len(path_calls(f"def f():\n    {call}")) == 1


@pytest.mark.parametrize(
    "source",
    [
        *("Image.open(io.BytesIO(x))", "os.getpid()", "os.path.join(a, b)", "np.open(x)", "x.replace('a', 'b')"),
        "from detection.storage import files\nfiles.exists(path)",
        "from detection.storage.files import is_file\nis_file(path)",
    ],
)
def test_other_calls_are_not(source: str) -> None:
    assert path_calls(source) == []
