"""TPU Mask R-CNN as its TF1 code constructs it: names of variables and outputs, without any code of ours."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.detection.interop.automl.checkpoints import Weights, save

# Test network: a ResNet-18, the smallest, with narrow heads.
SMALL = {"neck": {"filters": 8}, "box_head": {"units": 16}, "mask_head": {"filters": 8}}


class Original:
    """The network; a call constructs it as TF1 does, with random values for variables that do not exist yet.

    `variables` holds the values by name.  A layer without a name is named after its class and
    numbered, separately in each scope.
    """

    def __init__(
        self,
        *,
        scope: str = "resnet18",
        repeats: tuple[int, ...] = (2, 2, 2, 2),
        bottleneck: bool = False,
        classes: int = 3,
        masks: bool = True,
    ):
        self.variables: Weights = {}
        self._scope, self._repeats, self._bottleneck = scope, repeats, bottleneck
        self._classes, self._masks = classes, masks
        self._numbers: Counter[str] = Counter()
        self._random = np.random.default_rng(5)

    def _variable(self, name: str, shape: list[int], *, mean: float = 0.0, scale: float = 0.1) -> Any:
        if name not in self.variables:
            values = self._random.standard_normal(shape, np.float32) * scale + mean
            self.variables[name] = values.astype(np.float32)
        return tf.constant(self.variables[name])

    def _numbered(self, kind: str) -> str:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        return self._scope + "/" * bool(self._scope) + (f"{kind}_{number}" if number else kind)

    def _conv_norm(self, x: Any, filters: int, size: int, stride: int, *, relu: bool = True) -> Any:
        name = self._numbered("conv2d")
        shape = [size, size, x.shape[-1], filters]
        kernel = self._variable(f"{name}/kernel", shape, scale=(size * size * x.shape[-1]) ** -0.5)
        if stride > 1:
            margin = [(size - 1) // 2] * 2
            x = tf.pad(x, [[0, 0], margin, margin, [0, 0]])
        x = tf.nn.conv2d(x, kernel, stride, "SAME" if stride == 1 else "VALID")
        name = self._numbered("batch_normalization")
        gamma, variance = (
            self._variable(f"{name}/{part}", [filters], mean=1.0) for part in ("gamma", "moving_variance")
        )
        beta, mean = (self._variable(f"{name}/{part}", [filters]) for part in ("beta", "moving_mean"))
        x = (x - mean) / tf.sqrt(variance + 1e-4) * gamma + beta
        return tf.nn.relu(x) if relu else x

    def _block(self, x: Any, filters: int, stride: int, *, projects: bool) -> Any:
        width = 4 * filters if self._bottleneck else filters
        shortcut = self._conv_norm(x, width, 1, stride, relu=False) if projects else x
        if self._bottleneck:
            x = self._conv_norm(x, filters, 1, 1)
            x = self._conv_norm(x, filters, 3, stride)
            x = self._conv_norm(x, width, 1, 1, relu=False)
        else:
            x = self._conv_norm(x, filters, 3, stride)
            x = self._conv_norm(x, filters, 3, 1, relu=False)
        return tf.nn.relu(x + shortcut)

    def backbone(self, images: Any) -> list[Any]:
        """Returns the features of levels 2 to 5 of normalized images."""
        self._numbers.clear()
        x = tf.nn.max_pool2d(self._conv_norm(images, 64, 7, 2), 3, 2, "SAME")
        levels = []
        for level, repeats in enumerate(self._repeats):
            for block in range(repeats):
                first = block == 0
                x = self._block(x, 64 * 2**level, 2 if first and level else 1, projects=first)
            levels.append(x)
        return levels

    def _conv(self, name: str, x: Any, filters: int, size: int) -> Any:
        kernel = self._variable(f"{name}/kernel", [size, size, x.shape[-1], filters])
        return tf.nn.conv2d(x, kernel, 1, "SAME") + self._variable(f"{name}/bias", [filters])

    def _dense(self, name: str, x: Any, units: int) -> Any:
        return x @ self._variable(f"{name}/kernel", [x.shape[-1], units]) + self._variable(f"{name}/bias", [units])

    def __call__(self, images: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the pyramid's features, the RPN's scores and its boxes, of levels 2 to 6."""
        levels, filters = self.backbone(images), SMALL["neck"]["filters"]
        features = [self._conv(f"fpn/l{level}", x, filters, 1) for level, x in enumerate(levels, 2)]
        for place in (2, 1, 0):
            features[place] += tf.repeat(tf.repeat(features[place + 1], 2, 1), 2, 2)
        features = [self._conv(f"fpn/post_hoc_d{level}", x, filters, 3) for level, x in enumerate(features, 2)]
        features.append(features[-1][:, ::2, ::2])
        inner = [tf.nn.relu(self._conv("rpn_head/rpn", x, filters, 3)) for x in features]
        scores = [self._conv("rpn_head/rpn-class", x, 3, 1) for x in inner]
        return features, scores, [self._conv("rpn_head/rpn-box", x, 12, 1) for x in inner]

    def box_head(self, rois: Any) -> tuple[Any, Any]:
        """Maps features [R, 7, 7, F] to class outputs [R, C] and boxes [R, C, 4]."""
        x = tf.reshape(rois, [rois.shape[0], 49 * rois.shape[-1]])
        for name in ("fc6", "fc7"):
            x = tf.nn.relu(self._dense(f"box_head/{name}", x, SMALL["box_head"]["units"]))
        outputs = self._dense("box_head/class-predict", x, self._classes)
        boxes = self._dense("box_head/box-predict", x, 4 * self._classes)
        return outputs, tf.reshape(boxes, [-1, self._classes, 4])

    def mask_head(self, rois: Any) -> Any:
        """Maps features [R, 14, 14, F] to masks [R, 28, 28, C]."""
        x, filters = rois, SMALL["mask_head"]["filters"]
        for number in range(4):
            x = tf.nn.relu(self._conv(f"mask_head/mask-conv-l{number}", x, filters, 3))
        kernel = self._variable("mask_head/conv5-mask/kernel", [2, 2, filters, filters])
        bias = self._variable("mask_head/conv5-mask/bias", [filters])
        x = tf.nn.conv2d_transpose(x, kernel, [rois.shape[0], 28, 28, filters], 2, "VALID")
        return self._conv("mask_head/mask_fcn_logits", tf.nn.relu(x + bias), self._classes, 1)

    def construct(self) -> Weights:
        """Returns all variables."""
        self(tf.zeros([1, 64, 64, 3]))
        self.box_head(tf.zeros([1, 7, 7, SMALL["neck"]["filters"]]))
        if self._masks:
            self.mask_head(tf.zeros([1, 14, 14, SMALL["neck"]["filters"]]))
        return self.variables


def save_original(prefix: Path, variables: Weights) -> str:
    """Writes a checkpoint of TF1, with slots of the optimizer for some of the variables."""
    slots = {f"{name}/Momentum": np.zeros_like(value) for name, value in variables.items() if "head/" in name}
    return save(prefix, variables | slots | {"global_step": np.int64(22500)})
