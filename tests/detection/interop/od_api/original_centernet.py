"""The Object Detection API's CenterNets with a ResNet-18 or a ResNet-50 v2, as functional Keras models, and others.

Those with an Hourglass-20.  Without any code of ours.  Facts of its code: `block_basic` and `resnet_v1_18` of
`models/keras_models/resnet_v1.py`, `hourglass_20` of `models/keras_models/hourglass_network.py`, the necks of
`center_net_resnet_v1_fpn_feature_extractor.py` and `center_net_resnet_feature_extractor.py`, and
`make_prediction_net` of `center_net_meta_arch.py`.
"""

from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.detection.interop.od_api.original_faster_rcnn import RandomNetwork

CLASSES = 4
# (num_filters, kernel_sizes, output channels) of each head.
HEADS = {"object_center": ([24, 16], [5, 3], CLASSES), "box/scale": ([32], [3], 2), "box/offset": ([], [], 2)}


class OdApiCenterNet(RandomNetwork):
    """The network; the numbers of `layer_with_weights` are those of Keras' functional models.

    Args:
        v2: the backbone is a ResNet-50 v2; False: a ResNet-18.
    """

    def __init__(self, *, v2: bool = False) -> None:
        super().__init__()
        self._v2 = v2
        images = layers.Input((None, None, 3))
        if v2:
            base = keras.applications.ResNet50V2(weights=None, include_top=False, input_tensor=images)
            features = keras.Model(
                images, _deconvs(keras.Model(images, base.get_layer("conv5_block3_out").output)(images))
            )
        else:
            base, levels = _resnet_18(images)
            features = keras.Model(images, _neck(images, keras.Model(images, levels)))
        heads = {name: _head(*options) for name, options in HEADS.items()}
        self.model = keras.Model(images, {name: head(features(images)) for name, head in heads.items()})
        random = np.random.default_rng(5)
        for variable in (*base.variables, *self.model.variables):
            values = random.normal(0.0, 0.1, variable.shape)
            if "kernel" in variable.path:
                scale = 0.01 if variable.shape[2] == 3 and not v2 else 1.0  # pixels are up to 255
                scale *= 3.0 if "transpose" in variable.path else 1.0  # a quarter of the kernel meets an input
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
        return dict(self.model(images / 127.5 - 1.0 if self._v2 else images[..., ::-1] - [103.939, 116.779, 123.68]))


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


def _deconvs(x: Any) -> Any:
    for filters in (256, 128, 64):
        x = layers.ReLU()(_norm(layers.Conv2D(filters, 3, padding="same")(x), epsilon=1e-3))
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same")(x)
        x = layers.ReLU()(_norm(x, epsilon=1e-3))
    return x


def _head(filters: list[int], kernels: list[int], outputs: int) -> keras.Model:
    inner = [
        layer
        for width, kernel in zip(filters, kernels, strict=True)
        for layer in (layers.Conv2D(width, kernel, padding="same"), layers.ReLU())
    ]
    return keras.Sequential([layers.Input((None, None, 64)), *inner, layers.Conv2D(outputs, 1)])


class OdApiHourglass(RandomNetwork):
    """A CenterNet with an Hourglass-20, whose first size has one block and the others two."""

    def __init__(self) -> None:
        super().__init__(epsilon=1e-5, gain=1.2)
        self.outputs(tf.zeros([1, 64, 64, 3]))

    def outputs(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Maps RGB pixels to the outputs of the heads."""
        x = (images[..., ::-1] - [104.01362, 114.034225, 119.916595]) / [73.60277, 69.89082, 70.91508]
        x = tf.nn.relu(self._conv_norm(x, "downsample_input/conv_block", 48, 7, stride=2))
        x = self._residual(x, "downsample_input/residual_block", 96, stride=2)
        x = self._encoder_decoder(x, "hourglass_network/0", (96, 96, 144), (1, 2, 2))
        x = tf.nn.relu(self._conv_norm(x, "output_conv/0", 96, 3))
        found = {}
        for name, outputs in (("object_center", CLASSES), ("box/scale", 2), ("box/offset", 2)):
            place = f"_prediction_head_dict/{name}/0/layer_with_weights"
            inner = tf.nn.relu(self._conv(x, f"{place}-0", 24, 3, f"{place}-0"))
            found[name] = self._conv(inner, f"{place}-1", outputs, 1, f"{place}-1")
        return found

    def _encoder_decoder(self, x: Any, name: str, filters: tuple[int, ...], repeats: tuple[int, ...]) -> Any:
        outer, inner = filters[:2]
        shortcut, count = x, repeats[0]
        for number in range(count):
            shortcut = self._residual(shortcut, f"{name}/encoder_block1/{number}", outer)
        for number in range(count):
            x = self._residual(x, f"{name}/encoder_block2/{number}", inner, stride=1 if number else 2)
        if len(filters) > 2:
            x = self._encoder_decoder(x, f"{name}/inner_block/0", filters[1:], repeats[1:])
        else:
            for number in range(repeats[1]):
                x = self._residual(x, f"{name}/inner_block/{number}", inner)
        for number in range(count):
            x = self._residual(x, f"{name}/decoder_block/{number}", outer if number == count - 1 else inner)
        return shortcut + tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)

    def _residual(self, x: Any, name: str, filters: int, *, stride: int = 1) -> Any:
        inner = tf.nn.relu(self._conv_norm(x, f"{name}/conv_block", filters, 3, stride=stride))
        skips = stride > 1 or x.shape[-1] != filters
        skip = self._conv_norm(x, f"{name}/skip", filters, 1, stride=stride) if skips else x
        return tf.nn.relu(self._conv_norm(inner, name, filters, 3) + skip)

    def _conv_norm(self, x: Any, name: str, filters: int, size: int, *, stride: int = 1) -> Any:
        place = f"_feature_extractor/_network/{name}"
        kernel = self._variable(
            f"{place}/conv/kernel",
            [size, size, x.shape[-1], filters],
            f"{place}/conv",
            scale=self._gain * (size * size * x.shape[-1]) ** -0.5,
        )
        x = tf.pad(x, [[0, 0], [size // 2] * 2, [size // 2] * 2, [0, 0]])
        return self._norm(tf.nn.conv2d(x, kernel, stride, "VALID"), f"{place}/norm", f"{place}/norm")
