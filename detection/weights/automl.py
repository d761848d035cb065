"""google/automl's checkpoints of EfficientDet: names of variables, structure of the network, class outputs."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from detection.datasets.coco_categories import COCO_CLASS_COUNTS, coco_classes
from detection.datasets.importers.label_map import LabelMap
from detection.models.backbones.efficientnet_spec import BACKBONES, block_specs, stem_filters
from detection.models.efficientdet.config import EFFICIENTDETS, EfficientDetConfig
from schemas.errors import DataError

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

# Post-processing of an imported model where the original's differs from ours: fields of `model.postprocess`.
POSTPROCESS: dict[str, Any] = {}
CLASS_BIAS = "class_net/class-predict/bias"
_LISTED = 5  # variables in a message


def automl_name(path: str) -> str:
    """Returns the name in google/automl of a variable of ours; google/automl differs in two words only.

    >>> automl_name("efficientnet-b0/blocks_1/depthwise_conv2d/kernel")
    'efficientnet-b0/blocks_1/depthwise_conv2d/depthwise_kernel'
    >>> automl_name("efficientnet-b0/stem/batch_normalization/gamma")
    'efficientnet-b0/stem/tpu_batch_normalization/gamma'
    """
    return path.replace("/batch_normalization", "/tpu_batch_normalization").replace(
        "/depthwise_conv2d/kernel", "/depthwise_conv2d/depthwise_kernel"
    )


class Structure(NamedTuple):
    """Numbers that tell the variants of EfficientDet apart, except D6 and D7, whose variables are equal.

    stem_filters: filters of the backbone's first convolution.
    blocks: number of the backbone's blocks.
    squeeze_excite: the blocks have squeeze-and-excitation; the lite variants' have not.
    fpn_filters, fpn_cells: of the BiFPN.
    fpn_weights: the BiFPN's inputs have weights.
    head_layers: number of inner layers of a head.
    max_level: coarsest pyramid level.
    """

    stem_filters: int
    blocks: int
    squeeze_excite: bool
    fpn_filters: int
    fpn_cells: int
    fpn_weights: bool
    head_layers: int
    max_level: int

    def __str__(self) -> str:
        return (
            f"{self.blocks} backbone blocks with{'' if self.squeeze_excite else 'out'} squeeze-and-excitation after "
            f"{self.stem_filters} stem filters, {self.fpn_cells} BiFPN cells of {self.fpn_filters} filters "
            f"with{'' if self.fpn_weights else 'out'} input weights, {self.head_layers} head layers, levels up to "
            f"{self.max_level}"
        )


def structure_of_config(config: EfficientDetConfig) -> Structure:
    """Returns the structure of a configured network, without building it."""
    spec = BACKBONES[config.backbone]
    return Structure(
        stem_filters=stem_filters(spec),
        blocks=len(block_specs(spec)),
        squeeze_excite=spec.squeeze_excite,
        fpn_filters=config.fpn_filters,
        fpn_cells=config.fpn_cells,
        fpn_weights=config.fpn_fusion != "sum",
        head_layers=config.head_layers,
        max_level=config.max_level,
    )


def structure_of_variables(shapes: Shapes, *, where: str) -> Structure:
    """Reads the structure of a network from its variables.

    Args:
        shapes: shapes by google/automl's names.
        where: the checkpoint, for errors.

    Raises:
        DataError: they are not those of an EfficientDet of google/automl.
    """
    stem = next((shape for name, shape in shapes.items() if name.endswith("/stem/conv2d/kernel")), None)
    box = shapes.get("box_net/box-predict/pointwise_kernel")
    if stem is None or box is None or CLASS_BIAS not in shapes:
        raise DataError(
            f"{where}: not a checkpoint of google/automl's EfficientDet: a variable stem/conv2d/kernel, {CLASS_BIAS} "
            f"or box_net/box-predict/pointwise_kernel is missing. Its variables are named like {_some(sorted(shapes))}."
        )
    return Structure(
        stem_filters=stem[-1],
        blocks=_count(r".*/blocks_(\d+)/.*", shapes),
        squeeze_excite=any("/se/conv2d/" in name for name in shapes),
        fpn_filters=box[-2],
        fpn_cells=_count(r"fpn_cells/cell_(\d+)/.*", shapes),
        fpn_weights=any(name.endswith("/WSM") for name in shapes),
        head_layers=_count(r"class_net/class-(\d+)/.*", shapes),
        max_level=_count(r"class_net/class-0-bn-(\d+)/.*", shapes) - 1,
    )


def _count(expression: str, names: Collection[str]) -> int:
    """Returns 1 + the greatest number at a place in the names; 0 if no name matches."""
    matches = (re.fullmatch(expression, name) for name in names)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def require_variant(shapes: Shapes, config: EfficientDetConfig, *, name: str, where: str) -> None:
    """Requires that a checkpoint holds a network like the configured one.

    Args:
        shapes: shapes by google/automl's names.
        config: configuration of the network.
        name: name of the detector.
        where: the checkpoint.

    Raises:
        DataError: it does not; the message names the variant that the checkpoint looks like.
    """
    found = structure_of_variables(shapes, where=where)
    if found == structure_of_config(config):
        return
    alike = [other for other, preset in EFFICIENTDETS.items() if structure_of_config(preset) == found]
    if alike:
        names = " or ".join(alike)
        raise DataError(f"{where}: the checkpoint looks like {names}, not like {name}. Pass --model {names}.")
    raise DataError(
        f"{where}: the checkpoint looks like no known variant: it has {found}; {name} has "
        f"{structure_of_config(config)}. Pass the fields of its hparams with --set model.overrides.FIELD=VALUE."
    )


class Match(NamedTuple):
    """Variables of a network and of a checkpoint.

    names: name in the checkpoint by path of the network's variable.
    unused: names in the checkpoint that the network lacks.
    """

    names: dict[str, str]
    unused: tuple[str, ...]


def match_variables(ours: Shapes, theirs: Shapes, *, where: str) -> Match:
    """Matches the variables of a network with those of google/automl.

    Args:
        ours: shapes of the network's variables by path.
        theirs: shapes by google/automl's names.
        where: the checkpoint.

    Raises:
        DataError: a variable of the network is missing in the checkpoint, or has another shape there; the
            message names variables of both sides.
    """
    names = {path: automl_name(path) for path in ours}
    used = set(names.values())
    unused = tuple(name for name in theirs if name not in used)
    missing = [name for name in names.values() if name not in theirs]
    other = [
        f"{names[path]} {list(theirs[names[path]])} instead of {list(shape)}"
        for path, shape in ours.items()
        if names[path] in theirs and theirs[names[path]] != shape
    ]
    if missing or other:
        issues = (("missing", missing), ("of another shape", other), ("without a counterpart", unused))
        listed = "; ".join(f"{len(some)} {what}: {_some(some)}" for what, some in issues if some)
        raise DataError(f"{where}: the variables do not match: {listed}. Check --model and --set model.overrides.")
    return Match(names, unused)


def class_count(shapes: Shapes, config: EfficientDetConfig, *, where: str) -> int:
    """Returns the number of classes of a network, by the length of its class outputs.

    Raises:
        DataError: the class outputs do not divide among the anchors of a cell.
    """
    [outputs] = shapes[CLASS_BIAS]
    anchors = config.num_scales * len(config.aspect_ratios)
    if outputs % anchors:
        raise DataError(
            f"{where}: {outputs} class outputs do not divide among {anchors} anchors per cell. Pass num_scales and "
            "aspect_ratios of its hparams with --set model.overrides.FIELD=VALUE."
        )
    return outputs // anchors


def class_categories(count: int, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Returns the categories of the class outputs: class i of google/automl is the id i + 1.

    Args:
        count: number of classes.
        label_map: names by id; None: COCO's categories for 90 classes, else the id as name.

    Returns:
        A category for each class; `name` is None for an id without a category.

    Raises:
        DataError: the label map has an id that is not among 1..count.
    """
    if label_map is None:
        if count == COCO_CLASS_COUNTS[0]:
            return coco_classes(count)
        return [{"id": number, "name": str(number)} for number in range(1, count + 1)]
    entries = {entry["id"]: entry for entry in label_map.categories}
    beyond = [number for number in entries if not 1 <= number <= count]
    if beyond:
        raise DataError(
            f"{label_map.source}: id {beyond[0]} is not among 1 to {count}, the ids of the checkpoint's class "
            "outputs. Pass the label map that it was trained with."
        )
    return [entries.get(number, {"id": number, "name": None}) for number in range(1, count + 1)]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
