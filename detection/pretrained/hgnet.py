"""ImageNet weights of HGNetV2, in timm's safetensors files and PaddleClas' as D-FINE's authors converted them."""

from pathlib import Path
from typing import Any

import numpy as np

from detection.interop.dfine.files import read_state_dict
from detection.interop.dfine.names import original_name
from detection.models.backbones.hgnet import HGNetV2
from schemas.errors import DataError

FIRST = "stem.stem1"  # name of the first layer
_PREFIX = "backbone."


def hgnet_values(backbone: HGNetV2, file: Path) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """Returns each variable and its value by the file's name, and names of tensors without a counterpart.

    Args:
        backbone: built HGNetV2.
        file: flat state dictionary, `.safetensors` or `.pth`.

    Raises:
        DataError: the file cannot be read, or belongs to another network.
    """
    tensors = read_state_dict(file)
    values = {}
    for variable in backbone.variables:
        name = original_name(variable.path).removeprefix(_PREFIX)
        value = tensors.get(name)
        if value is not None and value.ndim == 4:
            value = np.transpose(value, (2, 3, 0, 1) if "depthwise" in variable.path else (2, 3, 1, 0))
        if value is None or value.shape != tuple(variable.shape) or not np.isfinite(value).all():
            reason = "missing" if value is None else f"of shape {value.shape}, or not finite"
            raise DataError(
                f"{file}: not weights of {backbone.name}: {name} is {reason}; {variable.path} has shape "
                f"{tuple(variable.shape)}. Set model.backbone_weights to a file of this backbone, or to imagenet."
            )
        values[name] = (variable, value)
    unused = [name for name in tensors if name not in values and not name.endswith("num_batches_tracked")]
    return values, unused
