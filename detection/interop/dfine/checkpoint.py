"""Files of D-FINE's network: structure, class outputs, and what its function depends on beside the weights."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from detection.interop.dfine.files import OriginalFile
from detection.interop.dfine.names import EMBEDDING, original_name
from detection.models.backbones.hgnet import HGNETS
from detection.models.dfine.config import DFINES, DFineConfig
from detection.weights.checkpoint_format import CheckpointFormat, Shape, Shapes, VariableSource, count_of
from schemas.config.train.initialization import SourceWeights
from schemas.errors import DataError

# Axes of the variables that identify the network.
_IDENTITY = {
    "backbone.stem.stem1.conv.weight": 4,
    "encoder.input_proj.0.conv.weight": 4,
    "encoder.encoder.0.layers.0.linear1.weight": 2,
    "encoder.fpn_blocks.0.cv2.0.conv1.conv.weight": 4,
    "decoder.enc_output.proj.weight": 2,
    "decoder.enc_score_head.weight": 2,
    "decoder.decoder.layers.0.linear1.weight": 2,
    "decoder.decoder.layers.0.cross_attn.attention_weights.bias": 1,
    **dict.fromkeys(("decoder.reg_scale", "decoder.up"), 1),
}


class Structure(NamedTuple):
    """Numbers that distinguish the variants.

    stem: filters of the backbone's first convolution.
    stages: output filters of the backbone's stages.
    layers: layers of each block of the backbone.
    affine: the backbone's activations have a scale and an offset.
    levels: number of levels.
    encoder: filters, inner filters, blocks and filters of these.
    decoder: filters, inner filters, number of layers.
    """

    stem: int
    stages: tuple[int, ...]
    layers: int
    affine: bool
    levels: int
    encoder: tuple[int, int, int, int]
    decoder: tuple[int, int, int]

    def __str__(self) -> str:
        return (
            f"a backbone of {self.stem} stem filters and stages of {', '.join(map(str, self.stages))} filters in "
            f"blocks of {self.layers} layers, {'with' if self.affine else 'without'} scales after its activations; "
            f"{self.levels} levels; encoder {list(self.encoder)} (filters, feedforward, blocks, block_filters); "
            f"decoder {list(self.decoder)} (filters, feedforward, layers)"
        )


class DFineFormat(CheckpointFormat):
    """A file of D-FINE's, DEIM's or RT-DETRv4's, or of Hugging Face's."""

    title = "D-FINE"
    family = "a D-FINE"
    config_class = DFineConfig
    presets = DFINES
    postprocess: ClassVar = {}
    own_rows = True
    is_tensorflow = False
    not_told: ClassVar = {"decoder.activation": "relu for D-FINE's own networks, or =swish for DEIM's and RT-DETRv4's"}
    options = ("decoder.reg_scale", "decoder.up")

    @classmethod
    def opened(cls, checkpoint: str | Path, weights: SourceWeights) -> OriginalFile:
        """Implements `CheckpointFormat.opened`."""
        return OriginalFile(checkpoint, weights)

    @classmethod
    def structures(cls, config: DFineConfig) -> tuple[Structure]:
        """Implements `CheckpointFormat.structures`.

        Raises:
            ConfigError: another backbone.
        """
        spec = HGNETS.get(config.backbone.name)
        if spec is None:
            cls.require_backbone(config, "D-FINE's networks")
        assert spec is not None
        encoder, decoder = config.encoder, config.decoder
        structure = Structure(
            stem=spec.stem[0],
            stages=tuple(out for _, out, _ in spec.stages),
            layers=spec.layers,
            affine=spec.affine,
            levels=len(config.levels),
            encoder=(encoder.filters, encoder.feedforward, encoder.blocks, encoder.block_filters),
            decoder=(decoder.filters, decoder.feedforward, decoder.layers),
        )
        return (structure,)

    def structure(self) -> Structure:
        """Implements `CheckpointFormat.structure`."""
        self.require_variables(_IDENTITY, "not a file of D-FINE's network:")
        stages = count_of(r"backbone\.stages\.(\d+)\..*", self.shapes)
        aggregations = (f"backbone.stages.{stage}.blocks.0.aggregation.1.conv.weight" for stage in range(stages))
        return Structure(
            stem=self._rows("backbone.stem.stem1.conv.weight"),
            stages=tuple(self._rows(name) for name in aggregations),
            layers=count_of(r"backbone\.stages\.0\.blocks\.0\.layers\.(\d+)\..*", self.shapes),
            affine="backbone.stem.stem1.lab.scale" in self.shapes,
            levels=count_of(r"encoder\.input_proj\.(\d+)\..*", self.shapes),
            encoder=(
                self._rows("encoder.input_proj.0.conv.weight"),
                self._rows("encoder.encoder.0.layers.0.linear1.weight"),
                count_of(r"encoder\.fpn_blocks\.0\.cv2\.0\.bottlenecks\.(\d+)\..*", self.shapes),
                self._rows("encoder.fpn_blocks.0.cv2.0.conv1.conv.weight"),
            ),
            decoder=(
                self._rows("decoder.enc_output.proj.weight"),
                self._rows("decoder.decoder.layers.0.linear1.weight"),
                count_of(r"decoder\.decoder\.layers\.(\d+)\..*", self.shapes),
            ),
        )

    def _rows(self, name: str) -> int:
        return (self.shape(name) or (0,))[0]

    def overrides(self, config: DFineConfig) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.overrides`: the spacing of the bins.

        Raises:
            DataError: keys of attention equal its values, as in the first conversions of D-FINE-N by Hugging Face.
        """
        self.structure()
        for key in (name for name in self.shapes if re.fullmatch(r"decoder\..*\.k_proj\.weight", name)):
            if np.array_equal(self.read(key), self.read(key.replace(".k_proj.", ".v_proj."))):
                raise DataError(
                    f"{self.where}: {key} equals the values: a faulty conversion, of D-FINE-N before August 2025. "
                    "Download the file again, or use the authors'."
                )
        scale, up = (float(abs(self.read(name)[0])) for name in self.options)
        return {"decoder.bin_scale": scale, "decoder.bin_up": up}

    @classmethod
    def resize(cls, config: DFineConfig) -> Mapping[str, Any]:
        """Implements `CheckpointFormat.resize`: to the input's sides, without keeping their ratio."""
        return {"mode": "stretch"}

    def class_count(self, config: DFineConfig) -> int:
        """Implements `CheckpointFormat.class_count`."""
        return self._rows("decoder.enc_score_head.weight")

    def sources(self, ours: Shapes, config: DFineConfig) -> dict[str, VariableSource]:
        """Implements `CheckpointFormat.sources`."""
        return {path: variable_source(path, shape) for path, shape in ours.items()}


def variable_source(path: str, shape: Shape) -> VariableSource:
    """Returns the source of a variable under the authors' name, with its layout there; `shape` is ours."""
    name = original_name(path)
    if name == EMBEDDING:  # its last row, of no object, is zero
        return VariableSource((name,), ((shape[1] + 1, shape[0]),), lambda values: values[:-1].T)
    if len(shape) == 4:
        axes = (2, 3, 0, 1) if "depthwise" in path else (2, 3, 1, 0)
        theirs = tuple(shape[axes.index(axis)] for axis in range(4))
        return VariableSource((name,), (theirs,), functools.partial(np.transpose, axes=axes))
    return VariableSource((name,), (shape[::-1],), np.transpose)
