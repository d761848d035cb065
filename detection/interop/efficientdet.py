"""The structure of an EfficientDet, by which checkpoints of its variants are distinguished."""

from typing import NamedTuple

from detection.models.backbones.efficientnet_spec import backbone_spec, block_specs, stem_filters
from detection.models.efficientdet.config import EfficientDetConfig


class Structure(NamedTuple):
    """Numbers that distinguish the variants of EfficientDet, except D6 and D7, whose variables are equal.

    stem_filters: filters of the backbone's first convolution.
    blocks: number of the backbone's blocks.
    squeeze_excite: the blocks have squeeze-and-excitation; False for the lite variants.
    fpn_filters, fpn_cells: filters and cells of the BiFPN.
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
    """Returns the structure of a configured network, without building it.

    Raises:
        ConfigError: unknown backbone.
    """
    spec = backbone_spec(config.backbone.name)
    return Structure(
        stem_filters=stem_filters(spec),
        blocks=len(block_specs(spec)),
        squeeze_excite=spec.squeeze_excite,
        fpn_filters=config.neck.filters,
        fpn_cells=config.neck.cells,
        fpn_weights=config.neck.fusion != "sum",
        head_layers=config.head.layers,
        max_level=config.max_level,
    )
