"""Other programs whose configurations and checkpoints can be read, by name."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from detection.storage.files import is_file, read_bytes
from schemas.errors import ConfigError
from schemas.limits import MAX_CONFIG

if TYPE_CHECKING:
    from detection.interop.conversion import Conversion
    from detection.weights.checkpoint_format import CheckpointFormat

# Titles by name; `detection/interop/NAME/program.py`, with _ for -, defines a `PROGRAM`.
PROGRAMS = {
    "automl": "google/automl's EfficientDet",
    "dfine": "D-FINE, DEIM and RT-DETRv4",
    "od-api": "the TF Object Detection API",
    "tpu-mask-rcnn": "TPU Mask R-CNN",
}
CONFIGURED = tuple(name for name in PROGRAMS if name != "dfine")  # whose configurations can be read


class Program(NamedTuple):
    """A program whose checkpoints, and mostly configurations, can be read.

    convert: converts the text of a configuration; `where` is its file, for errors; None: it reads none.
    formats: formats of its checkpoints, one per family of detectors.
    config_file: name of the configuration in the folder of a checkpoint, or in the folder around it; None: the
        program has no such file, and its configuration may also be `key=value,key=value`.
    """

    convert: "Callable[..., Conversion] | None"
    formats: "tuple[type[CheckpointFormat], ...]"
    config_file: str | None = None


def program_of(name: str) -> Program:
    """Returns one of `PROGRAMS`."""
    module = importlib.import_module(f"detection.interop.{name.replace('-', '_')}.program")
    program: Program = module.PROGRAM
    return program


def read_config_of(name: str, original: str, **options: Any) -> "Conversion":
    """Reads and converts a configuration.

    Args:
        name: one of `CONFIGURED`.
        original: a file, local or remote, or `key=value,key=value` if the program has no `config_file`.
        options: further arguments of the program's `convert`.

    Raises:
        ConfigError: not a configuration of the program, or a model that is not supported.
        DataError: the file cannot be read.
    """
    program = program_of(name)
    assert program.convert is not None
    if program.config_file is None and "=" in original and not is_file(original):
        return program.convert(original, **options)
    try:
        text = read_bytes(original, MAX_CONFIG).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{original}: not a text file: {error}. Check the path.") from None
    return program.convert(text, where=original, **options)
