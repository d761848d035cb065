import functools
import hashlib
import importlib
import socket
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import BACKBONES, EfficientNetLayout
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN, RESNETS, RESNETS_V2, ResNet, ResNetLayout, ResNetSpec
from detection.models.detector import Detector
from detection.pretrained import imagenet
from detection.pretrained.imagenet import find_weights_file, load_imagenet_weights
from schemas.errors import ConfigError, DataError
from tests.detection.training.tiny_detector import TinyConfig

SIDE = 64
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-2}
SHORT_RESNET = ResNetSpec((1, 1, 1, 1))


@pytest.fixture(autouse=True)
def _fetching_is_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keras' downloads are replaced in every test that would reach one."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))


@pytest.fixture(scope="module")
def theirs() -> keras.Model:
    """An EfficientNetB1 with random weights and statistics, its normalisation the identity, and a classifier."""
    model = keras.applications.EfficientNetB1(weights=None, input_shape=(SIDE, SIDE, 3))
    random = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            continue
        values = layer.get_weights()
        if isinstance(layer, keras.layers.BatchNormalization):
            values = [value + random.uniform(0.0, 0.3, value.shape) for value in values]
        layer.set_weights(values)
    return model


class _WithBackbone(Detector):
    """A detector of nothing but a backbone."""

    def __init__(self, backbone: EfficientNet | ResNet, pixel_mean: tuple[float, float, float] = (0.0, 0.0, 0.0)):
        config = TinyConfig(image_size=(SIDE, SIDE), pixel_mean=pixel_mean)
        super().__init__(config=config, num_classes=3, name="with-backbone")
        self.backbone = backbone
        self.backbone.build((None, None, None, 3))


@pytest.fixture
def short() -> _WithBackbone:
    """An EfficientNet-B0 of two stages."""
    spec = BACKBONES["efficientnet-b0"]
    return _WithBackbone(
        EfficientNet(spec=spec._replace(stages=spec.stages[:2]), batch_norm=BATCH_NORM, name="efficientnet-b0")
    )


@pytest.mark.parametrize(
    ("source", "layout", "levels"),
    [
        ("imagenet", "standard", ("block3c_add", "block5d_add", "block7b_add")),
        # Its levels are the blocks of B0's, and it has none after the last of them.
        ("classifier.h5", "od-api", ("block3b_add", "block5c_add", "block7a_project_bn")),
    ],
)
def test_feature_maps_equal(
    source: str,
    layout: EfficientNetLayout,
    levels: Sequence[str],
    theirs: keras.Model,
    tmp_path: Path,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the published file, and of a file of the whole classifier, with another epsilon than ours."""
    monkeypatch.chdir(tmp_path)
    _requests(monkeypatch, tmp_path / "b1.weights.h5")
    last = {"top_conv", "top_bn"}
    if source == "imagenet":
        keras.Model(theirs.input, theirs.get_layer("top_activation").output).save_weights("b1.weights.h5")
        batch_norm = BATCH_NORM | {"epsilon": 1e-3}
    else:
        theirs.save(source)
        batch_norm = BATCH_NORM
        last |= {"predictions", *(layer.name for layer in theirs.layers if "block7b" in layer.name and layer.weights)}
    backbone = EfficientNet(
        spec=BACKBONES["efficientnet-b1"], layout=layout, batch_norm=batch_norm, name="efficientnet-b1"
    )
    report = load_imagenet_weights(_WithBackbone(backbone), source)
    assert (report.source, len(report.loaded)) == (source, len(backbone.variables))
    assert {name for name in report.unused if not name.startswith("normalization")} == last
    assert f"{len(report.loaded)} tensors loaded" in str(report)

    images = np.random.default_rng(1).uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    expected = keras.Model(theirs.input, [theirs.get_layer(layer).output for layer in levels])(images)
    # Their input layers divide by 255 and, without ImageNet statistics, do no more.
    for our_level, their_level in zip(backbone(tf.constant(images / 255.0))[2:], expected, strict=True):
        np.testing.assert_allclose(our_level, their_level, atol=1e-4, rtol=1e-4)


def test_a_missing_file_is_refused(short: _WithBackbone, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.h5: no such weights file\. Set model\.backbone_weights"):
        load_imagenet_weights(short, str(tmp_path / "none.h5"))


@pytest.mark.parametrize("content", [b"no weights", None])
def test_an_invalid_file_is_refused(
    short: _WithBackbone, tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(*, weights: str, **_options: object) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
        model.load_weights(weights)  # as the functions of keras.applications do
        return model

    monkeypatch.setattr(keras.applications, "EfficientNetB0", network)
    path = tmp_path / "other.weights.h5"
    if content is None:
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save_weights(path)
    else:
        path.write_bytes(content)
    before = short.get_weights()
    with pytest.raises(DataError, match=r"other\.weights\.h5: not a weights file of .*EfficientNetB0"):
        load_imagenet_weights(short, str(path))
    for old, new in zip(before, short.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def _with_resnet(
    pixel_mean: tuple[float, float, float] = RESNET_PIXEL_MEAN,
    *,
    layout: ResNetLayout = "standard",
    spec: ResNetSpec = RESNETS["resnet-50"],
    name: str = "resnet-50",
) -> _WithBackbone:
    """A detector whose batch norm has another epsilon than keras.applications'."""
    return _WithBackbone(ResNet(spec=spec, layout=layout, batch_norm=BATCH_NORM, name=name), pixel_mean)


@pytest.fixture(scope="module")
def their_resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[keras.Model, str]:
    """A ResNet50 with random weights, biases and statistics, and its file."""
    model = keras.applications.ResNet50(weights=None, include_top=False, input_shape=(SIDE, SIDE, 3))
    random = np.random.default_rng(0)
    for layer in model.layers:
        values = layer.get_weights()
        if isinstance(layer, keras.layers.BatchNormalization):
            values = [value + random.uniform(0.0, 0.3, value.shape) for value in values]
        elif values:
            values = [values[0], random.uniform(-0.3, 0.3, values[1].shape)]
        layer.set_weights(values)
    path = tmp_path_factory.mktemp("resnet") / "resnet50.weights.h5"
    model.save_weights(path)
    return model, str(path)


def test_feature_maps_of_a_resnet_equal(their_resnet: tuple[keras.Model, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = their_resnet
    monkeypatch.setattr(imagenet, "_application", functools.cache(imagenet._application))  # reads the file once
    detector, shifted = _with_resnet(), _with_resnet((100.0, 120.0, 130.0))
    for ours in (detector, shifted):
        report = load_imagenet_weights(ours, file)
        assert (len(report.loaded), report.unused) == (len(ours.backbone.variables), ())

    pixels = np.random.default_rng(1).uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    names = ["conv1_relu", "conv2_block3_out", "conv3_block4_out", "conv4_block6_out", "conv5_block3_out"]
    outputs = keras.Model(model.input, [model.get_layer(name).output for name in names])
    theirs = outputs(keras.applications.resnet.preprocess_input(pixels.copy()))
    levels = detector.backbone(tf.constant((pixels - detector.pixel_mean) / detector.pixel_std, tf.float32))
    for our_level, their_level in zip(levels, theirs, strict=True):
        scale = np.abs(their_level).max()
        np.testing.assert_allclose(our_level / scale, their_level / scale, atol=1e-5)
    # With another mean, what the stem's windows see beyond the border differs.
    stem = shifted.backbone.stem(tf.constant((pixels - shifted.pixel_mean) / shifted.pixel_std, tf.float32))
    np.testing.assert_allclose(stem[:, 2:-2, 2:-2], theirs[0][:, 2:-2, 2:-2], atol=1e-3, rtol=1e-4)


def test_feature_maps_of_a_resnet_v2_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.applications.ResNet50V2(weights=None, include_top=False, input_shape=(SIDE, SIDE, 3))
    random = np.random.default_rng(0)
    for layer in model.layers:
        values = layer.get_weights()
        is_norm = isinstance(layer, keras.layers.BatchNormalization)
        layer.set_weights(
            [value + random.uniform(0.0, 0.3, value.shape) * (is_norm or value.ndim == 1) for value in values]
        )
    file = tmp_path / "resnet.weights.h5"
    model.save_weights(file)
    pixels = random.uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    names = ["conv1_conv", "conv2_block2_out", "conv3_block3_out", "conv4_block5_out", "post_relu"]
    theirs = keras.Model(model.input, [model.get_layer(name).output for name in names])(pixels / 127.5 - 1.0)
    alone = _with_resnet((127.5,) * 3, spec=RESNETS_V2["resnet-50-v2"], name="resnet-50-v2", layout="od-api")
    assert load_imagenet_weights(alone, str(file)).unused == ("post_bn",)
    for mean in (127.5, 100.0):
        detector = _with_resnet((mean,) * 3, spec=RESNETS_V2["resnet-50-v2"], name="resnet-50-v2")
        report = load_imagenet_weights(detector, str(file))
        assert (len(report.loaded), report.unused) == (len(detector.backbone.variables), ())
        images = tf.constant((pixels - detector.pixel_mean) / detector.pixel_std, tf.float32)
        if mean == 127.5:
            for our_level, their_level in zip(detector.backbone(images), theirs, strict=True):
                np.testing.assert_allclose(our_level, their_level, atol=1e-4 * np.abs(their_level).max())
        else:  # what the stem's windows see beyond the border differs
            stem = detector.backbone.stem(images)
            np.testing.assert_allclose(stem[:, 2:-2, 2:-2], theirs[0][:, 2:-2, 2:-2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "application", "layers"),
    [
        ("mobilenet-v1", "MobileNet", ("conv_pw_5_relu", "conv_pw_11_relu", "conv_pw_13_relu")),
        ("mobilenet-v2", "MobileNetV2", ("block_5_add", "block_12_add", "out_relu")),
    ],
)
def test_feature_maps_of_a_mobilenet_equal(
    name: str, application: str, layers: tuple[str, ...], tmp_path: Path
) -> None:
    model = getattr(keras.applications, application)(weights=None, include_top=False, input_shape=(SIDE, SIDE, 3))
    random = np.random.default_rng(0)
    for layer in model.layers:
        values = layer.get_weights()
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([value + random.uniform(0.0, 0.3, value.shape) for value in values])
    file = tmp_path / "mobilenet.weights.h5"
    model.save_weights(file)
    pixels = random.uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    theirs = keras.Model(model.input, [model.get_layer(layer).output for layer in layers])(pixels / 127.5 - 1.0)
    # Its images, and images of another mean, which differ where the windows see beyond the border.
    for mean in ((127.5, 127.5, 127.5), (100.0, 120.0, 130.0)):
        detector = _WithBackbone(EfficientNet(spec=BACKBONES[name], batch_norm=BATCH_NORM, name=name), mean)
        report = load_imagenet_weights(detector, str(file))
        assert (len(report.loaded), report.unused) == (len(detector.backbone.variables), ())
        levels = detector.backbone(tf.constant((pixels - detector.pixel_mean) / detector.pixel_std, tf.float32))[2:]
        if mean[0] == 127.5:
            for our_level, their_level in zip(levels, theirs, strict=True):
                np.testing.assert_allclose(our_level, their_level, atol=1e-4, rtol=1e-4)
        else:
            stem = detector.backbone.stem(tf.constant((pixels - mean) / detector.pixel_std, tf.float32))
            first = next(layer for layer in model.layers if layer.name in {"conv1_relu", "Conv1_relu"})
            expected = keras.Model(model.input, first.output)(pixels / 127.5 - 1.0)
            np.testing.assert_allclose(stem[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2], atol=1e-4, rtol=1e-4)


def test_a_file_without_a_published_digest_is_the_same_from_its_second_use_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mobilenet_1_0_224_tf_no_top.h5"
    file.write_bytes(b"weights")
    _requests(monkeypatch, file)
    for _ in range(2):
        assert find_weights_file("mobilenet-v1", "imagenet") == file
    file.write_bytes(b"others")
    with pytest.raises(DataError, match=r"tf_no_top\.h5: not the file that was first used, .* in .*\.h5\.sha256"):
        find_weights_file("mobilenet-v1", "imagenet")


def test_weights_of_another_layout_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "resnet50.weights.h5"
    file.touch()
    with pytest.raises(ConfigError, match=r"Set model\.overrides\.backbone\.layout to standard"):
        load_imagenet_weights(_with_resnet(layout="tpu", spec=SHORT_RESNET), str(file))


@pytest.mark.parametrize(
    ("name", "backbone"),
    [
        ("EfficientNetB0", "efficientnet-b0"),
        *((f"ResNet{layers}", f"resnet-{layers}") for layers in (50, 101, 152)),
        *((f"ResNet{layers}V2", f"resnet-{layers}-v2") for layers in (50, 101, 152)),
        ("MobileNet", "mobilenet-v1"),
        ("MobileNetV2", "mobilenet-v2"),
    ],
)
def test_imagenet_asks_for_the_file_that_keras_itself_asks_for(
    name: str, backbone: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = _requests(monkeypatch)
    # Without blocks the model is made quickly; its file's name does not depend on them.
    all_blocks = [("resnet", f"stack_residual_blocks_{version}") for version in ("v1", "v2")]
    for module, blocks in (*all_blocks, ("efficientnet", "block")):
        monkeypatch.setattr(importlib.import_module(f"keras.src.applications.{module}"), blocks, _as_it_is)
    with pytest.raises(OSError, match="no network"):
        getattr(keras.applications, name)(weights="imagenet", include_top=False)
    (tmp_path / "file").write_bytes(b"")
    ours = _requests(monkeypatch, tmp_path / "file")
    find_weights_file(backbone, "imagenet")
    assert ours == asked


def _as_it_is(inputs: object, *_arguments: object, **_options: object) -> object:
    return inputs


FileRequest = tuple[str, str, str | None]  # name, URL, hash


def _requests(monkeypatch: pytest.MonkeyPatch, answer: Path | None = None) -> list[FileRequest]:
    """What is asked of Keras' downloads; they answer with a file, or fail."""
    asked: list[FileRequest] = []

    def get_file(name: str, url: str, *, file_hash: str | None = None, **_folders: str) -> str:
        asked.append((name, url, file_hash))
        if answer is None:
            raise OSError("no network")
        return str(answer)

    for place in (keras.utils, importlib.import_module("keras.src.utils.file_utils")):
        monkeypatch.setattr(place, "get_file", get_file)
    return asked


@pytest.mark.parametrize("cached", [None, b"cut off"])
def test_without_network_the_file_and_its_place_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: bytes | None
) -> None:
    def unreachable(url: str, *_rest: object) -> None:
        assert socket.getdefaulttimeout() is not None, "without it, a firewall that drops packets hangs the run"
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(importlib.import_module("keras.src.utils.file_utils"), "urlretrieve", unreachable)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    folder = tmp_path / "keras" / "models"
    if cached is not None:
        folder.mkdir(parents=True)
        (folder / "efficientnetb0_notop.h5").write_bytes(cached)
    before = socket.getdefaulttimeout()  # Beam's client of Google Cloud sets one
    with pytest.raises(DataError) as refused:
        find_weights_file("efficientnet-b0", "imagenet")
    message = str(refused.value)
    for part in (
        "model.backbone_weights = imagenet: the weights could not be downloaded",
        "Name or service not known",
        "/efficientnetb0_notop.h5 (MD5 50bc09e76180e00e4465e1a485ddc09d)",
        f"put it into {folder}, or set model.backbone_weights to the file",
    ):
        assert part in message
    assert socket.getdefaulttimeout() == before


def test_a_file_in_keras_cache_is_used_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    file = tmp_path / "models" / "efficientnetb3_notop.h5"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    module = importlib.import_module("keras.src.applications.efficientnet")
    digest = hashlib.md5(b"weights").hexdigest()
    monkeypatch.setattr(module, "WEIGHTS_HASHES", {"b3": ("", digest)})
    assert find_weights_file("efficientnet-b3", "imagenet") == file


def test_where_fetching_is_off_keras_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = _requests(monkeypatch)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"efficientnetb0_notop\.h5 is not in .*models, and downloads are off"):
        find_weights_file("efficientnet-b0", "imagenet", fetches=False)
    monkeypatch.setenv("COCOFLOW_OFFLINE", "1")
    with pytest.raises(DataError, match=r"and downloads are off"):
        find_weights_file("resnet-50", "imagenet")
    assert asked == []


def test_a_backbone_without_imagenet_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="resnet-18 has no ImageNet weights"):
        load_imagenet_weights(_with_resnet(spec=SHORT_RESNET, name="resnet-18"), "imagenet")
