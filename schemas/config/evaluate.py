"""The section `evaluate`: evaluation and blessing."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from schemas.config.section import Section
from schemas.metrics import IouType, MetricName, OksSigmas, OtherMetricNames, is_other


class ThresholdsConfig(Section):
    """Thresholds for blessing a model; all have to be met."""

    absolute: dict[MetricName, float] = Field(
        {"AP": 0.05}, description="min value of each metric; AP keeps its default unless it is set; {}: no min value"
    )
    improvement: dict[MetricName, float] = Field(
        {}, description="min change of each metric from the last blessed model; a negative value allows a loss"
    )
    significant: tuple[MetricName, ...] = Field(
        (),
        description="metrics whose gain over the last blessed model has to be significant: the bootstrap "
        "interval is above 0",
    )
    not_worse: Literal["auto"] | tuple[MetricName, ...] = Field(
        "auto",
        description="metrics that must not be significantly worse than those of the last blessed model: a bootstrap "
        "interval of the difference below 0 refuses; auto: [AP], or [] if improvement or significant have AP or "
        "analysis.replicates = 0",
    )

    @field_validator("absolute")
    @classmethod
    def _keeps_the_min_ap(cls, absolute: dict[str, float]) -> dict[str, float]:
        return {**cls.model_fields["absolute"].default, **absolute} if absolute else {}


class AnalysisConfig(Section):
    """Analysis besides the metrics: errors, confusion matrix, calibration, intervals, pictures."""

    images: PositiveInt = Field(
        5000, description="max number of images to analyse; if there are more, a sample by hash of the id"
    )
    replicates: NonNegativeInt = Field(200, description="number of bootstrap replicates; 0: no intervals")
    confidence: float = Field(0.95, gt=0.0, lt=1.0, description="confidence level of the intervals")
    iou: float = Field(
        0.5,
        gt=0.0,
        le=1.0,
        description="IoU threshold for TP and FP, one of the evaluated thresholds; default: 0.5, or the smallest if "
        "0.5 is not evaluated",
    )
    score: float = Field(
        0.3,
        ge=0.0,
        le=1.0,
        description="min score of detections in the confusion matrix and pictures; the OD API's min_score_threshold",
    )
    seed: NonNegativeInt = Field(0, description="seed of the sample and the bootstrap")
    worst: NonNegativeInt = Field(
        12, description="number of images with most errors to list, and of masks with the lowest boundary IoU"
    )
    examples: NonNegativeInt = Field(6, description="number of images to list per error type")
    label_errors: NonNegativeInt = Field(
        50, description="max number of label-error candidates to list, those with the highest scores"
    )
    visualizations: NonNegativeInt = Field(
        10,
        description="number of TensorBoard images with ground truth and detections side by side, also of "
        "`train.validation` and `follow`; 0: none; the OD API's num_visualizations",
    )
    max_boxes: PositiveInt = Field(
        20,
        description="max detections to draw per TensorBoard image, those with the highest scores; the OD API's "
        "max_num_boxes_to_visualize",
    )

    def _check_keys(self) -> None:
        self.refuse(["max_boxes"], "while visualizations = 0", when=not self.visualizations)


class ViewsConfig(Section):
    """Test-time augmentation: views of each image, whose boxes are fused with those of the unchanged image."""

    flip: bool = Field(False, description="also detect on mirrored images")
    scales: tuple[Annotated[float, Field(ge=0.5, le=2.0)], ...] = Field(
        (), description="also detect on images that look smaller (below 1) or larger (above 1) by these factors"
    )

    @property
    def is_empty(self) -> bool:
        """True without views: each unchanged image is used once."""
        return not self.flip and set(self.scales) <= {1.0}


class EvaluateConfig(Section):
    """Evaluation and blessing."""

    split: str = Field("eval", description="name of the split to evaluate")
    batch_size: PositiveInt = Field(8, description="images per call of the model")
    images_per_state: PositiveInt = Field(
        200_000,
        description="max images for one Beam worker to accumulate; with more, each category and area range has its own "
        "worker",
    )
    iou_types: tuple[IouType, ...] | None = Field(
        None,
        description="IoU types to evaluate, also in `train.validation` and `follow`: bbox, segm (masks), keypoints; "
        "metrics of the first are named AP, of the others segm/AP; none: bbox, and segm and keypoints if the detector "
        "and all of the ground truth have them",
    )
    metrics: OtherMetricNames = ()
    use_cats: bool = Field(
        True,
        description="false: class-agnostic, as if there were one category, also in `train.validation` and `follow`; "
        "COCO's useCats",
    )
    oks_sigmas: OksSigmas = None
    eval_config: str | None = Field(
        None, description="file of a tfma.EvalConfig, JSON or text format: slices and further thresholds"
    )
    accept_renumbered_categories: bool = Field(
        False,
        description="evaluate and bless a model although a category id or name means another one than to the last "
        "blessed model; the two are compared by name",
    )
    thresholds: ThresholdsConfig = ThresholdsConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    tta: ViewsConfig = ViewsConfig()
    losses: bool = Field(
        True,
        description="also compute mean loss terms: here on the analysed images, in `train.validation` and `follow` on "
        "the evaluated images",
    )

    @field_validator("iou_types")
    @classmethod
    def _iou_types_are_several(cls, iou_types: tuple[IouType, ...] | None) -> tuple[IouType, ...] | None:
        if iou_types is not None and (not iou_types or len(set(iou_types)) < len(iou_types)):
            raise ValueError("list each IoU type once, such as [bbox, segm]; none: those of detector and ground truth")
        return iou_types

    def _check_keys(self) -> None:
        limits = self.thresholds
        not_worse = () if limits.not_worse == "auto" else limits.not_worse
        for name in sorted({*limits.absolute, *limits.improvement, *limits.significant, *not_worse}):
            iou_type = name.rpartition("/")[0]
            if iou_type and self.iou_types is not None and iou_type not in self.iou_types:
                raise ValueError(f"thresholds: {name} is not evaluated; add {iou_type} to evaluate.iou_types")
            self.require_metric("thresholds", name)
        self.refuse(["metrics"], "with use_cats = false: they are of categories", when=not self.use_cats)
        self.refuse(["oks_sigmas"], "unless iou_types has keypoints", when="keypoints" not in (self.iou_types or ()))
        explicit = {"significant": self.thresholds.significant, "not_worse": self.thresholds.not_worse}
        for key, metrics in explicit.items():
            if metrics not in ((), "auto") and not self.analysis.replicates:
                raise ValueError(f"thresholds.{key} requires intervals; set analysis.replicates to 200, for example")

    def require_metric(self, key: str, name: str) -> None:
        """Requires that a metric besides COCO's is requested; `key` names it.

        Raises:
            ValueError: it is not.
        """
        own = name.rpartition("/")[2]
        # An EvalConfig may request it, too.
        if is_other(name) and own not in self.metrics and self.eval_config is None:
            raise ValueError(f"{key}: {name} is not evaluated; add {own} to evaluate.metrics")

    @property
    def first_iou_type(self) -> IouType:
        """IoU type whose metrics have no prefix, unless an EvalConfig sets another one."""
        return "bbox" if self.iou_types is None else self.iou_types[0]
