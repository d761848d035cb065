"""Schemas and generated code of the mediapipe wheel, without importing the package, which loads TensorFlow."""

import importlib.util
from pathlib import Path
from types import ModuleType


def folder() -> Path:
    """The folder of the schemas."""
    spec = importlib.util.find_spec("mediapipe")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "tasks/metadata"


def generated_code(name: str) -> ModuleType:
    """The classes that flatbuffers' compiler makes of a schema."""
    spec = importlib.util.spec_from_file_location(name, folder() / f"{name}_py_generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
