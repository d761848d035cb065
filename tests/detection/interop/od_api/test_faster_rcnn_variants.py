"""Which Faster R-CNN a checkpoint of the Object Detection API is of, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.weights.imported_model import import_model
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.interop.automl.checkpoints import save
from tests.detection.interop.od_api.original_faster_rcnn import REPEATS, slim_name


def test_the_resnet_of_a_retinanet_has_the_settings_of_an_fpn() -> None:
    fpn = {f"ResNet50V1_FPN/FeatureMaps/top_down/projection_{number}/kernel": (1, 1, 9, 256) for number in (1, 2, 3)}
    found = FasterRcnnFormat(shapes_of(50) | fpn, "it").overrides(FASTER_RCNNS["faster-rcnn-r50"])
    assert (found["activation"], found["batch_norm.epsilon"], "dialect" in found) == ("relu6", 1e-3, False)
    assert FasterRcnnFormat(shapes_of(50) | fpn, "it").class_count(FASTER_RCNNS["faster-rcnn-r50"]) is None
    alone = FasterRcnnFormat(shapes_of(50), "it").overrides(FASTER_RCNNS["faster-rcnn-r50"])
    assert (alone["activation"], alone["batch_norm.epsilon"]) == ("relu", 1e-5)


def shapes_of(depth: int) -> dict[str, tuple[int, ...]]:
    """The first convolution of each block, which tell a variant."""
    names = [
        f"conv{level}_block{block}_1_conv/kernel"
        for level, repeats in enumerate(REPEATS[depth], 2)
        for block in range(1, repeats + 1)
    ]
    return dict.fromkeys(names, (1, 1, 64, 64))


@pytest.mark.parametrize("slim", [True, False])
@pytest.mark.parametrize("depth", [50, 101, 152])
def test_another_variant_is_refused_by_the_name_of_the_right_one(depth: int, *, slim: bool) -> None:
    shapes = {slim_name(name) if slim else name: shape for name, shape in shapes_of(depth).items()}
    for name, config in FasterRcnnFormat.presets.items():
        if f"r{depth}" in name.split("-"):
            FasterRcnnFormat(shapes, "it").require_variant(config, name)
        else:
            right = f"faster-rcnn-r{depth} or mask-rcnn-r{depth} or faster-rcnn-r{depth}-c4"
            with pytest.raises(DataError, match=f"it: the checkpoint is of {right}, not of {name}. Pass --model"):
                FasterRcnnFormat(shapes, "it").require_variant(config, name)
    shapes.pop(next(reversed(shapes)))
    with pytest.raises(DataError, match=r"no known variant: it has a ResNet of 3, \d+, \d+, 2 blocks; .* resnet-50"):
        FasterRcnnFormat(shapes, "it").require_variant(FasterRcnnFormat.presets["mask-rcnn-r50"], "mask-rcnn-r50")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["FirstStageFeatureExtractor/InceptionResnetV2/Conv2d_1a_3x3/weights"], "the network is an Inception-ResNet"),
        (["block35_1_conv/kernel", "conv2d_7/kernel"], "the network is an Inception-ResNet; no detector here"),
        (["bifpn/node_00/1_up_lvl_7/input_0_up_lvl_6/1x1_pre_sample/conv/kernel"], "the network is an EfficientDet"),
        (
            ["stack_0/block_0/expand_conv2d/kernel"],
            "the network is an EfficientDet, which --model efficientdet-d0 to efficientdet-d7 imports",
        ),
        (
            ["Conv1/kernel", "bn_Conv1/gamma"],
            r"not a checkpoint of .* Examples of its variables: Conv1/kernel, bn_Conv1/gamma",
        ),
    ],
)
def test_networks_that_cannot_be_imported_are_refused_with_the_reason(
    tmp_path: Path, names: list[str], message: str
) -> None:
    prefix = save(tmp_path / "ckpt", dict.fromkeys(names, np.zeros(3, np.float32)))
    with pytest.raises(DataError, match=f"ckpt: {message}"):
        import_model(FasterRcnnFormat, prefix, load_config(None, ["model.name=faster-rcnn-r50", "model.image_size=64"]))


def test_backbones_that_the_original_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.name = resnet-18: .*, those with resnet-50, "):
        FasterRcnnFormat.structures(FASTER_RCNNS["mask-rcnn-r18"])
    assert all(
        FasterRcnnFormat.structures(config) == (config.backbone.name,) for config in FasterRcnnFormat.presets.values()
    )
