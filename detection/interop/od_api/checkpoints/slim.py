"""TF-Slim's names of variables, which the TF Object Detection API has in TF1, and the unscoped names of TF2.

Sources: `nets/` of TF-Slim, `meta_architectures/`, `models/` and `predictors/` of the original, without Keras.
"""

import functools
import re
from collections.abc import Iterator, Mapping

from detection.models.backbones.efficientnet_spec import BLOCK_ROLES
from detection.models.backbones.resnet import RESNETS
from detection.weights.checkpoint_format import VariableSource

_SHARED = "WeightSharedConvolutionalBoxPredictor"
# Keras' names of a convolution and of its batch norm ("": none), and TF-Slim's scope of both.  {}: a number, *: a word.
_LAYERS = (
    ("conv1", "conv1_bn", "MobilenetV1/Conv2d_0"),
    ("conv_dw_{}", "conv_dw_{}_bn", "MobilenetV1/Conv2d_{}_depthwise"),
    ("conv_pw_{}", "conv_pw_{}_bn", "MobilenetV1/Conv2d_{}_pointwise"),
    ("Conv1", "bn_Conv1", "MobilenetV2/Conv"),
    ("Conv_1", "Conv_1_bn", "MobilenetV2/Conv_1"),
    *(
        (f"{block}_{role}", f"{block}_{role}_BN", f"MobilenetV2/{scope}/{role}")
        for block, scope in (("expanded_conv", "expanded_conv"), ("block_{}", "expanded_conv_{}"))
        for role in BLOCK_ROLES
    ),
    ("conv1_conv", "conv1_bn", "resnet_v1_*/conv1"),
    *(
        (f"conv{block + 1}_block{{}}_{number}_conv", f"conv{block + 1}_block{{}}_{number}_bn", f"{unit}/{conv}")
        for block in range(1, 5)
        for unit in (f"resnet_v1_*/block{block}/unit_{{}}/bottleneck_v1",)
        for number, conv in enumerate(("shortcut", "conv1", "conv2", "conv3"))
    ),
    ("projection_{}", "", "fpn/projection_{}"),
    ("smoothing_{}_conv", "smoothing_{}_batchnorm", "fpn/smoothing_{}"),
    ("bottom_up_block{}_conv", "bottom_up_block{}_batchnorm", "fpn/bottom_up_block{}"),
    ("bottom_up_block{}_conv", "bottom_up_block{}_batchnorm", "fpn/bottom_up_Conv2d_{}"),
    ("extra_{}_1x1_conv", "extra_{}_1x1_batchnorm", "*_Conv2d_{}_1x1_*"),
    ("extra_{}_3x3_depthwise_conv", "extra_{}_3x3_depthwise_batchnorm", "*_Conv2d_{}_3x3*_depthwise"),
    ("extra_{}_3x3_conv", "extra_{}_3x3_batchnorm", "*_Conv2d_{}_3x3*"),
    *(
        layer
        for head in ("BoxEncodingPredictor", "ClassPredictor")
        for layer in (
            (f"{head}_{{}}", "", f"BoxPredictor_{{}}/{head}"),
            (f"{head}_{{}}_depthwise", f"{head}_{{}}_depthwise_batchnorm", f"BoxPredictor_{{}}/{head}_depthwise"),
            (f"{head}_0", "", f"FirstStageBoxPredictor/{head}"),
            (f"{head}_dense", "", f"SecondStageBoxPredictor/{head}"),
        )
    ),
    *((f"{kind}Predictor", "", f"{_SHARED}/{kind}Predictor") for kind in ("Box", "Class")),
    *(
        (f"{tower}/conv2d_{{}}", f"{tower}/conv2d_{{}}/BatchNorm", f"{_SHARED}/{tower}/conv2d_{{}}")
        for tower in ("PredictionTower", "BoxPredictionTower", "ClassPredictionTower")
    ),
    ("RPNConv", "", "Conv"),
)
_VARIABLES = {
    "kernel": "weights",
    "bias": "biases",
    "depthwise_kernel": "depthwise_weights",
    "pointwise_kernel": "pointwise_weights",
}
_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
_NORM_OF_LEVEL = "feature_{}/"  # scope of a batch norm in a shared head, one for each level


def _pairs() -> Iterator[tuple[str, str]]:
    """Yields patterns of the names of variables, Keras' and TF-Slim's."""
    for conv, norm, scope in _LAYERS:
        yield from ((f"{conv}/{keras}", f"{scope}/{slim}") for keras, slim in _VARIABLES.items())
        level = _NORM_OF_LEVEL if "Tower" in scope else ""
        yield from ((f"{norm}/{level}{one}", f"{scope}/BatchNorm/{level}{one}") for one in _NORM if norm)


def _expression(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(re.escape("{}"), r"(\d+)").replace(re.escape("*"), r"\w*")
    return re.compile(f"(?:.*/)?{escaped}")


@functools.cache
def _table() -> list[tuple[str, re.Pattern[str], str, re.Pattern[str]]]:
    """Returns the patterns of Keras' and of TF-Slim's names, each with its expression."""
    return [(keras, _expression(keras), slim, _expression(slim)) for keras, slim in _pairs()]


def from_slim(name: str) -> str | None:
    """Returns the unscoped name of a variable; None: it is not one of TF-Slim's.

    >>> from_slim("SecondStageFeatureExtractor/resnet_v1_50/block4/unit_2/bottleneck_v1/conv3/BatchNorm/beta")
    'conv5_block2_3_bn/beta'
    >>> from_slim("FeatureExtractor/MobilenetV2/layer_19_2_Conv2d_3_3x3_s2_256_depthwise/depthwise_weights")
    'extra_3_3x3_depthwise_conv/depthwise_kernel'
    """
    for keras, _, _, expression in _table():
        if match := expression.fullmatch(name):
            return keras.format(*match.groups())
    return None


def to_slim(name: str, *, depth: int = 50) -> str | None:
    """Returns TF-Slim's name, without the scope of the feature extractor, of a variable by its unscoped name.

    Args:
        name: unscoped name.
        depth: depth of the ResNet.

    >>> to_slim("conv_pw_13_bn/gamma"), to_slim("conv3_block1_0_conv/kernel", depth=101)
    ('MobilenetV1/Conv2d_13_pointwise/BatchNorm/gamma', 'resnet_v1_101/block2/unit_1/bottleneck_v1/shortcut/weights')
    """
    for _, expression, slim, _ in _table():
        if match := expression.fullmatch(name):
            return slim.format(*match.groups()).replace("resnet_v1_*", f"resnet_v1_{depth}").replace("*", "")
    return None


def tf1_names(sources: Mapping[str, VariableSource], backbone: str) -> dict[str, list[str]]:
    """Returns the complete names in TF1 by the paths of our variables, those of each source.

    Args:
        sources: sources of our variables by path, with unscoped names.
        backbone: name of the backbone.
    """
    depth = int(backbone.rpartition("-")[2]) if backbone in RESNETS else 0
    network = f"resnet_v1_{depth}" if depth else backbone.title().replace("-V", "V")
    first, second = ("FirstStage", "SecondStage") if any(path.startswith("rpn/") for path in sources) else ("", "")

    def with_scope(name: str) -> str:
        if name.startswith(("fpn/", "_Conv2d")):
            return f"FeatureExtractor/{network}/{name}"
        stage = second if "/block4/" in name else first
        return f"{stage}FeatureExtractor/{name}" if name.startswith(f"{network}/") else name

    return {
        path: [with_scope(name) for one in source.names if (name := to_slim(one, depth=depth))]
        for path, source in sources.items()
    }
