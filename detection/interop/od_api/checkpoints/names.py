"""Names of variables in the TF Object Detection API's checkpoints of Faster R-CNNs and SSDs, except EfficientDet's.

Checkpoints of TF2 have the names of Keras layers, such as `conv2_block1_1_conv/kernel`, with or
without a scope; those of TF1 have TF-Slim's, such as
`FirstStageFeatureExtractor/resnet_v1_50/block1/unit_1/bottleneck_v1/conv1/weights`.  Both get the
same unscoped name, in most cases that of TF2 without scope.
"""

import re
from collections.abc import Collection, Mapping

from detection.interop.od_api.checkpoints.slim import from_slim
from detection.models.backbones.resnet import RESNETS
from detection.weights.checkpoint_format import Shapes, some
from schemas.errors import DataError

FPN_EPSILON = 1e-3  # epsilon of all batch norms in the original's configurations with an FPN
BACKBONE_LEVEL = 5

# Suffixes of the names of variables of weight-shared heads, EfficientDet's too.
HEAD_ENDS = (
    r"((?:Box|Class|)PredictionTower/.+)",
    r"WeightSharedConvolutional(?:Box|Class)Head/((?:Box|Class)Predictor/\w+)",
)
# Suffixes of TF2 names, and unscoped names.
_KERAS = (
    (r"(conv1_(?:conv|bn)/\w+|post_bn/\w+)", r"\1"),
    (r"(conv[2-5]_block\d+_(?:[0-3]|preact)_(?:conv|bn)/\w+)", r"\1"),
    (r"(conv1/kernel|(?:bn_)?Conv1/\w+|Conv_1(?:_bn)?/\w+)", r"\1"),  # MobileNets; TF-Slim has a conv1/weights
    (r"((?:conv_[dp]w_\d+(?:_bn)?|(?:block_\d+|expanded_conv)_\w+)/\w+)", r"\1"),
    (r"(projection_\d+/\w+)", r"\1"),
    (r"(smoothing_\d+_)(?:depthwise_)?((?:conv|batchnorm)/\w+)", r"\1\2"),
    (r"bottom_up_(?:block|Conv2d_)(\d+_)(?:depthwise_)?((?:conv|batchnorm)/\w+)", r"bottom_up_block\1\2"),
    *((ending, r"\1") for ending in HEAD_ENDS),
    (r"(RPN(?:Conv|BatchNorm)/\w+)", r"\1"),
    # Levels of SSDs above the backbone's, as `extra_2_1x1_conv` and `extra_2_3x3_conv`; the RPN's and SSDs' heads.
    (r"layer_\w+_Conv2d_(\d+)_([13]x[13])(?:_s2)?_\d+_((?:depthwise_)?(?:conv|batchnorm)/\w+)", r"extra_\1_\2_\3"),
    (
        r"Convolutional(?:Box|Class)Head_(\d+)/(BoxEncodingPredictor|ClassPredictor)(_depthwise(?:_batchnorm)?|)/(\w+)",
        r"\2_\1\3/\4",
    ),
    (r"((?:BoxEncodingPredictor|ClassPredictor)_(?:dense|batchnorm)/\w+)", r"\1"),
)
# Layers between the RoIs' features and the outputs; Keras numbers them across the process.
_KINDS = ("dense", "freezable_batch_norm")
_NUMBERED = re.compile(rf"(?:.*/)?({'|'.join(_KINDS)})(?:_(\d+))?/(\w+)")

# Variables that a Faster R-CNN without an FPN has in TF2.
_C4 = {f"{layer}/kernel" for layer in ("RPNConv", "BoxEncodingPredictor_0", "BoxEncodingPredictor_dense")}

# Unsupported networks: patterns of their variables' names, and descriptions.
_OTHERS = {
    r"InceptionResnetV2|(?:^|/)block(?:35|17|8)_\d+_": "an Inception-ResNet; no detector here has such a backbone",
    r"InceptionV[23]/": "an Inception; no detector here has such a backbone",
    r"MobilenetV3/|MobilenetEdgeTPU/|MobileDet": "a MobileNet V3 or a MobileDet; no detector here has such a backbone",
    r"(?:^|/)cell_\d+/comb_iter_\d+/": "a NASNet; no detector here has such a backbone",
    r"bifpn|stack_\d+/block_\d+/": "an EfficientDet, which --model efficientdet-d0 to efficientdet-d7 imports",
}


def unscoped_names(theirs: Collection[str]) -> dict[str, str]:
    """Returns the names in a checkpoint by unscoped names, for variables of the networks.

    >>> unscoped_names(["SecondStageFeatureExtractor/resnet_v1_50/block4/unit_2/bottleneck_v1/conv3/BatchNorm/beta"])
    ... # doctest: +ELLIPSIS
    {'conv5_block2_3_bn/beta': 'SecondStageFeatureExtractor/resnet_v1_50/...'}
    >>> unscoped_names(["dense_7/bias", "dense_6/bias"])
    {'dense_0/bias': 'dense_6/bias', 'dense_1/bias': 'dense_7/bias'}
    """
    found = {here: name for name in theirs if (here := from_slim(name) or _keras_name(name))}
    return found | _numbered(theirs)


def _keras_name(name: str) -> str | None:
    for expression, here in _KERAS:
        match = re.fullmatch(f"(?:.*/)?{expression}", name)
        if match:
            return match.expand(here)
    return None


def _numbered(theirs: Collection[str]) -> dict[str, str]:
    """Numbers the layers of each class from 0, in the order of their numbers."""
    found = {name: match for name in theirs if (match := _NUMBERED.fullmatch(name))}
    numbers = {kind: sorted({int(one[2] or 0) for one in found.values() if one[1] == kind}) for kind in _KINDS}
    return {
        f"{match[1]}_{numbers[match[1]].index(int(match[2] or 0))}/{match[3]}": name
        for name, match in sorted(found.items(), key=lambda item: int(item[1][2] or 0))
    }


def resnet_of_variables(shapes: Shapes, *, where: str) -> str:
    """Returns the name of a checkpoint's ResNet, from the blocks of its stages; `where` is for errors.

    Raises:
        DataError: the checkpoint has no ResNet; the message describes it.
    """
    blocks = {
        (int(match[1]), int(match[2]))
        for name in unscoped_names(shapes)
        if (match := re.fullmatch(r"conv(\d)_block(\d+)_1_conv/kernel", name))
    }
    if not blocks:
        raise _no_resnet(shapes, where)
    counts = tuple(max((block for stage, block in blocks if stage == level), default=0) for level in range(2, 6))
    known = (name for name, spec in RESNETS.items() if spec.bottleneck and spec.repeats == counts)
    return next(known, f"a ResNet of {', '.join(map(str, counts))} blocks")


def _no_resnet(shapes: Shapes, where: str) -> DataError:
    for expression, network in _OTHERS.items():
        if any(re.search(expression, name) for name in shapes):
            return DataError(
                f"{where}: the network is {network}. Specify a checkpoint of a Faster R-CNN with a ResNet v1."
            )
    return DataError(
        f"{where}: not a checkpoint of the Object Detection API's Faster R-CNN with a ResNet v1: variables "
        f"conv2_block1_1_conv/kernel (TF2) or resnet_v1_50/block1/unit_1/bottleneck_v1/conv1/weights (TF1) are "
        f"missing. Examples of its variables: {some(sorted(shapes))}."
    )


def is_fpn(names: Collection[str]) -> bool:
    """Returns whether the network has an FPN, by unscoped names: a Faster R-CNN, or an SSD (RetinaNet)."""
    return "projection_1/kernel" in names


def architecture(names: Collection[str]) -> str | None:
    """Returns the architecture of a Faster R-CNN, `fpn` or `c4`, by unscoped names; None: no RPN of TF2."""
    if is_fpn(names):
        return "fpn" if "RPNConv/kernel" in names else None
    return "c4" if set(names) >= _C4 else None


def fpn_levels(names: Mapping[str, str]) -> tuple[int, int]:
    """Returns the finest and the coarsest level of an FPN, by unscoped names."""
    projections, above = (
        sum(bool(re.fullmatch(rf"{layer}\d+(_conv)?/(pointwise_)?kernel", name)) for name in names)
        for layer in ("projection_", "bottom_up_block")
    )
    return BACKBONE_LEVEL + 1 - projections, BACKBONE_LEVEL + above
