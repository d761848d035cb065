"""The Object Detection API's EfficientDet: names of variables and outputs, without any code of ours.

Facts of its code: `ssd_efficientnet_bifpn_feature_extractor.py`, `KerasBiFpnFeatureMaps`, `bifpn_utils.py`,
`WeightSharedConvolutionalBoxPredictor` and its heads, and EfficientNet of the official models.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tests.detection.interop.od_api.original_faster_rcnn import RATIOS, RandomNetwork, anchors_of_level

FILTERS, CELLS, LAYERS, CLASSES, SCALES = 16, 2, 2, 3, 3
LEVELS = range(3, 8)
# EfficientNet-B1, stack by stage: kernel, stride, expansion, filters, blocks.
_STACKS = (
    (3, 1, 1, 16, 2),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 40, 3),
    (3, 2, 6, 80, 4),
    (5, 1, 6, 112, 4),
    (5, 2, 6, 192, 5),
    (3, 1, 6, 320, 2),
)
# The blocks whose outputs are levels; they are fixed, although deeper networks have more blocks after them.
_ENDPOINTS = {3: "stack_2/block_1", 4: "stack_4/block_2", 5: "stack_6/block_0"}
_PREDICTOR = "WeightSharedConvolutionalBoxPredictor"


class OdApiEfficientDet(RandomNetwork):
    """EfficientDet-D1 with fewer filters, cells and layers.

    Args:
        scope: of the names outside of the backbone.
        fusion: `fast_attention` or `sum`.
        tower_bias: the convolutions of the heads' towers have biases.
    """

    def __init__(
        self, *, scope: str = "", fusion: str = "fast_attention", tower_bias: bool = True, classes: int = CLASSES
    ):
        super().__init__(gain=1.3, seed=11)
        self._scope, self._fusion, self._tower_bias, self._classes = scope, fusion, tower_bias, classes
        self._layers: dict[str, int] = {}

    def _place(self, layer: str) -> str:
        number = self._layers.setdefault(layer, len(self._layers))
        return f"_feature_extractor/_efficientnet/layer_with_weights-{number}"

    def _block_conv(self, x: Any, name: str, filters: int, size: int = 1, stride: int = 1) -> Any:
        """A convolution without a bias, and its batch norm."""
        x = self._conv(x, f"{name}_conv2d", filters, size, self._place(f"{name}_conv2d"), stride=stride, bias=False)
        return self._norm(x, f"{name}_bn", self._place(f"{name}_bn"))

    def _depthwise(self, x: Any, name: str, size: int, place: str, *, stride: int = 1) -> Any:
        kernel = self._variable(
            f"{name}/depthwise_kernel", [size, size, x.shape[-1], 1], place, scale=self._gain / size
        )
        return tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], "SAME")

    def _block(self, x: Any, name: str, *, size: int, stride: int, expand: int, filters: int) -> Any:
        inputs, inner = x, x.shape[-1] * expand
        if expand != 1:
            x = _swish(self._block_conv(x, f"{name}/expand", inner))
        depthwise = f"{name}/depthwise_conv2d"
        x = self._depthwise(x, depthwise, size, self._place(depthwise), stride=stride)
        x = _swish(self._norm(x, f"{name}/depthwise_bn", self._place(f"{name}/depthwise_bn")))
        squeezed = tf.reduce_mean(x, [1, 2], keepdims=True)
        reduce, excite = (f"{name}/se_{kind}_conv2d" for kind in ("reduce", "expand"))
        squeezed = _swish(self._conv(squeezed, reduce, inputs.shape[-1] // 4, 1, self._place(reduce)))
        x = x * tf.sigmoid(self._conv(squeezed, excite, inner, 1, self._place(excite)))
        x = self._block_conv(x, f"{name}/project", filters)
        return x + inputs if stride == 1 and inputs.shape[-1] == filters else x

    def backbone(self, pixels: Any) -> list[Any]:
        """Returns the features of levels 3 to 5 of RGB pixels 0..255."""
        x = (pixels / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        x = _swish(self._block_conv(x, "stem", 32, 3, 2))
        outputs = {}
        for stack, (size, stride, expand, filters, blocks) in enumerate(_STACKS):
            for block in range(blocks):
                name = f"stack_{stack}/block_{block}"
                step = stride if block == 0 else 1
                x = outputs[name] = self._block(x, name, size=size, stride=step, expand=expand, filters=filters)
        x = _swish(self._block_conv(x, "top", 1280))
        self._variable("logits/kernel", [1280, 1000], "_feature_extractor/classification_backbone/logits")
        return [outputs[name] for name in _ENDPOINTS.values()]

    def _separable(self, x: Any, name: str, filters: int, place: str, *, bias: bool = True) -> Any:
        x = self._depthwise(x, name, 3, place)
        shape = [1, 1, x.shape[-1], filters]
        scale = self._gain * x.shape[-1] ** -0.5
        x = tf.nn.conv2d(x, self._variable(f"{name}/pointwise_kernel", shape, place, scale=scale), 1, "SAME")
        return x + self._variable(f"{name}/bias", [filters], place) if bias else x

    def _node(self, maps: dict[str, Any], number: int, name: str, inputs: list[str]) -> Any:
        """Resamples the inputs, those of the backbone with a 1x1 convolution and a batch norm before."""
        stage, level = f"{self._scope}bifpn/node_{number:02}/{name}", int(name[-1])
        resampled = []
        for order, given in enumerate(inputs):
            x = maps[given]
            if given in ("0_up_lvl_3", "0_up_lvl_4", "0_up_lvl_5"):
                conv = f"{stage}/input_{given}/1x1_pre_sample/conv"
                norm = f"{stage}/input_{given}/1x1_pre_sample/batchnorm"
                block = f"_feature_extractor/_bifpn_stage/node_input_blocks/{number}/{order}/1"
                x = self._norm(self._conv(x, conv, FILTERS, 1, f"{block}/0"), norm, f"{block}/1")
            if int(given[-1]) < level:
                x = tf.nn.max_pool2d(x, 3, 2, "SAME")
            elif int(given[-1]) > level:
                x = tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)
            resampled.append(x)
        if len(inputs) == 1:
            return resampled[0]
        if self._fusion == "sum":
            x = tf.add_n(resampled)
        else:
            place = f"_feature_extractor/_bifpn_stage/node_combine_op/{number}"
            weights = self._variable(
                f"{stage}/combine/bifpn_combine_weights", [len(inputs), 1], place, mean=0.5, scale=0.6
            )
            weights = tf.nn.relu(weights[:, 0])
            x = tf.einsum("bhwcn,n->bhwc", tf.stack(resampled, axis=-1), weights / (tf.reduce_sum(weights) + 0.0001))
        place = f"_feature_extractor/_bifpn_stage/node_post_combine_block/{number}"
        x = self._separable(_swish(x), f"{stage}/post_combine/separable_conv", FILTERS, f"{place}/1")
        return self._norm(x, f"{stage}/post_combine/batchnorm", f"{place}/2")

    def pyramid(self, levels: list[Any]) -> list[Any]:
        """Returns the features of levels 3 to 7."""
        maps = dict(zip(("0_up_lvl_3", "0_up_lvl_4", "0_up_lvl_5"), levels, strict=True))
        nodes = [("0_up_lvl_6", ["0_up_lvl_5"]), ("0_up_lvl_7", ["0_up_lvl_6"])]
        for cell in range(1, CELLS + 1):
            for level in (6, 5, 4, 3):
                same = f"{cell - 1}_{'dn' if level == 3 and cell > 1 else 'up'}_lvl_{level}"
                nodes.append((f"{cell}_dn_lvl_{level}", [same, nodes[-1][0]]))
            for level in (4, 5, 6, 7):
                inputs = [f"{cell - 1}_up_lvl_{level}", f"{cell}_dn_lvl_{level}"][: 1 if level == 7 else 2]
                nodes.append((f"{cell}_up_lvl_{level}", [*inputs, nodes[-1][0]]))
        for number, (name, inputs) in enumerate(nodes):
            maps[name] = self._node(maps, number, name, inputs)
        return [maps[name] for name in list(maps)[-len(LEVELS) :]]

    def _head(self, features: list[Any], tower: str, layer: str, outputs: int, place: str) -> list[Any]:
        """One tower: the convolutions of all levels are the same, each level has batch norms of its own."""
        kind, results = tower.removesuffix("PredictionTower"), []
        heads = {"Box": "box_encodings", "Class": "class_predictions_with_background"}[kind]
        for level, feature in enumerate(features):
            x = feature
            for number in range(LAYERS):
                name = f"{self._scope}{_PREDICTOR}/{tower}/conv2d_{number}"
                shared = f"_box_predictor/_head_scope_conv_layers/{tower}/{number}"
                own = f"_box_predictor/_base_tower_layers_for_heads/{heads}/{level}/{3 * number + 1}"
                x = self._separable(x, name, FILTERS, shared, bias=self._tower_bias)
                x = _swish(self._norm(x, f"{name}/BatchNorm/feature_{level}", own))
            name = f"{self._scope}{_PREDICTOR}/WeightSharedConvolutional{kind}Head/{layer}"
            results.append(self._separable(x, name, outputs, f"_box_predictor/{place}"))
        return results

    def heads(self, features: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns per level class logits and encoded boxes, [B, h, w, anchors * C or 4]."""
        anchors = SCALES * len(RATIOS)
        places = ("_prediction_heads/class_predictions_with_background/0", "_box_prediction_head/_box_encoder_layers/0")
        classes = self._head(features, "ClassPredictionTower", "ClassPredictor", anchors * self._classes, places[0])
        return classes, self._head(features, "BoxPredictionTower", "BoxPredictor", anchors * 4, places[1])

    def construct(self) -> None:
        """Makes all variables."""
        self.heads(self.pyramid(self.backbone(tf.zeros([1, 128, 128, 3]))))


def _swish(x: Any) -> Any:
    return x * tf.sigmoid(x)


def anchors_of(features: list[Any]) -> np.ndarray:
    """Returns the anchors of all levels, [N, 4] (ymin, xmin, ymax, xmax)."""
    levels = [
        anchors_of_level(level, *feature.shape[1:3], scales=SCALES)
        for level, feature in zip(LEVELS, features, strict=True)
    ]
    return np.concatenate(levels)
