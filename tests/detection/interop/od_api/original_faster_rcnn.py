"""The Object Detection API's Faster R-CNN with an FPN: names of variables and outputs, without any code of ours.

Facts of its code: `models/keras_models/resnet_v1.py`, `KerasFpnTopDownFeatureMaps`, the FPN's
feature extractor, the RPN of `faster_rcnn_meta_arch.py`, the heads below `predictors/heads`, and
the multiscale grid of anchors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.resnet import RESNETS, ResNetSpec
from tests.detection.interop.automl.checkpoints import Weights, save

SHORT = (2, 2, 2, 1)
REPEATS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
FILTERS, RPN_FILTERS, UNITS, CROP = 8, 12, 16, 7
SCALES, RATIOS = 2, (1.0, 2.0, 0.5)
ANCHORS = SCALES * len(RATIOS)
_RPN = "FirstStageBoxPredictor/Convolutional"
_HEADS = "SecondStageBoxPredictor"


@contextmanager
def short_resnet() -> Iterator[None]:
    """Gives the ResNet-50 `SHORT` repeats, there and here: tests on oracles import the whole network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RESNETS, "resnet-50", ResNetSpec(SHORT))
        patch.setitem(REPEATS, 50, SHORT)
        yield


class RandomNetwork:
    """A network of the original; a call constructs it, with random values for variables that do not exist yet.

    `variables` holds the values by name, and `objects` the paths of the objects that Keras would save.

    Args:
        epsilon: of all batch norms.
        gain: of the convolutions, without which the images may hardly change a deep network's features.
    """

    def __init__(self, *, epsilon: float = 1e-3, gain: float = 1.0, seed: int = 7):
        self.variables: Weights = {}
        self.objects: dict[str, str] = {}
        self._epsilon, self._gain = epsilon, gain
        self._random = np.random.default_rng(seed)

    def _variable(self, name: str, shape: list[int], place: str, *, mean: float = 0.0, scale: float = 0.1) -> Any:
        if name not in self.variables:
            values = self._random.standard_normal(shape, np.float32) * scale + mean
            self.variables[name] = values.astype(np.float32)
            self.objects[name] = f"{place}/{name.rpartition('/')[2]}"
        return tf.constant(self.variables[name])

    def _norm(self, x: Any, name: str, place: str) -> Any:
        width = [x.shape[-1]]
        gamma, variance = (
            self._variable(f"{name}/{one}", width, place, mean=1.0) for one in ("gamma", "moving_variance")
        )
        beta, mean = (self._variable(f"{name}/{one}", width, place) for one in ("beta", "moving_mean"))
        return (x - mean) / tf.sqrt(variance + self._epsilon) * gamma + beta

    def _conv(
        self, x: Any, name: str, filters: int, size: int, place: str, *, stride: int = 1, bias: bool = True
    ) -> Any:
        scale = self._gain * (size * size * x.shape[-1]) ** -0.5
        kernel = self._variable(f"{name}/kernel", [size, size, x.shape[-1], filters], place, scale=scale)
        x = tf.nn.conv2d(x, kernel, stride, "SAME")
        return x + self._variable(f"{name}/bias", [filters], place) if bias else x

    def write(self, prefix: Path) -> str:
        """Writes a checkpoint as the training does: a step and the model, whose keys are paths of objects."""
        return str(tf.train.Checkpoint(step=tf.Variable(25000, dtype=tf.int64), model=self._tree()).write(str(prefix)))

    def _tree(self) -> tf.Module:
        root = tf.Module()
        for name, place in self.objects.items():
            node = root
            *parents, attribute = place.split("/")
            for parent in parents:
                if not hasattr(node, parent):
                    setattr(node, parent, tf.Module())
                node = getattr(node, parent)
            setattr(node, attribute, tf.Variable(self.variables[name], name=name))
        return root


class OdApi(RandomNetwork):
    """The Faster R-CNN.

    Args:
        classes: number of classes, without background.
        epsilon: of all batch norms.
        limit: of the activations of ResNet and FPN: 6 is RELU_6.
        feature_norm: there is a batch norm between the box head's dense layers.
        head_norms: there is a batch norm after the RPN's convolution and after each output of the box head.
        one_box: all classes have the same box.
    """

    def __init__(
        self,
        *,
        classes: int = 2,
        epsilon: float = 1e-3,
        limit: float = 6.0,
        feature_norm: bool = False,
        head_norms: bool = False,
        one_box: bool = False,
        seed: int = 7,
    ):
        super().__init__(epsilon=epsilon, seed=seed)
        self._classes, self._limit = classes, limit
        self._feature_norm, self._head_norms, self._one_box = feature_norm, head_norms, one_box

    def _relu(self, x: Any) -> Any:
        return tf.clip_by_value(x, 0.0, self._limit)

    def _backbone_conv(self, x: Any, name: str, filters: int, size: int, stride: int) -> Any:
        """Strided convolutions larger than 1x1 get explicit padding, the same on every side."""
        place = f"_feature_extractor_for_proposal_features/{name}"
        kernel = self._variable(
            f"{name}_conv/kernel",
            [size, size, x.shape[-1], filters],
            f"{place}_conv",
            scale=(size**2 * x.shape[-1]) ** -0.5,
        )
        if stride > 1 and size > 1:
            x = tf.pad(x, [[0, 0], [size // 2] * 2, [size // 2] * 2, [0, 0]])
            x = tf.nn.conv2d(x, kernel, stride, "VALID")
        else:
            x = tf.nn.conv2d(x, kernel, stride, "SAME")
        return self._norm(x, f"{name}_bn", f"{place}_bn")

    def backbone(self, pixels: Any, depth: int = 50) -> list[Any]:
        """Returns the features of levels 2 to 5 of RGB pixels 0..255."""
        x = pixels - [123.68, 116.779, 103.939]
        x = self._relu(self._backbone_conv(x, "conv1", 64, 7, 2))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        levels = []
        for level, repeats in enumerate(REPEATS[depth], 2):
            filters = 64 * 2 ** (level - 2)
            for block in range(1, repeats + 1):
                name, stride = f"conv{level}_block{block}", 2 if block == 1 and level > 2 else 1
                shortcut = self._backbone_conv(x, f"{name}_0", 4 * filters, 1, stride) if block == 1 else x
                x = self._relu(self._backbone_conv(x, f"{name}_1", filters, 1, stride))
                x = self._relu(self._backbone_conv(x, f"{name}_2", filters, 3, 1))
                x = self._relu(shortcut + self._backbone_conv(x, f"{name}_3", 4 * filters, 1, 1))
            levels.append(x)
        return levels

    def slim_stage(self, x: Any, level: int, *, stride: int) -> Any:
        """Returns the output of conv2_x (level 2) to conv5_x of TF-Slim's ResNet-50, whose last unit has the stride."""
        repeats = REPEATS[50][level - 2]
        for block in range(1, repeats + 1):
            name, filters = f"conv{level}_block{block}", 64 * 2 ** (level - 2)
            step = stride if block == repeats else 1
            shortcut = self._backbone_conv(x, f"{name}_0", 4 * filters, 1, 1) if block == 1 else x[:, ::step, ::step]
            x = self._relu(self._backbone_conv(x, f"{name}_1", filters, 1, 1))
            x = self._relu(self._backbone_conv(x, f"{name}_2", filters, 3, step))
            x = self._relu(shortcut + self._backbone_conv(x, f"{name}_3", 4 * filters, 1, 1))
        return x

    def slim_features(self, pixels: Any) -> Any:
        """Returns the features of the proposals of a Faster R-CNN of TF1: conv4_x, at stride 16."""
        x = self._relu(self._backbone_conv(pixels - [123.68, 116.779, 103.939], "conv1", 64, 7, 2))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        return self.slim_stage(self.slim_stage(self.slim_stage(x, 2, stride=2), 3, stride=2), 4, stride=1)

    def pyramid(self, levels: list[Any]) -> list[Any]:
        """Returns the features of levels 2 to 6."""
        scope, place = "FeatureMaps/top_down", "_feature_extractor_for_proposal_features/fpn"
        outputs = [self._conv(levels[3], f"{scope}/projection_4", FILTERS, 1, f"{place}/top_layers/0")]
        for index, level in enumerate((2, 1, 0)):
            projection = f"{scope}/projection_{level + 1}"
            residual = self._conv(levels[level], projection, FILTERS, 1, f"{place}/residual_blocks/{index}/0")
            x = residual + tf.repeat(tf.repeat(outputs[0], 2, 1), 2, 2)
            name = f"{scope}/smoothing_{level + 1}"
            x = self._conv(x, f"{name}_conv", FILTERS, 3, f"{place}/conv_layers/{index}/0", bias=False)
            outputs.insert(0, self._relu(self._norm(x, f"{name}_batchnorm", f"{place}/conv_layers/{index}/1")))
        place = "_feature_extractor_for_proposal_features/bottom_up_block5"
        x = self._conv(outputs[-1], "bottom_up_block5_conv", FILTERS, 3, f"{place}_conv", stride=2, bias=False)
        return [*outputs, self._relu(self._norm(x, "bottom_up_block5_batchnorm", f"{place}_batchnorm"))]

    def rpn(self, features: list[Any]) -> list[tuple[Any, Any]]:
        """Returns per level logits [N, 2], of background and object, and encoded boxes [N, 4], of one image."""
        outputs = []
        for number, feature in enumerate(features):
            place = "_first_stage_box_predictor_first_conv/layer_with_weights-"
            x = self._conv(feature, "RPNConv", RPN_FILTERS, 3, f"{place}0", bias=not self._head_norms)
            x = self._norm(x, "RPNBatchNorm", f"{place}1") if self._head_norms else x
            x = tf.nn.relu6(x)
            place = f"_first_stage_box_predictor/_prediction_heads/{{}}/{number}/layers/0"
            boxes, classes = f"{_RPN}BoxHead_{number}/BoxEncodingPredictor", f"{_RPN}ClassHead_{number}/ClassPredictor"
            boxes = self._conv(x, boxes, 4 * ANCHORS, 1, place.format("box_encodings"))
            classes = self._conv(x, classes, 2 * ANCHORS, 1, place.format("class_predictions_with_background"))
            outputs.append((tf.reshape(classes, [-1, 2]), tf.reshape(boxes, [-1, 4])))
        return outputs

    def _dense(self, x: Any, name: str, units: int, place: str) -> Any:
        kernel = self._variable(f"{name}/kernel", [x.shape[-1], units], place, scale=x.shape[-1] ** -0.5)
        return x @ kernel + self._variable(f"{name}/bias", [units], place)

    def _output(self, x: Any, name: str, units: int, place: str) -> Any:
        x = self._dense(x, f"{name}_dense", units, f"{place}/1")
        return self._norm(x, f"{name}_batchnorm", f"{place}/2") if self._head_norms else x

    def box_head(self, rois: Any) -> tuple[Any, Any]:
        """Maps features [R, 7, 7, F] to class outputs [R, C + 1] and encoded boxes [R, C or 1, 4]."""
        place = "_feature_extractor_for_box_classifier_features/layer_with_weights-"
        x = tf.reshape(rois, [rois.shape[0], -1])
        x = tf.nn.relu(self._dense(x, "dense_3", UNITS, f"{place}0"))
        x = self._norm(x, "freezable_batch_norm_9", f"{place}1") if self._feature_norm else x
        x = tf.nn.relu(self._dense(x, "dense_4", UNITS, f"{place}2"))
        boxes = 1 if self._one_box else self._classes
        place = "_mask_rcnn_box_predictor/_{}_prediction_head/layers"
        outputs = self._output(x, f"{_HEADS}/ClassPredictor", self._classes + 1, place.format("class"))
        encoded = self._output(x, f"{_HEADS}/BoxEncodingPredictor", 4 * boxes, place.format("box"))
        return outputs, tf.reshape(encoded, [-1, boxes, 4])

    def construct(self) -> Weights:
        """Returns all variables."""
        self.rpn(self.pyramid(self.backbone(tf.zeros([1, 64, 64, 3]))))
        self.box_head(tf.zeros([1, CROP, CROP, FILTERS]))
        return self.variables

    def construct_one_level(self) -> Weights:
        """Returns the variables of a network with one feature level: conv5_x is part of its box head."""
        self.backbone(tf.zeros([1, 64, 64, 3]))
        for name in [one for one in self.objects if one.startswith("conv5")]:
            self.objects[name] = self.objects[name].replace("proposal", "box_classifier")
        outputs = {f"{_RPN}BoxHead_0/BoxEncodingPredictor": 48, f"{_RPN}ClassHead_0/ClassPredictor": 24}
        for name, filters in ({"RPNConv": 512} | outputs).items():
            place = f"_first_stage_box_predictor/{name.replace('/', '_')}"
            self._variable(f"{name}/kernel", [1, 1, 1024 if name == "RPNConv" else 512, filters], place)
        for name, units in (("ClassPredictor", 91), ("BoxEncodingPredictor", 360)):
            self._variable(f"{_HEADS}/{name}_dense/bias", [units], f"_mask_rcnn_box_predictor/{name}")
        return self.variables


def anchors_of_level(level: int, height: int, width: int, *, scale: float = 4.0, scales: int = SCALES) -> np.ndarray:
    """Returns the anchors of a level, [N, 4] (ymin, xmin, ymax, xmax): by row, column, aspect ratio, octave scale."""
    boxes = []
    for row, column in np.ndindex(height, width):
        for ratio in RATIOS:
            for octave in range(scales):
                side = scale * 2**level * 2 ** (octave / scales)
                half = np.array([side / ratio**0.5, side * ratio**0.5]) / 2
                centre = (np.array([row, column]) + 0.5) * 2**level
                boxes.append([*(centre - half), *(centre + half)])
    return np.array(boxes)


def decoded(encoded: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns boxes [N, 4] from encoded ones, whose factors are 10, 10, 5 and 5."""
    centres, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    centres = encoded[:, :2] / 10 * sizes + centres
    sizes = np.exp(encoded[:, 2:] / 5) * sizes
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


def slim_name(name: str) -> str:
    """Returns the name in TF1 of a variable of the backbone."""
    layer, variable = name.split("/")
    *block, kind = layer.split("_")
    variable = "weights" if kind == "conv" else f"BatchNorm/{variable}"
    if block == ["conv1"]:
        return f"FirstStageFeatureExtractor/resnet_v1_50/conv1/{variable}"
    stage, unit, place = int(block[0][4:]) - 1, block[1][5:], block[2]
    scope = "SecondStageFeatureExtractor" if stage == 4 else "FirstStageFeatureExtractor"
    conv = "shortcut" if place == "0" else f"conv{place}"
    return f"{scope}/resnet_v1_50/block{stage}/unit_{unit}/bottleneck_v1/{conv}/{variable}"


def save_slim(prefix: Path, backbone: Weights, ema: Weights) -> str:
    """Writes a TF1 checkpoint of a Faster R-CNN with one feature level, with the optimizer's slots."""
    named = {slim_name(name): value for name, value in backbone.items()}
    slots = {f"{name}/Momentum": np.zeros_like(value) for name, value in named.items() if name.endswith("weights")}
    averages = {f"{slim_name(name)}/ExponentialMovingAverage": value for name, value in ema.items()}
    heads = {"Conv/weights": np.zeros((3, 3, 1024, 512), np.float32), "Conv/biases": np.zeros(512, np.float32)}
    outputs = {"SecondStageBoxPredictor/ClassPredictor/biases": np.zeros(91, np.float32)}
    return save(prefix, named | slots | averages | heads | outputs | {"global_step": np.int64(200000)})
