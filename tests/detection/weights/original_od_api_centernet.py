"""The Object Detection API's CenterNet with a ResNet-18, as a functional Keras model, without any code of ours.

Facts of its code: `block_basic` and `resnet_v1_18` of `models/keras_models/resnet_v1.py`, the neck of
`center_net_resnet_v1_fpn_feature_extractor.py`, and `make_prediction_net` of `center_net_meta_arch.py`.
"""

from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.detection.weights.original_od_api import RandomNetwork

CLASSES = 4
# (num_filters, kernel_sizes, output channels) of each head.
HEADS = {"object_center": ([24, 16], [5, 3], CLASSES), "box/scale": ([32], [3], 2), "box/offset": ([], [], 2)}


class OdApiCenterNet(RandomNetwork):
    """The network; the numbers of `layer_with_weights` are those of Keras' functional models."""

    def __init__(self) -> None:
        super().__init__()
        images = layers.Input((None, None, 3))
        base, levels = _resnet_18(images)
        features = keras.Model(images, _neck(images, keras.Model(images, levels)))
        heads = {name: _head(*options) for name, options in HEADS.items()}
        self.model = keras.Model(images, {name: head(features(images)) for name, head in heads.items()})
        random = np.random.default_rng(5)
        for variable in (*base.variables, *self.model.variables):
            values = random.normal(0.0, 0.1, variable.shape)
            if "kernel" in variable.path:
                scale = 0.01 if variable.shape[2] == 3 else 1.0  # pixels are up to 255
                values = random.normal(0.0, scale / np.sqrt(np.prod(variable.shape[:-1])), variable.shape)
            elif variable.name in ("gamma", "moving_variance"):
                values += 1.0
            variable.assign(values)
        parts = {"_feature_extractor/_base_model": base, "_feature_extractor/_feature_extractor_model": features}
        parts |= {f"_prediction_head_dict/{name}/0": head for name, head in heads.items()}
        for part, model in parts.items():
            for number, layer in enumerate(one for one in model.layers if one.weights):
                for variable in layer.weights if not isinstance(layer, keras.Model) else ():
                    name = f"{part}/{number}/{variable.name}"
                    self.variables[name] = cast(np.ndarray, variable.numpy())
                    self.objects[name] = f"{part}/layer_with_weights-{number}/{variable.name}"

    def outputs(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Maps RGB pixels to the outputs of the heads."""
        return dict(self.model(images[..., ::-1] - [103.939, 116.779, 123.68]))


def _norm(x: Any, epsilon: float = 1.001e-5) -> Any:
    return layers.BatchNormalization(epsilon=epsilon)(x)


def _block(x: Any, filters: int, *, stride: int, projects: bool) -> Any:
    preact = layers.ReLU()(_norm(x))
    if projects:
        shortcut = layers.Conv2D(filters, 1)(preact)
    else:
        shortcut = layers.MaxPooling2D(1, strides=stride)(x) if stride > 1 else x
    x = layers.Conv2D(filters, 3, use_bias=False)(layers.ZeroPadding2D(1)(preact))
    x = layers.ReLU()(_norm(x))
    x = layers.Conv2D(filters, 3, strides=stride, use_bias=False)(layers.ZeroPadding2D(1)(x))
    x = layers.ReLU()(_norm(x))
    return layers.Add()([shortcut, x])


def _resnet_18(images: Any) -> tuple[keras.Model, list[Any]]:
    """Returns the classifier without its top, and the outputs of levels 2 to 5."""
    x = layers.Conv2D(64, 7, strides=2)(layers.ZeroPadding2D(3)(images))
    x = layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))
    levels = []
    for level, filters in enumerate((64, 128, 256, 512), start=2):
        x = _block(x, filters, stride=1, projects=True)
        x = _block(x, filters, stride=1 if level == 2 else 2, projects=False)
        levels.append(x)
    return keras.Model(images, layers.ReLU()(_norm(x))), levels


def _neck(images: Any, backbone: keras.Model) -> Any:
    levels = backbone(images)
    x = layers.Conv2D(256, 1)(levels[3])
    for level, filters, outputs in ((2, 256, 128), (1, 128, 64), (0, 64, 64)):
        x = layers.UpSampling2D(2)(x) + layers.Conv2D(filters, 1)(levels[level])
        x = layers.ReLU()(_norm(layers.Conv2D(outputs, 3, padding="same")(x), epsilon=1e-3))
    return x


def _head(filters: list[int], kernels: list[int], outputs: int) -> keras.Model:
    inner = [
        layer
        for width, kernel in zip(filters, kernels, strict=True)
        for layer in (layers.Conv2D(width, kernel, padding="same"), layers.ReLU())
    ]
    return keras.Sequential([layers.Input((None, None, 64)), *inner, layers.Conv2D(outputs, 1)])
