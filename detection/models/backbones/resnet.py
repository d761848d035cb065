"""ResNet v1 and v2 without their classifier, as a feature extractor.

He et al., "Deep Residual Learning for Image Recognition", 2016, table 1; "Identity Mappings in Deep Residual Networks",
2016, for v2.
"""

import functools
import itertools
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from detection.models.backbones.contract import Backbone
from detection.models.layers.batch_norm import BatchNormalization, activate
from detection.models.layers.conv import ConvNorm, conv2d
from detection.models.layers.initializers import he_normal
from detection.models.layers.recompute import recomputed

ResNetLayout = Literal["standard", "tpu", "od-api"]
Relu = Literal["relu", "relu6"]

# Mean that keras.applications' ResNets subtract from 0..255 pixels, here in RGB; they take BGR and do not divide.
RESNET_PIXEL_MEAN = (123.68, 116.779, 103.939)

_STEM_FILTERS = 64
_LAST_LEVEL = 5
_EXPANSION = 4  # output channels of a bottleneck per inner channel


class ResNetSpec(NamedTuple):
    """Specification of one ResNet.

    repeats: number of blocks of conv2_x to conv5_x.
    bottleneck: blocks are 1x1, 3x3, 1x1; False: 3x3, 3x3.
    v2: blocks start with batch norm and activation, and the last of conv2_x to conv4_x has the stride.
    """

    repeats: tuple[int, int, int, int]
    bottleneck: bool = True
    v2: bool = False


RESNETS: dict[str, ResNetSpec] = {
    "resnet-18": ResNetSpec((2, 2, 2, 2), bottleneck=False),
    "resnet-34": ResNetSpec((3, 4, 6, 3), bottleneck=False),
    "resnet-50": ResNetSpec((3, 4, 6, 3)),
    "resnet-101": ResNetSpec((3, 4, 23, 3)),
    "resnet-152": ResNetSpec((3, 8, 36, 3)),
    "resnet-200": ResNetSpec((3, 24, 36, 3)),
}
# As in keras.applications.
RESNETS_V2 = {f"resnet-{depth}-v2": RESNETS[f"resnet-{depth}"]._replace(v2=True) for depth in (50, 101, 152)}


class ResNet(Backbone):
    """Feature maps of levels 1..5, level l at stride 2^l: the stem's, and the last of conv2_x to conv5_x.

    Those of levels 2 to 4 of a ResNet v2 are the last before the block with the stride.

    Args:
        spec: network to build.
        layout: position of the strides.  `standard`, as in keras.applications: the first 1x1
            convolution of a bottleneck has the stride, and the first max-pooling pads one pixel
            on every side.  `tpu`, as in TPU Mask R-CNN: the 3x3 convolution has the stride, and
            the max-pooling pads at the bottom and the right only, if the size is even.
            `od-api`, as in the TF Object Detection API and in TF-Slim: the strides of `standard`,
            the max-pooling of `tpu`; ResNet-18 and -34 are those of its CenterNets, of blocks
            `PreactBlock` whose last one has the stride, and the pooling of `standard`; a ResNet v2, which
            has no layout `tpu`, has no batch norm and activation after its last block.  The variables
            of a bottleneck network are the same, but weights trained with one layout do not fit
            another.
        activation: activation after each convolution and each addition; None: relu.
        batch_norm: arguments of `BatchNormalization`.
        recompute: see `Backbone`.
        tail: conv5_x is for RoIs: `call` returns levels 1..4, and `run_tail` runs it.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        spec: ResNetSpec,
        layout: ResNetLayout = "standard",
        activation: Relu | None = None,
        batch_norm: dict[str, float],
        recompute: bool = False,
        tail: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ):
        super().__init__(recompute=recompute, name=name, dtype=dtype)
        self.spec = spec
        self.layout = layout
        self._activation: Relu = activation or "relu"
        common = {"activation": self._activation, "batch_norm": batch_norm, "dtype": self.dtype_policy}
        self._preact = spec.v2 or (layout == "od-api" and not spec.bottleneck)
        self.stem: Any = (
            _conv(_STEM_FILTERS, 7, strides=2, bias=0.0, name="stem", dtype=dtype)
            if self._preact
            else ConvNorm(3, _STEM_FILTERS, 7, 2, centred=True, name="stem", **common)
        )
        self.blocks: list[Block | PreactBlock] = []
        self._starts = [0]  # of conv2_x to conv5_x among the blocks
        self.level_filters = [_STEM_FILTERS]
        for level, repeats in enumerate(spec.repeats, start=2):
            filters = _STEM_FILTERS * 2 ** (level - 2)
            for repeat in range(repeats):
                first, last = repeat == 0, repeat == repeats - 1
                strided_level = level < _LAST_LEVEL if spec.v2 else level > 2
                options = common | {
                    "in_filters": self.level_filters[-1] if first else self.blocks[-1].out_filters,
                    "filters": filters,
                    "stride": 2 if strided_level and (last if self._preact else first) else 1,
                    "projects": first,
                    "name": f"conv{level}_{repeat + 1}",
                }
                if self._preact:
                    self.blocks.append(PreactBlock(bottleneck=spec.bottleneck, **options))
                else:
                    stride_in_first = layout != "tpu" or not spec.bottleneck
                    self.blocks.append(Block(bottleneck=spec.bottleneck, stride_in_first=stride_in_first, **options))
            self.level_filters.append(self.blocks[-1].out_filters)
            self._starts.append(len(self.blocks) - (spec.v2 and level < _LAST_LEVEL))
        self.post_norm = None
        if spec.v2 and layout == "standard":
            self.post_norm = BatchNormalization(name="post_batch_normalization", dtype=dtype, **batch_norm)
        self.out_filters = self.level_filters[-1]
        if tail:
            self.level_filters.pop()

    @property
    def stages(self) -> list[list[keras.layers.Layer]]:
        """Layers between the levels: stem, conv2_x, ..., conv5_x."""
        stages: list[list[keras.layers.Layer]] = [[self.stem]]
        stages += [list(self.blocks[start:end]) for start, end in itertools.pairwise(self._starts)]
        if self.post_norm is not None:
            stages[-1].append(self.post_norm)
        return stages

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables of all blocks."""
        self.stem.build(input_shape)
        for block in self.blocks:
            block.build((None, None, None, block.in_filters))
        if self.post_norm is not None:
            self.post_norm.build((None, None, None, self.out_filters))

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> list[tf.Tensor]:
        """Returns features [B, H / 2^l, W / 2^l, level_filters[l - 1]] of levels l = 1..5, sizes rounded up.

        Args:
            images: float [B, H, W, 3].
            training: use batch statistics.
            seed: ignored; for compatibility with backbones that use random numbers.
        """
        levels = [self.stem(images, training=training)]
        features = _max_pool(levels[0], centred=self.layout == "standard" or self._preact)
        for stage in self.stages[1 : len(self.level_filters)]:
            features = self._run(stage, features, training=training)
            levels.append(features)
        return levels

    def run_tail(self, features: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps features [B, h, w, C] of level 4 to those of conv5_x, [B, h / 2, w / 2, out_filters]."""
        return self._run(self.stages[-1], features, training=training)

    def _run(self, stage: list[keras.layers.Layer], features: tf.Tensor, *, training: bool) -> tf.Tensor:
        for block in stage:
            call = functools.partial(block, training=training)
            features = recomputed(call, features, enabled=training and self._recompute)
            if block is self.post_norm:
                features = activate(features, self._activation)
        return features


_conv = functools.partial(conv2d, centred=True, bias=None, initializer=he_normal)


class Block(keras.layers.Layer):
    """Residual block: convolutions with batch norm, added to the input or its projection, relu or relu6.

    By default, the initial scale of the last batch norm is 0, so the block starts as its shortcut
    (Goyal et al., "Accurate, Large Minibatch SGD", 2017).

    Args:
        in_filters: channels of the input.
        filters: inner channels.
        stride: stride of the block.
        projects: the shortcut is a 1x1 convolution with batch norm; False: the input itself.
        bottleneck: convolutions are 1x1, 3x3, 1x1; False: 3x3, 3x3.
        stride_in_first: the first convolution has the stride; False: the second one.
        activation: activation after each convolution and the addition.
        batch_norm: arguments of `BatchNormalization`.
        last_scale: initial scale of the last batch norm.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        in_filters: int,
        filters: int,
        stride: int,
        projects: bool,
        bottleneck: bool,
        stride_in_first: bool,
        activation: Relu,
        batch_norm: dict[str, float],
        last_scale: float = 0.0,
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation = activation
        self.in_filters = in_filters
        self.out_filters = filters * (_EXPANSION if bottleneck else 1)
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        widths = (filters,) * (len(kernels) - 1) + (self.out_filters,)
        strides = [1] * len(kernels)
        strides[0 if stride_in_first else 1] = stride
        self.convs = [
            _conv(width, kernel, strides=step, name=f"conv2d_{number}", dtype=dtype)
            for number, (width, kernel, step) in enumerate(zip(widths, kernels, strides, strict=True), start=1)
        ]
        self.norms = [
            BatchNormalization(
                initial_scale=last_scale if number == len(kernels) else 1.0,
                name=f"batch_normalization_{number}",
                dtype=dtype,
                **batch_norm,
            )
            for number in range(1, len(kernels) + 1)
        ]
        self.shortcut_conv = self.shortcut_norm = None
        if projects:
            self.shortcut_conv = _conv(self.out_filters, 1, strides=stride, name="shortcut_conv2d", dtype=dtype)
            self.shortcut_norm = BatchNormalization(name="shortcut_batch_normalization", dtype=dtype, **batch_norm)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        shape = input_shape
        for conv, norm in zip(self.convs, self.norms, strict=True):
            conv.build(shape)
            shape = (None, None, None, conv.filters)
            norm.build(shape)
        if self.shortcut_conv is not None and self.shortcut_norm is not None:
            self.shortcut_conv.build(input_shape)
            self.shortcut_norm.build(shape)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H / stride, W / stride, out_filters]."""
        shortcut = inputs
        if self.shortcut_conv is not None and self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(inputs), training=training)
        outputs = inputs
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            outputs = activate(outputs, self._activation) if number else outputs
            outputs = norm(conv(outputs), training=training)
        return activate(shortcut + outputs, self._activation)


class PreactBlock(keras.layers.Layer):
    """Pre-activation block: batch norm and activation before the first convolution and after each 3x3; then a sum.

    Sources: `block_basic` of the TF Object Detection API's `models/keras_models/resnet_v1.py`; for a bottleneck, of
    which the first 1x1 convolution has batch norm and activation, too, `block2` of keras.applications' ResNets.

    Args:
        in_filters: channels of the input.
        filters: inner channels.
        stride: stride of the second convolution.
        projects: the shortcut is a 1x1 convolution of the activated input; False: the input itself.
        bottleneck: convolutions are 1x1, 3x3, 1x1; False: 3x3, 3x3.
        activation: activation after each batch norm.
        batch_norm: arguments of `BatchNormalization`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        in_filters: int,
        filters: int,
        stride: int,
        projects: bool,
        bottleneck: bool,
        activation: Relu,
        batch_norm: dict[str, float],
        name: str,
        dtype: Any,
    ):
        super().__init__(name=name, dtype=dtype)
        self._activation, self._stride = activation, stride
        self.in_filters, self.out_filters = in_filters, filters * (_EXPANSION if bottleneck else 1)
        self.norms = [
            BatchNormalization(name=f"{place}batch_normalization{number}", dtype=dtype, **batch_norm)
            for place, number in (("preact_", ""), ("", "_1"), ("", "_2"))
        ]
        self.convs = [
            _conv(filters, 1 if bottleneck else 3, name="conv2d_1", dtype=dtype),
            _conv(filters, 3, strides=stride, name="conv2d_2", dtype=dtype),
        ]
        last = functools.partial(_conv, self.out_filters, 1, bias=0.0, dtype=dtype)
        self.last_conv = last(name="conv2d_3") if bottleneck else None
        self.shortcut_conv = last(name="shortcut_conv2d") if projects else None

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables."""
        shape = (None, None, None, self.convs[0].filters)
        for layer, own in zip((*self.norms, *self.convs), (input_shape, shape, shape, input_shape, shape), strict=True):
            layer.build(own)
        if self.last_conv is not None:
            self.last_conv.build(shape)
        if self.shortcut_conv is not None:
            self.shortcut_conv.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps [B, H, W, in_filters] to [B, H / stride, W / stride, out_filters], rounded up."""
        activated = activate(self.norms[0](inputs, training=training), self._activation)
        shortcut = inputs if self.shortcut_conv is None else self.shortcut_conv(activated)
        for conv, norm in zip(self.convs, self.norms[1:], strict=True):
            activated = activate(norm(conv(activated), training=training), self._activation)
        if self.last_conv is not None:
            activated = self.last_conv(activated)
        return shortcut[:, :: self._stride, :: self._stride] + activated


def _max_pool(inputs: tf.Tensor, *, centred: bool) -> tf.Tensor:
    """Max-pools with 3x3 windows and stride 2; centred: on pixels 0, 2, 4, ..., with zeros outside."""
    if not centred:
        return tf.nn.max_pool2d(inputs, 3, 2, padding="SAME")
    return tf.nn.max_pool2d(tf.pad(inputs, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, padding="VALID")


def application_layer(layer: str) -> str:
    """Returns the keras.applications name of a ResNet layer, given its path below the backbone.

    >>> application_layer("stem/batch_normalization")
    'conv1_bn'
    >>> application_layer("conv4_2/conv2d_3"), application_layer("conv4_1/shortcut_batch_normalization")
    ('conv4_block2_3_conv', 'conv4_block1_0_bn')
    >>> application_layer("conv4_2/preact_batch_normalization")
    'conv4_block2_preact_bn'
    """
    part, _, name = layer.partition("/")
    kind = "bn" if "batch_normalization" in layer else "conv"
    if part in ("stem", "post_batch_normalization"):
        return f"{'post' if name == '' and kind == 'bn' else 'conv1'}_{kind}"
    block = part.replace("_", "_block")
    place = {"shortcut": "0", "preact": "preact"}.get(name.partition("_")[0], name.rpartition("_")[2])
    return f"{block}_{place}_{kind}"
