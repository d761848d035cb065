"""The programs whose configurations can be converted, by name."""

from collections.abc import Callable
from typing import Any

from detection.conversion.automl import convert_automl
from detection.conversion.conversion import Conversion
from detection.conversion.od_api import convert_pipeline_config
from detection.conversion.tpu_mask_rcnn import convert_tpu_mask_rcnn
from detection.storage.files import is_file, read_bytes
from schemas.errors import ConfigError
from schemas.limits import MAX_CONFIG

_CONVERT: dict[str, Callable[..., Conversion]] = {
    "od-api": convert_pipeline_config,
    "automl": convert_automl,
    "tpu-mask-rcnn": convert_tpu_mask_rcnn,
}


def read_config_of(program: str, original: str, **options: Any) -> Conversion:
    """Reads and converts a configuration.

    Args:
        program: `od-api`, `automl` or `tpu-mask-rcnn`.
        original: a file, local or remote; of the last two also `key=value,key=value`.
        options: arguments of the program's function.

    Raises:
        ConfigError: not a configuration of the program, or a model that is not supported.
        DataError: the file cannot be read.
    """
    if program != "od-api" and "=" in original and not is_file(original):
        return _CONVERT[program](original, **options)
    try:
        text = read_bytes(original, MAX_CONFIG).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{original}: not a text file: {error}. Check the path.") from None
    return _CONVERT[program](text, where=original, **options)
