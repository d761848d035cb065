"""The analysis of an evaluation: its types, and reading and writing of `analysis.json`.

All are plain values: `dataclasses.asdict` gives the file's content.  Boxes are in COCO's format:
x, y, width, height in pixels of the image.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from detection.storage.atomic import write_bytes
from detection.storage.json_files import not_of_this_version, parse_file
from schemas.quoting import quoted

# Names of TIDE (Bolya et al., ECCV 2020).
ERROR_TYPES = {
    "Cls": "classification error",
    "Loc": "localisation error",
    "Both": "classification and localisation error",
    "Dupe": "duplicate detection",
    "Bkg": "false positive on background",
    "Miss": "missed ground truth",
}


@dataclass(frozen=True)
class ImageSample:
    """The images analysed.

    images: number of analysed images.
    of: number of evaluated images; more than `images` if a sample was analysed.
    seed: seed of the sample.
    """

    images: int
    of: int
    seed: int


@dataclass(frozen=True)
class OperatingPoint:
    """The score threshold with the highest F1 at the analysis' IoU, and its metrics."""

    score: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Interval:
    """A metric, or a difference of two, with its bootstrap interval; low <= value <= high.

    `detection.analysis.bootstrap.interval` computes it.

    probability: fraction of the bootstrap replicates above 0, shifted like the interval.
    """

    value: float
    low: float
    high: float
    probability: float


@dataclass(frozen=True)
class Category:
    """One row of the per-category table.

    metrics: name (AP, AP50, AP75, APs, APm, APl, AR100, or those of the params) -> value, -1 undefined.
    baseline_metrics: metrics of the baseline; empty without one.
    ground_truth: number of annotated instances, without crowds and ignored ones.
    images: number of images with such instances.
    detections: number of detections of this category, with any score.
    best: operating point; None without ground truth or a true positive.
    precision: precision at the analysis' IoU and recall 0, 0.01, ... 1; empty without ground truth.
    calibration_error: expected calibration error; None without detections, or if scores
        are not probabilities.
    errors: error type -> count at the analysis' IoU and score: false positives of this
        category, and (`Miss`) its missed ground truth.
    ap_difference: AP minus the baseline's, with its interval; None without a baseline or replicates, or if
        either AP is undefined.
    tp_by_score, fp_by_score: numbers of TP and FP at the analysis' IoU with scores in [k / 100, (k + 1) / 100),
        k = 0, 1, ... 100; empty if scores are not probabilities.
    """

    id: int
    name: str
    metrics: dict[str, float]
    baseline_metrics: dict[str, float]
    ground_truth: int
    images: int
    detections: int
    best: OperatingPoint | None
    precision: list[float]
    calibration_error: float | None
    errors: dict[str, int] = field(default_factory=dict)
    ap_difference: Interval | None = None
    tp_by_score: list[int] = field(default_factory=list)
    fp_by_score: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix: ground truth against detections of any category, at one IoU and one score threshold.

    Each of the best `max_dets` detections per image is matched, by descending score, with the
    unmatched annotation that it overlaps most; crowds are ignored.

    matrix: [K + 1][K + 1] counts; rows are categories of the ground truth, columns of the
        detections, the last row unmatched detections, the last column unmatched ground
        truth.
    """

    category_ids: list[int]
    matrix: list[list[int]]
    iou: float
    score: float


@dataclass(frozen=True)
class ErrorType:
    """Errors of one of `ERROR_TYPES`.

    For keypoints, the overlap with ground truth of the same category is the keypoint similarity.

    count: number of detections with any score (for `Miss`: annotations) of this type.
    ap_gain: AP50 gained by fixing this type alone (TIDE's dAP).
    """

    name: str
    count: int
    ap_gain: float


@dataclass(frozen=True)
class Bin:
    """Detections with scores in [low, high), 1 included in the last bin: count, mean score and precision."""

    low: float
    high: float
    count: int
    score: float
    precision: float


@dataclass(frozen=True)
class Calibration:
    """Scores against precision at the analysis' IoU.

    expected_error: mean gap between the two, weighted by the counts of the bins (ECE).
    max_error: max gap over the bins (MCE).
    """

    expected_error: float
    max_error: float
    bins: list[Bin]


@dataclass(frozen=True)
class SizeBucket:
    """Ground truth by the square root of its area: [low, high) pixels; high 0: no upper bound.

    metrics: AP, AP50, AR100 (or the params' equivalents) for instances of this size; -1 without any.
    """

    low: float
    high: float
    ground_truth: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Box:
    """An annotation or a detection on a picture.

    score: None for an annotation.
    status: ground truth: `matched`, `Miss`, `crowd` (or otherwise ignored);
        detection: `TP`, one of `ERROR_TYPES`, or `ignored` (it matches ignored
        ground truth, or is not among the best `max_dets`).
    mask: compressed RLE of the image's size; None: no masks were compared.
    keypoints: x, y (pixels) and score or visibility of each keypoint, as in COCO; empty: no keypoints were compared.
    skeleton: edges of the category between keypoints, numbered from 1.
    """

    category_id: int
    bbox: list[float]
    score: float | None
    status: str
    mask: dict[str, Any] | None = None
    keypoints: list[float] = field(default_factory=list)
    skeleton: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class ImageResult:
    """One image: its ground truth, and its detections above the analysis' score threshold.

    width, height: pixels; 0 if missing in the ground truth.
    tp, fp: numbers of detections.
    fn: number of annotations without a matching detection above the threshold.
    ground_truth: annotations, in order.
    detections: detections by descending score.
    """

    image_id: int
    file_name: str
    width: int
    height: int
    tp: int
    fp: int
    fn: int
    ground_truth: list[Box]
    detections: list[Box]


@dataclass(frozen=True)
class LabelError:
    """A label-error candidate: a likely mistake in the ground truth.

    kind: `missing` (a confident detection without an object) or `class` (a confident
        detection of another class on an object).
    annotated_category_id: None if there is no object.
    """

    kind: str
    image_id: int
    file_name: str
    bbox: list[float]
    score: float
    category_id: int
    annotated_category_id: int | None


@dataclass(frozen=True)
class MaskOverlap:
    """Overlaps of detected masks with the ground truth that they match.

    matches: number of true positives at the analysis' IoU, with any score.
    mask_iou, boundary_iou: means over the true positives; None if there are none.
    poor_boundaries: true positives with a mask IoU of at least 0.75 and a Boundary IoU below 0.5.
    """

    matches: int
    mask_iou: float | None
    boundary_iou: float | None
    poor_boundaries: int


@dataclass(frozen=True)
class MaskMatch:
    """A true positive, with its mask and the mask of the ground truth."""

    image_id: int
    file_name: str
    mask_iou: float
    boundary_iou: float
    ground_truth: Box
    detection: Box


@dataclass(frozen=True)
class Boundaries:
    """Boundary IoU (Cheng et al., CVPR 2021) of the true positives; the boundary width is 2 % of the image's diagonal.

    areas: name of an area range of the evaluation ("all", "small", ...) -> overlaps.
    categories: category id -> overlaps, for categories with a true positive.
    worst: true positives with the lowest Boundary IoU, in ascending order.
    """

    areas: dict[str, MaskOverlap]
    categories: dict[int, MaskOverlap]
    worst: list[MaskMatch]


@dataclass(frozen=True)
class Analysis:
    """Content of `analysis.json`.

    metrics, baseline_metrics: metrics on all images, and those of the baseline (empty without one).
    intervals: metric -> its value on the sample and its interval at `confidence`,
        for defined metrics; empty without replicates.
    differences: metric -> candidate minus baseline; empty without a baseline.
    iou: IoU threshold of TP and FP.
    score: min score of detections in confusion, pictures and label-error candidates.
    recall: recall values of the curves.
    curves: name of the IoU thresholds ("0.50", "0.75", "0.50:0.95") -> mean precision
        over categories at `recall`.
    confusion: None for keypoints, as their similarity is not defined across categories.
    calibration: None without detections, or if scores are not probabilities.
    label_errors: most confident first; empty for keypoints.
    worst: images with the most errors, in descending order.
    examples: error type -> images with such errors, the most confident first.
    losses: mean loss terms on the split; empty if not computed.
    operating_point: the score threshold for all categories with the highest F1;
        None without a true positive.
    boundaries: None unless masks were evaluated.
    others: analyses by further IoU types of the same detections; the first one's metrics have no prefix.
    """

    iou_type: str
    sample: ImageSample
    metrics: dict[str, float]
    baseline_metrics: dict[str, float]
    confidence: float
    replicates: int
    intervals: dict[str, Interval]
    differences: dict[str, Interval]
    iou: float
    score: float
    categories: list[Category]
    recall: list[float]
    curves: dict[str, list[float]]
    confusion: Confusion | None
    errors: list[ErrorType]
    calibration: Calibration | None
    sizes: list[SizeBucket]
    label_errors: list[LabelError]
    worst: list[ImageResult]
    examples: dict[str, list[ImageResult]]
    losses: dict[str, float] = field(default_factory=dict)
    operating_point: OperatingPoint | None = None
    boundaries: Boundaries | None = None
    others: list["Analysis"] = field(default_factory=list)

    @property
    def of_all_types(self) -> list["Analysis"]:
        """Returns this analysis and those of further IoU types."""
        return [self, *self.others]

    @property
    def all_differences(self) -> dict[str, Interval]:
        """Differences of all IoU types, with a prefix such as `segm/AP` for further types."""
        named = {f"{one.iou_type}/{name}": value for one in self.others for name, value in one.differences.items()}
        return self.differences | named


_FORMAT = TypeAdapter(Analysis)


def write_analysis(path: str | Path, analysis: Analysis) -> None:
    """Writes an analysis as JSON, atomically.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, _FORMAT.dump_json(analysis) + b"\n")


def read_analysis(path: str | Path) -> Analysis:
    """Reads a file written by `write_analysis`.

    Raises:
        DataError: the file cannot be read, or is not an analysis; the message names the key.
    """
    analysis = parse_file(_FORMAT, path, what="an analysis")
    for one in analysis.of_all_types:
        names = [error.name for error in one.errors]
        ids = [category.id for category in one.categories]
        if names != list(ERROR_TYPES):
            problem = f"errors: {quoted(names)}, expected {', '.join(ERROR_TYPES)}"
            raise not_of_this_version(path, "an analysis", problem)
        if len(set(ids)) < len(ids):
            raise not_of_this_version(path, "an analysis", "categories: duplicate id")
    return analysis
