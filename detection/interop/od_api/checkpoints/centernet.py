"""The TF Object Detection API's checkpoints of CenterNets, of TF2.

Names are paths of objects, as those of layers count the layers of a process.  Sources:
`center_net_resnet_v1_fpn_feature_extractor.py` and `center_net_meta_arch.py` of the original, and its configurations,
such as `centernet_resnet50_v1_fpn_512x512_coco17_tpu-8.config`.
"""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from detection.interop.od_api.checkpoints.backbones import OdApiFormat, backbone_layer
from detection.interop.od_api.checkpoints.layers import ROOT, backbone_of, is_alone, keras_layers, with_layer_names
from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.backbones.resnet import RESNETS_V2
from detection.models.centernet.config import CENTERNETS, PERSON_SPREADS, CenterNetConfig, head_keys
from detection.models.centernet.keypoint_options import HEATMAP, OFFSET, REGRESSION
from detection.weights.checkpoint_format import Shapes, Values, VariableSource, some, unchanged
from schemas.config.section import value_at
from schemas.errors import DataError

_EXTRACTOR, _HEADS = "model/_feature_extractor", "model/_prediction_head_dict"
_BASE, _NECK = (f"{_EXTRACTOR}/{part}/layer_with_weights-" for part in ("_base_model", "_feature_extractor_model"))
_NETWORK = f"{_EXTRACTOR}/_network/"
_SCOPES = {"center": "object_center", "size": "box/scale", "offset": "box/offset"}
_KEYPOINT_HEADS = re.compile(f"{_HEADS}/([^/]+)/keypoint/(heatmap|offset|regression)/0/layer_with_weights-0/bias")
_POINTWISE_HEAD = re.compile(rf"{re.escape(_HEADS)}.*/pointwise_kernel")
_WITH_KEYPOINTS = " with keypoints"
_HOURGLASS_STEM = {"stem": "downsample_input/conv_block", "stem_block": "downsample_input/residual_block"}
# Layers of a convolution with batch norm, and of a block.
_HOURGLASS_LAYERS = {
    "conv2d": "conv",
    "batch_normalization": "norm",
    "conv2d_1": "conv_block/conv",
    "batch_normalization_1": "conv_block/norm",
    "conv2d_2": "conv",
    "batch_normalization_2": "norm",
    "shortcut_conv2d": "skip/conv",
    "shortcut_batch_normalization": "skip/norm",
}
# Variables that every such network has, and their numbers of axes.
_SIZED = {f"{_HEADS}/{task}/0/layer_with_weights-0/bias": 1 for task in _SCOPES.values()}
_FUNCTION = ("backbone.layout", "batch_norm.epsilon", "pixel_mean", "pixel_std")
_RESNETS, _V2, _MOBILENET = ("resnet-18", "resnet-34", "resnet-50", "resnet-101"), tuple(RESNETS_V2), "mobilenet-v2"
_LAYERS = {name: keras_layers(name) for name in (*_RESNETS, *_V2, _MOBILENET)}
# Backbones by the number of their layers with weights.
_COUNTS = {len(layers): name for name, layers in _LAYERS.items()}
_COUNTS |= zip((28, 60, 98, 160, 320), HOURGLASSES, strict=True)
_PREACTIVATED = (*_RESNETS[:2], *_V2)  # convolutions before their batch norms have no bias
_PRESETS = {name: preset for name, preset in CENTERNETS.items() if preset.backbone.name in (*_LAYERS, *HOURGLASSES)}


def _kernel(layer: str, names: Collection[str]) -> str:
    """Returns the name of the kernel with a layer's outputs, of a plain or a separable convolution."""
    separable = f"{layer}/pointwise_kernel"
    return separable if separable in names else f"{layer}/kernel"


def _layer(part: str, layer: str, config: CenterNetConfig, scopes: Mapping[str, str]) -> tuple[str, str]:
    """Returns the names of a layer, and of the convolution with a bias before it if it is a batch norm."""
    if part in HOURGLASSES:
        scope, _, last = layer.rpartition("/")
        scope = _HOURGLASS_STEM.get(scope, scope)
        own = f"{scope}/{_HOURGLASS_LAYERS[last]}"
        return re.sub(r"_(\d+)(?=/)", r"/\1", f"{_NETWORK}{own}"), ""
    if part == config.backbone.name:
        names, own = _LAYERS[config.backbone.name], backbone_layer(config.backbone.name, layer)
        if part == _MOBILENET:
            return f"{_BASE}{names.index(own)}", ""
        conv = own.removesuffix("bn").removesuffix("conv") + "conv"
        biased = part not in _PREACTIVATED
        return f"{_BASE}{names.index(own)}", f"{_BASE}{names.index(conv)}" if biased else ""
    if part == "neck":
        kind, place, *norm = layer.split("_")
        first = 4 * int(place) - 3 + 2 * (kind == "deconv") if config.neck.kind == "deconv" else 3 * int(place)
        number = max(first - (kind == "lateral"), 1) + len(norm)
        return f"{_NECK}{number}", f"{_NECK}{number - 1}"
    task, _, place = part.partition("_head")
    count = len(config.head.layers(task)) if layer == "predict" else layer.removeprefix("conv").removeprefix("_") or 0
    return f"{_HEADS}/{scopes[task]}/{place.removeprefix('_') or 0}/layer_with_weights-{count}", ""


def _from_bgr(kernel: Values) -> Values:
    return kernel[:, :, ::-1]


class CenterNetFormat(OdApiFormat):
    """A checkpoint of a CenterNet."""

    family = "a CenterNet"
    config_class = CenterNetConfig
    presets = _PRESETS
    postprocess: ClassVar = {"score_threshold": 0.0}
    object_paths = True

    @classmethod
    def names_of(cls, theirs: Collection[str]) -> Mapping[str, str]:
        """Implements `CheckpointFormat.names_of`, with the paths of a detector for those of a backbone alone."""
        if not is_alone(theirs):
            return {name: name for name in theirs}
        named = {tuple(here.rpartition("/")[::2]): name for here, name in with_layer_names(theirs).items()}
        layers = keras_layers(backbone_of({layer for layer, _ in named}) or "")
        if not layers:  # an hourglass has paths of objects alone
            return {re.sub(f"^{ROOT}/", _NETWORK, name): name for name in theirs}
        return {
            f"{_BASE}{layers.index(layer)}/{variable}": name
            for (layer, variable), name in named.items()
            if layer in layers
        }

    def known_backbone(self) -> str | None:
        """Implements `OdApiFormat.known_backbone`."""
        return _COUNTS.get(self._layer_count())

    @classmethod
    def function(cls, backbone: str) -> Mapping[str, Any]:
        """Implements `OdApiFormat.function`."""
        preset = next(one for one in _PRESETS.values() if one.backbone.name == backbone)
        preactivated = {"backbone.layout": "od-api"} if backbone in _PREACTIVATED else {}
        return {name: value_at(preset, name) for name in _FUNCTION} | preactivated

    def network(self, config: CenterNetConfig) -> dict[str, Any]:
        """Implements `OdApiFormat.network`; sizes of the network are those of its variables."""
        backbone, names = self._backbone(), self.names
        layers = () if backbone in HOURGLASSES else (1, 5, 9) if backbone in _V2 else (1, 3, 6, 9)
        neck = {_kernel(f"{_NECK}{number}", names): 4 for number in layers}
        start = "not a checkpoint of a CenterNet with a ResNet, a MobileNet v2 or an Hourglass:"
        self.require_variables(_SIZED | neck, start)
        counts = self._keypoint_heads() if config.keypoints else {}
        scopes = self._scopes() if counts else _SCOPES
        return {
            **self.function(backbone),
            "neck.kind": "deconv" if backbone in _V2 else "fpn",
            "neck.filters": [self.shape(name)[-1] for name in neck],
            **head_keys({task: self._head_layers(scope)[:-1] for task, scope in scopes.items()}),
            "neck.separable_conv": any("pointwise" in name for name in neck),
            "head.separable_conv": any(_POINTWISE_HEAD.fullmatch(name) for name in names),
            "padding": "black",
            **({"keypoints.per_keypoint_offset": counts[OFFSET] == counts[REGRESSION]} if counts else {}),
        }

    @classmethod
    def structures(cls, config: CenterNetConfig) -> tuple[str, ...]:
        """Returns the structures of a configured network: its backbone, with keypoints if they are needed.

        Raises:
            ConfigError: the original has no such network, or it cannot be imported.
        """
        cls.require_backbone(config, "the Object Detection API's CenterNets")
        with_keypoints = config.backbone.name + _WITH_KEYPOINTS
        return (with_keypoints,) if config.keypoints else (config.backbone.name, with_keypoints)

    def structure(self) -> str:
        """Returns the name of the backbone, with keypoints if the checkpoint has them.

        Raises:
            DataError: no known backbone, or keypoints of more than one class.
        """
        return self._backbone() + (_WITH_KEYPOINTS if self._keypoint_heads() else "")

    def classes(self, config: CenterNetConfig) -> int:
        """Implements `OdApiFormat.classes`."""
        return self._head_layers(_SCOPES["center"])[-1][0]

    def categories(self, categories: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the categories, with names of keypoints if the network finds keypoints.

        Without a label map that names them, they are those of the first class: COCO's if there are 17, else numbers.

        Raises:
            DataError: the label map has another number of keypoints.
        """
        count = self._keypoint_heads().get(HEATMAP, 0)
        named = sum(len(category.get("keypoints", ())) for category in categories)
        if not count or named == count:
            return categories
        if named:
            raise DataError(
                f"{self.where}: the checkpoint has {count} keypoints, but the categories of the label map {named}. "
                "Pass the label map of its training."
            )
        names = PERSON_SPREADS if count == len(PERSON_SPREADS) else [str(number) for number in range(1, count + 1)]
        return [categories[0] | {"keypoints": list(names)}, *categories[1:]]

    def sources(self, ours: Shapes, config: CenterNetConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`.

        Convolutions before batch norm have a bias in the original only; here it is subtracted from the moving mean.
        """
        sources = {}
        scopes = self._scopes()
        for path, shape in ours.items():
            layer, _, variable = path.rpartition("/")
            part, _, rest = layer.partition("/")
            name, conv = _layer(part, rest, config, scopes)
            names = [f"{name}/{'depthwise_kernel' if 'depthwise' in layer and variable == 'kernel' else variable}"]
            convert: Callable[..., Values] = unchanged
            if variable == "moving_mean" and f"{conv}/bias" in self.names:
                names.append(f"{conv}/bias")
                convert = operator.sub
            elif rest in ("stem", "stem/conv2d") and variable == "kernel" and part not in (*_V2, _MOBILENET):
                convert = _from_bgr
            theirs = tuple(self.names.get(name, name) for name in names)
            sources[path] = VariableSource(theirs, (shape,) * len(names), convert)
        return sources

    def _backbone(self) -> str:
        """Returns the name of the backbone, from the number of its layers.

        Raises:
            DataError: it has as many layers as no known one.
        """
        count = self._layer_count()
        if count in _COUNTS:
            return _COUNTS[count]
        raise DataError(
            f"{self.where}: not a checkpoint of a CenterNet with {', '.join(_COUNTS.values())}: {count} layers are "
            f"named {_BASE}... or {_NETWORK}.... Examples of its variables: {some(sorted(self.shapes))}."
        )

    def _layer_count(self) -> int:
        """Returns the number of the backbone's layers."""
        kernels = ("/kernel", "/depthwise_kernel", "/gamma")
        return sum(name.startswith((_BASE, _NETWORK)) and name.endswith(kernels) for name in self.names)

    def _keypoint_heads(self) -> dict[str, int]:
        """Returns the output channels of the heads of keypoints, by our names; {} without keypoints.

        Raises:
            DataError: more than one class with keypoints.
        """
        return {task: self._head_layers(scope)[-1][0] for task, scope in self._scopes().items() if task not in _SCOPES}

    def _scopes(self) -> dict[str, str]:
        """Returns the original's names of our heads.

        Raises:
            DataError: more than one class with keypoints.
        """
        found = [match for name in self.shapes if (match := _KEYPOINT_HEADS.fullmatch(name))]
        if len({match[1] for match in found}) > 1:
            raise DataError(f"{self.where}: has heads of keypoints for more than one class, which cannot be imported.")
        return _SCOPES | {f"keypoint_{match[2]}": f"{match[1]}/keypoint/{match[2]}" for match in found}

    def _head_layers(self, scope: str) -> list[tuple[int, int]]:
        """Returns the channels and the kernel side of each layer of a head, the last of which is its output."""
        layers: list[tuple[int, int]] = []
        while bias := self.shape(f"{(layer := f'{_HEADS}/{scope}/0/layer_with_weights-{len(layers)}')}/bias"):
            kernel = self.shape(f"{layer}/depthwise_kernel") or self.shape(f"{layer}/kernel")
            layers.append((bias[0], kernel[0]))
        return layers
