"""ImageNet weights of HGNetV2, in timm's safetensors files and PaddleClas' as D-FINE's authors converted them."""

from pathlib import Path
from typing import Any

import numpy as np

from detection.interop.dfine.checkpoint import variable_source
from detection.interop.dfine.files import read_state_dict
from detection.models.backbones.hgnet import HGNetV2
from schemas.errors import DataError


def hgnet_values(backbone: HGNetV2, file: Path) -> tuple[dict[str, Any], list[str]]:
    """Returns the values of all variables by path, and names of tensors without a counterpart.

    Args:
        backbone: built HGNetV2.
        file: flat state dictionary, `.safetensors` or `.pth`.

    Raises:
        DataError: the file cannot be read, or belongs to another network.
    """
    tensors, values, used = read_state_dict(file), {}, set()
    for variable in backbone.variables:
        source = variable_source(variable.path, tuple(variable.shape))
        [name], [shape] = ([one.removeprefix("backbone.") for one in source.names], source.shapes)
        value = tensors.get(name)
        if value is None or value.shape != shape or not np.isfinite(value).all():
            reason = "missing" if value is None else f"of shape {value.shape}, or not finite"
            raise DataError(
                f"{file}: not weights of {backbone.name}: {name} is {reason}; expected is the shape {shape}. Set "
                "model.backbone_weights to a file of this backbone, or to imagenet."
            )
        values[variable.path] = source.convert(value)
        used.add(name)
    unused = [name for name in tensors if name not in used and not name.endswith("num_batches_tracked")]
    return values, unused
