"""The configuration: one tree of frozen, typed sections with all defaults.

`schemas.config.config_io` reads files and `--set` assignments.  Classes of the library
never see a section: they take keyword arguments.
"""

import re
from datetime import date
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.config.run import RunConfig
from schemas.config.section import Section
from schemas.config.training import TrainConfig
from schemas.metrics import MetricName

Probability = Field(ge=0.0, le=1.0)


def _days_since_1970(value: Any) -> Any:
    """Converts a date, as YYYY-MM-DD, to the number of its span."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return value
    try:
        return date.fromisoformat(value).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError as error:
        raise ValueError(
            f"{value} is not a day of the calendar, {error}; write a span's number or YYYY-MM-DD"
        ) from None


SpanNumber = Annotated[int, BeforeValidator(_days_since_1970), Field(ge=0, lt=2**31)]  # TFX has 32 bits for it


class SplitSource(Section):
    """One split of a data set whose layout is not recognised by itself."""

    annotations: str | None = Field(None, description="COCO JSON file")
    images: str | None = Field(None, description="folder that `file_name` is relative to")
    records: str | None = Field(None, description="instead of both: file, folder or pattern of TFRecords")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.records is None and None in (self.annotations, self.images):
            raise ValueError("annotations and images are needed, or records")
        if self.records is not None and (self.annotations, self.images) != (None, None):
            raise ValueError("records hold images and annotations; remove annotations and images")
        return self

    @property
    def files(self) -> tuple[str, str | None]:
        """Annotation file and image folder, or TFRecords and None."""
        return (str(self.annotations), self.images) if self.records is None else (self.records, None)


class DataConfig(Section):
    """The data set."""

    root: str | None = Field(
        None,
        description="folder in one of the recognised layouts; in it, as in the paths of splits, {SPAN} or {YYYY}, "
        "{MM} and {DD}, and {VERSION}, stand for where new data arrives",
    )
    splits: dict[str, SplitSource] = Field({}, description="splits said outright, instead of root")
    span: SpanNumber | None = Field(None, description="number or date of the span to read; none: the newest")
    version: SpanNumber | None = Field(None, description="version of that span; none: the newest")
    window: PositiveInt = Field(
        1,
        lt=2**31,
        description="train on this many spans up to the one that is read; the others as earlier runs read them",
    )
    on_fault: IssuePolicies = IssuePolicies()
    max_pixels: PositiveInt = Field(MAX_PIXELS, description="images of more are refused before they are decoded")
    label_map: str | None = Field(
        None, description="categories of TFRecords: label_map.pbtxt or a COCO file; none: those of the records"
    )
    eval_fraction: float = Field(
        0.1, gt=0.0, lt=1.0, description="share of images, by hash of the id, for eval where it has no file of its own"
    )
    split_ratios: dict[str, PositiveFloat] = Field(
        {}, description="shares of a data set of one file, by hash of the id, as {train: 0.8, eval: 0.1, test: 0.1}"
    )
    sample_1_of_n: PositiveInt | dict[str, PositiveInt] = Field(
        1, description="for quick trials, one image of n of each split, or of the splits named"
    )

    @field_validator("split_ratios")
    @classmethod
    def _ratios_make_one(cls, ratios: dict[str, float]) -> dict[str, float]:
        if ratios and abs(sum(ratios.values()) - 1) > 1e-6:
            raise ValueError(f"the shares make {sum(ratios.values()):g}, not 1")
        return ratios


class ModelConfig(Section):
    """The detector."""

    name: str = Field("efficientdet-d0", description="a name of the registry")
    image_size: PositiveInt | None = Field(None, description="side of the square input, pixels; none: the model's own")
    max_instances: PositiveInt = Field(100, description="objects an image in training; more are cut off and counted")
    backbone_weights: str | None = Field(None, description="none, `imagenet`, or a keras.applications weights file")
    overrides: dict[str, Any] = Field({}, description="fields of the detector's own config class")
    postprocess: dict[str, Any] = Field(
        {},
        description="options of the detector's own post-processing: score_threshold, iou_threshold, max_detections "
        "and pre_nms_top_k of anchor-based detectors, mask_output (crops, pasted) of those with masks",
    )


class ThresholdsConfig(Section):
    """When a model is blessed; empty: always."""

    absolute: dict[MetricName, float] = Field({"AP": 0.0}, description="metric: at least")
    improvement: dict[MetricName, float] = Field(
        {}, description="metric: at least this much above the last blessed model (negative: may fall)"
    )
    significant: tuple[MetricName, ...] = Field(
        (), description="metrics above the last blessed model's by more than chance: by the whole bootstrap interval"
    )

    @property
    def is_empty(self) -> bool:
        """Whether every model meets them."""
        return not (self.absolute or self.improvement or self.significant)


class AnalysisConfig(Section):
    """What an evaluation tells beyond the figures: errors, confusion, calibration, intervals, pictures."""

    images: PositiveInt = Field(5000, description="most images analysed; of more a sample, by hash of the id")
    replicates: NonNegativeInt = Field(200, description="of the bootstrap; 0: no intervals")
    confidence: float = Field(0.95, gt=0.0, lt=1.0, description="of the intervals")
    iou: float = Field(
        0.5,
        gt=0.0,
        le=1.0,
        description="IoU threshold of TP and FP; one that is evaluated, the smallest if 0.5 is not",
    )
    score: float = Field(
        0.3,
        ge=0.0,
        le=1.0,
        description="weaker detections are left out of confusion and pictures; the OD API's min_score_threshold",
    )
    seed: NonNegativeInt = Field(0, description="of the sample and of the bootstrap")
    worst: NonNegativeInt = Field(12, description="images with most errors that are listed")
    examples: NonNegativeInt = Field(6, description="images listed per error type")
    label_errors: NonNegativeInt = Field(50, description="label-error candidates listed, the most confident")
    visualizations: NonNegativeInt = Field(
        10,
        description="images in TensorBoard, ground truth beside detections; `train.validation` and `follow` draw "
        "them, too; 0: none; the OD API's num_visualizations",
    )
    max_boxes: PositiveInt = Field(
        20,
        description="detections drawn on such an image, those of the highest scores; the OD API's "
        "max_num_boxes_to_visualize",
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.visualizations:
            self.refuse(["max_boxes"], "while visualizations = 0")
        return self


class EvaluateConfig(Section):
    """Evaluation and blessing."""

    split: str = Field("eval", description="that is evaluated")
    batch_size: PositiveInt = Field(8, description="images a call of the model")
    images_per_state: PositiveInt = Field(
        200_000, description="of more images, each category and area range is summed up by a worker of its own"
    )
    eval_config: str | None = Field(
        None, description="file of a tfma.EvalConfig, JSON or text format: slices, and more thresholds"
    )
    thresholds: ThresholdsConfig = ThresholdsConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    losses: bool = Field(
        True,
        description="also the mean loss terms, on the images that are analysed; in `train.validation` and `follow` "
        "on the images that these evaluate",
    )

    @model_validator(mode="after")
    def _significance_needs_intervals(self) -> Self:
        if self.thresholds.significant and not self.analysis.replicates:
            raise ValueError("thresholds.significant needs intervals; set analysis.replicates to 200, for example")
        return self


class PushConfig(Section):
    """Where blessed models go."""

    directory: str | None = Field(None, description="default: serving below run.root")


class Config(Section):
    """Everything a run depends on."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    push: PushConfig = PushConfig()

    @model_validator(mode="after")
    def _backbone_weights_act(self) -> Self:
        init = self.train.init
        if self.model.backbone_weights is not None and init.checkpoint is not None and not init.leaves_some:
            raise ValueError(
                "train.init.checkpoint sets the whole backbone, so model.backbone_weights would be loaded in vain; "
                "remove one, or leave a part of the backbone to it with train.init.skip"
            )
        return self
