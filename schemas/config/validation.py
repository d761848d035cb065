"""Evaluation while training: the best checkpoint, early stopping, which model is exported."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from schemas.config.metrics import MetricName
from schemas.config.section import Section


class ValidationConfig(Section):
    """Evaluation while training, of the weights that `train.ema` exports, on the split that `evaluate.split` names."""

    every: PositiveInt | None = Field(
        None, description="steps between evaluations; each saves a checkpoint, and the last step is always evaluated"
    )
    every_epochs: PositiveFloat | None = Field(None, description="instead of every: epochs between evaluations")
    metric: MetricName = Field("AP", description="that tells the best checkpoint; higher is better")
    iou_type: Literal["bbox", "segm", "keypoints"] = Field(
        "bbox", description="what is compared: boxes, or the masks or keypoints of a detector that has them"
    )
    max_images: PositiveInt | None = Field(None, description="evaluate on a fixed sample of so many; none: on all")
    patience: PositiveInt | None = Field(
        None, description="training stops after so many evaluations without an improvement; none: it does not"
    )
    min_delta: NonNegativeFloat = Field(0.0, description="an improvement is one by more than this, for patience")
    export: Literal["auto", "best", "final"] = Field(
        "auto", description="the model to export: of the best checkpoint or of the last; auto: the best where evaluated"
    )

    @property
    def enabled(self) -> bool:
        """Whether training evaluates."""
        return self.every is not None or self.every_epochs is not None

    @property
    def exports_best(self) -> bool:
        """Whether the best checkpoint becomes the model."""
        return self.enabled and self.export != "final"

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.every is not None and self.every_epochs is not None:
            raise ValueError("every and every_epochs both say how often; take one of them away")
        if not self.enabled:
            for key in ("metric", "iou_type", "max_images", "patience", "min_delta"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} needs evaluations while training; set every, or every_epochs")
            if self.export == "best":
                raise ValueError("export = best, but nothing tells the best; set every, or every_epochs")
        if self.min_delta and self.patience is None:
            raise ValueError("min_delta is for early stopping, which is off; set patience")
        return self
