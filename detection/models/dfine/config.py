"""Configuration of the D-FINE family, and its presets."""

from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from detection.models.backbones.make import BackboneOptions
from detection.models.config import BatchNormOptions, DetectorConfig, ImageSize, MaxLevel, MinLevel, PixelMean, PixelStd
from detection.models.dfine.decoder import DecoderOptions
from detection.models.dfine.encoder import HybridEncoderOptions
from detection.models.dfine.losses import ClassLoss
from schemas.config.section import Section


class QueryPostprocess(Section):
    """Options from raw outputs to boxes: the keys of `model.postprocess`."""

    score_threshold: float = Field(0.001, ge=0.0, le=1.0, description="detections have a score above this")
    max_detections: PositiveInt = Field(
        100, le=100_000, description="max detections per image: the best pairs of a query and a class"
    )


class QueryLossOptions(Section):
    """Losses of the queries, each of all layers."""

    class_loss: ClassLoss = Field(
        "mal", description="cross-entropy with the boxes' IoU: mal: as in DEIM; vfl: as in D-FINE"
    )
    class_loss_weight: NonNegativeFloat = 1.0
    box_loss_weight: NonNegativeFloat = Field(
        5.0, description="weight of the boxes' L1 loss, as fractions of the input"
    )
    giou_loss_weight: NonNegativeFloat = 2.0
    fgl_loss_weight: NonNegativeFloat = Field(0.15, description="weight of the loss of the sides' distributions")
    ddf_loss_weight: NonNegativeFloat = Field(
        1.5, description="weight of the loss by which layers learn the last one's distributions"
    )
    denoising_queries: NonNegativeInt = Field(
        100,
        description="noisy copies of an image's objects, of the first ones if it has more, that are queries, too, in "
        "training; 0: none",
    )


class DFineConfig(DetectorConfig):
    """Configuration of a D-FINE."""

    FUNCTION_FIELDS = (
        *("pixel_mean", "pixel_std", "padding", "batch_norm.epsilon", "encoder.activation", "decoder.activation"),
        *("encoder.transposed_positions", "decoder.bin_up", "decoder.bin_scale"),
    )
    PRESET_FIELDS = ("backbone.name", "image_size", "encoder.filters", "decoder.layers", "decoder.queries")

    image_size: ImageSize = (640, 640)
    min_level: MinLevel = 3
    max_level: MaxLevel = 5
    backbone: BackboneOptions = BackboneOptions(name="hgnetv2-b4")
    encoder: HybridEncoderOptions = HybridEncoderOptions()
    decoder: DecoderOptions = DecoderOptions()
    batch_norm: BatchNormOptions = BatchNormOptions(epsilon=1e-5)
    pixel_mean: PixelMean = (0.0, 0.0, 0.0)
    pixel_std: PixelStd = (255.0, 255.0, 255.0)
    loss: QueryLossOptions = QueryLossOptions()
    postprocess: QueryPostprocess = QueryPostprocess()

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses by kind."""
        kinds = ("class_loss", "box_loss", "giou_loss", "fgl_loss", "ddf_loss")
        return {kind: getattr(self.loss, f"{kind}_weight") for kind in kinds}

    @property
    def learning_rate(self) -> float:
        """Peak for AdamW, if `train.schedule.learning_rate` is not set; measured, see docs/dfine.md."""
        return 0.001

    def _check_keys(self) -> None:
        if len(self.decoder.points) != len(self.levels):
            raise ValueError(
                f"decoder.points = {list(self.decoder.points)}: specify one value for each of the "
                f"{len(self.levels)} levels {self.min_level} to {self.max_level}"
            )


def _preset(backbone: str, *, encoder: dict[str, Any], decoder: dict[str, Any], **others: Any) -> DFineConfig:
    return DFineConfig().changed({"backbone": {"name": backbone}, "encoder": encoder, "decoder": decoder, **others})


DFINES = {
    # No size of the papers: for tests and demos.
    "dfine-pico": _preset(
        "hgnetv2-pico",
        encoder={"filters": 64, "feedforward": 128, "blocks": 1, "block_filters": 16, "heads": 4},
        decoder={
            "filters": 64,
            "feedforward": 128,
            "heads": 4,
            "layers": 3,
            "points": (2, 4, 2),
            "queries": 100,
            "quality_filters": 16,
        },
        image_size=(128, 128),
        loss={"denoising_queries": 40},
    ),
    "dfine-n": _preset(
        "hgnetv2-b0",
        encoder={"filters": 128, "feedforward": 512, "blocks": 2, "block_filters": 21},
        decoder={"filters": 128, "feedforward": 512, "layers": 3, "points": (6, 6)},
        min_level=4,
    ),
    "dfine-s": _preset("hgnetv2-b0", encoder={"blocks": 1, "block_filters": 64}, decoder={"layers": 3}),
    "dfine-m": _preset("hgnetv2-b2", encoder={"blocks": 2}, decoder={"layers": 4}),
    "dfine-l": _preset("hgnetv2-b4", encoder={}, decoder={}),
    "dfine-x": _preset(
        "hgnetv2-b5", encoder={"filters": 384, "feedforward": 2048, "block_filters": 192}, decoder={"bin_scale": 8.0}
    ),
}
