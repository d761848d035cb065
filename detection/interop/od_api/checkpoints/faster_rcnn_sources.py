"""Sources of our Faster R-CNN's variables in the TF Object Detection API's checkpoints.

The values differ in four ways: batch norms that ours does not have are folded into the adjacent
layer, with their values at inference; the RPN has two class outputs per anchor, for a softmax, and
its boxes are scaled; the anchors of a cell have another order; and the background has no box.
"""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from detection.interop.od_api.checkpoints.names import FPN_EPSILON, fpn_levels, is_fpn
from detection.models.backbones.resnet import application_layer
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.weights.checkpoint_format import CheckpointFormat, Shape, Shapes, Values, VariableSource

_BOX_SCALES = np.array([10.0, 10.0, 5.0, 5.0], np.float32)  # factors of (ty, tx, th, tw) in the box coder and the RPN


def by_scale(values: Values, *, scales: int, ratios: int) -> Values:
    """Reorders the outputs of a cell's anchors from aspect ratio first, the original's order, to octave scale first.

    Args:
        values: [..., ratios * scales * W], W outputs per anchor.
        scales: number of octave scales.
        ratios: number of aspect ratios.
    """
    cell = values.reshape(*values.shape[:-1], ratios, scales, -1)
    return np.moveaxis(cell, -2, -3).reshape(values.shape)


def without_box_scales(values: Values) -> Values:
    """Divides the outputs of encoded boxes, [..., N * 4] of (ty, tx, th, tw), by the factors of the box coder."""
    return (values.reshape(*values.shape[:-1], -1, 4) / _BOX_SCALES).reshape(values.shape)


def faster_rcnn_sources(
    checkpoint: CheckpointFormat, ours: Shapes, config: FasterRcnnConfig
) -> dict[str, VariableSource]:
    """Implements `CheckpointFormat.sources`."""
    parts: dict[str, Callable[[CheckpointFormat, str, Shape], VariableSource]] = {
        config.backbone.name: _backbone_source,
        "fpn": _fpn_source,
        "rpn": functools.partial(_rpn_source, config=config),
        "box_head": _box_head_source,
    }
    sources = {}
    for path, shape in ours.items():
        part, _, rest = path.partition("/")
        if part in parts:
            sources[path] = parts[part](checkpoint, rest, shape)
    return sources


def _source(
    checkpoint: CheckpointFormat, shapes: Mapping[str, Shape], convert: Callable[..., Values]
) -> VariableSource:
    """Returns the source with these variables; `convert` maps their values by name."""
    return VariableSource(
        tuple(checkpoint.names.get(name, name) for name in shapes),
        tuple(shapes.values()),
        lambda *values: convert(dict(zip(shapes, values, strict=True))),
    )


def _norm(checkpoint: CheckpointFormat, layer: str, width: int) -> dict[str, Shape]:
    """Returns the shapes of a batch norm's variables, without scale and offset if it has none."""
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    return {
        f"{layer}/{part}": (width,)
        for part in parts
        if part.startswith("moving") or f"{layer}/{part}" in checkpoint.names
    }


def _folded(checkpoint: CheckpointFormat, layer: str, norm: str, kernel: Shape, variable: str) -> VariableSource:
    """Returns the source of a layer's kernel or bias, with a batch norm after it folded in, if there is one.

    Args:
        checkpoint: the checkpoint.
        layer: name of the layer.
        norm: name of the batch norm.
        kernel: shape of the kernel in the checkpoint.
        variable: `kernel` or `bias`.
    """
    width, bias = kernel[-1], f"{layer}/bias"
    if f"{norm}/moving_variance" not in checkpoint.names:
        return checkpoint.source(f"{layer}/{variable}", kernel if variable == "kernel" else (width,))
    shapes = _norm(checkpoint, norm, width)
    if variable == "kernel":
        required = {f"{layer}/kernel": kernel} | shapes
        return _source(checkpoint, required, lambda values: values[f"{layer}/kernel"] * _affine(norm, values)[0])
    required = ({bias: (width,)} if bias in checkpoint.names else {}) | shapes

    def offset(values: Mapping[str, Values]) -> Values:
        scale, shift = _affine(norm, values)
        return shift + scale * values.get(bias, np.float32(0.0))

    return _source(checkpoint, required, offset)


def _affine(norm: str, values: Mapping[str, Values]) -> tuple[Values, Values]:
    """Returns the factor and the offset of a batch norm at inference, each [C]."""
    one, zero = np.float32(1.0), np.float32(0.0)
    mean, variance = values[f"{norm}/moving_mean"], values[f"{norm}/moving_variance"]
    scale = values.get(f"{norm}/gamma", one) / np.sqrt(variance + np.float32(FPN_EPSILON))
    return scale, values.get(f"{norm}/beta", zero) - mean * scale


def _backbone_source(checkpoint: CheckpointFormat, path: str, shape: Shape) -> VariableSource:
    layer, _, variable = path.rpartition("/")
    return checkpoint.source(f"{application_layer(layer)}/{variable}", shape)


def _fpn_source(checkpoint: CheckpointFormat, path: str, shape: Shape) -> VariableSource:
    """Returns a source in the FPN; the original counts projections from the finest level, extra levels by stage."""
    layer, variable = path.split("/")
    kind, _, level = layer.rpartition("p")
    number = int(level) - fpn_levels(checkpoint.names)[0] + 1
    if kind == "lateral_":
        return checkpoint.source(f"projection_{number}/{variable}", shape)
    block = f"smoothing_{number}" if kind == "output_" else f"bottom_up_block{int(level) - 1}"
    width = shape[-1]
    return _folded(checkpoint, f"{block}_conv", f"{block}_batchnorm", (3, 3, width, width), variable)


def _rpn_source(checkpoint: CheckpointFormat, path: str, shape: Shape, *, config: FasterRcnnConfig) -> VariableSource:
    """Returns a source in the RPN; the original orders anchors by aspect ratio and has outputs for both classes."""
    layer, variable = path.split("/")
    if layer == "conv2d":
        return _folded(checkpoint, "RPNConv", "RPNBatchNorm", shape, variable)
    kind, _, level = layer.partition("_p")
    number = int(level) - (fpn_levels(checkpoint.names)[0] if is_fpn(checkpoint.names) else config.min_level)
    reordered = functools.partial(by_scale, scales=config.anchors.num_scales, ratios=len(config.anchors.aspect_ratios))
    if kind == "score":
        name = f"ClassPredictor_{number}/{variable}"

        def convert(values: Values) -> Values:
            pairs = reordered(values)
            return pairs[..., 1::2] - pairs[..., ::2]

        shape = (*shape[:-1], 2 * shape[-1])
    else:
        name = f"BoxEncodingPredictor_{number}/{variable}"

        def convert(values: Values) -> Values:
            return without_box_scales(reordered(values))

    return checkpoint.source(name, shape, convert)


def _box_head_source(checkpoint: CheckpointFormat, path: str, shape: Shape) -> VariableSource:
    layer, variable = path.split("/")
    if layer == "fc7":
        return _second_layer(checkpoint, variable, shape)
    if layer.startswith("fc"):
        return checkpoint.source(f"dense_{int(layer[2:]) - 6}/{variable}", shape)
    if layer == "class":
        return _folded(checkpoint, "ClassPredictor_dense", "ClassPredictor_batchnorm", shape, variable)
    kernel = shape if shape[-1] == 4 else (*shape[:-1], shape[-1] - 4)
    boxes = _folded(checkpoint, "BoxEncodingPredictor_dense", "BoxEncodingPredictor_batchnorm", kernel, variable)
    if shape[-1] == 4:  # one for all classes
        return boxes
    return boxes._replace(convert=lambda *values: _with_background(boxes.convert(*values)))


def _second_layer(checkpoint: CheckpointFormat, variable: str, shape: Shape) -> VariableSource:
    """Returns the source of the box head's second layer, with the batch norm before it folded in, if there is one."""
    norm, kernel, bias = "freezable_batch_norm_0", "dense_1/kernel", "dense_1/bias"
    if f"{norm}/moving_variance" not in checkpoint.names:
        return checkpoint.source(f"dense_1/{variable}", shape)
    side = shape[-1]
    required = {kernel: (side, side)} | _norm(checkpoint, norm, side)
    if variable == "kernel":
        return _source(checkpoint, required, lambda values: _affine(norm, values)[0][:, np.newaxis] * values[kernel])
    return _source(
        checkpoint, {bias: shape} | required, lambda values: values[bias] + _affine(norm, values)[1] @ values[kernel]
    )


def _with_background(values: Values) -> Values:
    """Adds an unused box of the background before the boxes of the classes."""
    return np.concatenate([np.zeros_like(values[..., :4]), values], axis=-1)
