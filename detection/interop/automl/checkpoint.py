"""google/automl's checkpoints of EfficientDet: names of variables, structure of the network, class outputs."""

from typing import ClassVar

from detection.interop.efficientdet import Structure, structure_of_config
from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from detection.weights.checkpoint_format import CheckpointFormat, Shapes, VariableSource, count_of, some
from schemas.errors import DataError

_CLASS_BIAS = "class_net/class-predict/bias"


def automl_name(path: str) -> str:
    """Returns google/automl's name of a variable; only two parts of the names differ.

    >>> automl_name("efficientnet-b0/blocks_1/depthwise_conv2d/kernel")
    'efficientnet-b0/blocks_1/depthwise_conv2d/depthwise_kernel'
    >>> automl_name("efficientnet-b0/stem/batch_normalization/gamma")
    'efficientnet-b0/stem/tpu_batch_normalization/gamma'
    """
    return path.replace("/batch_normalization", "/tpu_batch_normalization").replace(
        "/depthwise_conv2d/kernel", "/depthwise_conv2d/depthwise_kernel"
    )


class AutomlFormat(CheckpointFormat):
    """A checkpoint of google/automl's EfficientDet."""

    title = "google/automl"
    family = "an EfficientDet"
    config_class = EfficientDetConfig
    presets = EFFICIENTDETS
    postprocess: ClassVar = {"nms": "gaussian"}  # its published metrics use Gaussian soft NMS
    class_bias = _CLASS_BIAS

    @classmethod
    def structures(cls, config: EfficientDetConfig) -> tuple[Structure]:
        """Implements `CheckpointFormat.structures`."""
        return (structure_of_config(config),)

    def structure(self) -> Structure:
        """Implements `CheckpointFormat.structure`."""
        shapes = self.shapes
        stem = next((shape for name, shape in shapes.items() if name.endswith("/stem/conv2d/kernel")), None)
        box = shapes.get("box_net/box-predict/pointwise_kernel")
        if stem is None or box is None or _CLASS_BIAS not in shapes:
            raise DataError(
                f"{self.where}: not a checkpoint of google/automl's EfficientDet: a variable stem/conv2d/kernel, "
                f"{_CLASS_BIAS} or box_net/box-predict/pointwise_kernel is missing. Examples of its variables: "
                f"{some(sorted(shapes))}."
            )
        return Structure(
            stem_filters=stem[-1],
            blocks=count_of(r".*/blocks_(\d+)/.*", shapes),
            squeeze_excite=any("/se/conv2d/" in name for name in shapes),
            fpn_filters=box[-2],
            fpn_cells=count_of(r"fpn_cells/cell_(\d+)/.*", shapes),
            fpn_weights=any(name.endswith("/WSM") for name in shapes),
            head_layers=count_of(r"class_net/class-(\d+)/.*", shapes),
            max_level=count_of(r"class_net/class-0-bn-(\d+)/.*", shapes) - 1,
        )

    def class_count(self, config: EfficientDetConfig) -> int:
        """Returns the number of classes, from the length of the class outputs.

        Raises:
            DataError: the class outputs do not divide evenly among the anchors of a cell.
        """
        [outputs] = self.shapes[_CLASS_BIAS]
        anchors = config.anchors.per_cell
        if outputs % anchors:
            raise DataError(
                f"{self.where}: {outputs} class outputs do not divide evenly among {anchors} anchors per cell. Pass "
                "num_scales and aspect_ratios of its hparams with --set model.overrides.FIELD=VALUE."
            )
        return outputs // anchors

    def sources(self, ours: Shapes, config: EfficientDetConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        return {path: self.source(automl_name(path), shape) for path, shape in ours.items()}
