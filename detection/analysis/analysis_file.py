"""The analysis of an evaluation: its types, and reading and writing of `analysis.json`.

All are plain values: `dataclasses.asdict` gives the file's content.  Boxes are COCO's: x, y,
width, height in pixels of the image.
"""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from detection.storage.atomic import write_bytes
from detection.storage.typed_files import not_of_this_version, parse_file
from schemas.quoting import quoted

# As TIDE (Bolya et al., ECCV 2020) names them.
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
    """What the analysis ran on.

    images: how many.
    of: how many were evaluated; more than `images` where a sample was taken.
    seed: of the choice.
    """

    images: int
    of: int
    seed: int


@dataclass(frozen=True)
class OperatingPoint:
    """The score threshold at which F1 is greatest, at the analysis' IoU, and what is reached there."""

    score: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Category:
    """One row of the per-category table.

    metrics: name (AP, AP50, AP75, APs, APm, APl, AR100 or what the params have) -> value, -1 undefined.
    baseline_metrics: the baseline's; empty without one.
    ground_truth: ground truth without crowds and ignored ones.
    images: that have such objects.
    detections: of this category, all scores.
    best: None where nothing was found, or there is nothing to find.
    precision: at the analysis' IoU and recall 0, 0.01, ... 1; empty where there is no object.
    calibration_error: expected calibration error; None without detections, and where
        scores are no probabilities.
    errors: name of the error type -> count, at the analysis' IoU and score: of the false
        positives of this category, and (`Miss`) of its missed ground truth.
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


@dataclass(frozen=True)
class Confusion:
    """Ground truth against detections whatever their class, at one IoU and one score threshold.

    Each of the best `max_dets` detections of an image takes, by falling score, the free
    object it overlaps most; crowds are left out.

    matrix: [K + 1][K + 1] counts; rows are the object's category, columns the
        detection's, the last row detections without an object, the last column
        objects without a detection.
    """

    category_ids: list[int]
    matrix: list[list[int]]
    iou: float
    score: float


@dataclass(frozen=True)
class ErrorType:
    """One of `ERROR_TYPES`: its share of the errors.

    For keypoints the overlap with objects of the same category is their similarity.

    count: detections, of any score, (for `Miss`: objects) of this type.
    ap_gain: AP50 that would be won if this type alone were mended (TIDE's dAP).
    """

    name: str
    count: int
    ap_gain: float


@dataclass(frozen=True)
class Bin:
    """Detections with scores in [low, high), 1 in the last: how many, their mean score, the share that is right."""

    low: float
    high: float
    count: int
    score: float
    precision: float


@dataclass(frozen=True)
class Calibration:
    """Scores against the share of right detections at the analysis' IoU.

    expected_error: mean gap between the two, weighted by the bins' counts (ECE).
    max_error: of any bin (MCE).
    """

    expected_error: float
    max_error: float
    bins: list[Bin]


@dataclass(frozen=True)
class SizeBucket:
    """Ground truth by the root of their area: [low, high) pixels, high 0: open.

    metrics: AP, AP50, AR100 (or what the params have for it) for objects of this size; -1 without any.
    """

    low: float
    high: float
    ground_truth: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Interval:
    """A metric, or a difference of two, with the bounds of its bootstrap interval; low <= value <= high.

    See `intervals.interval`.

    probability: share of the bootstrap replicates, moved as the interval is, above 0.
    """

    value: float
    low: float
    high: float
    probability: float


@dataclass(frozen=True)
class Box:
    """An object or a detection in a picture.

    score: None for an object.
    status: ground truth: `matched`, `Miss`, `crowd` (and others that need not be found);
        detection: `TP`, one of `ERROR_TYPES`, or `ignored` (it matches an object that
        need not be found, or is not among the best `max_dets`).
    """

    category_id: int
    bbox: list[float]
    score: float | None
    status: str


@dataclass(frozen=True)
class ImageResult:
    """An image worth a look: its objects, and its detections of at least the analysis' score threshold.

    width, height: pixels, 0 where the ground truth does not tell.
    right, wrong: numbers of detections.
    fn: number of objects that no detection of that score found.
    ground_truth: in the order of the ground truth.
    detections: by falling score.
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
    """A likely mistake in the ground truth.

    kind: `missing` (a confident detection without an object) or `class` (a confident
        detection of another class on an object).
    annotated_category_id: None where there is no object.
    """

    kind: str
    image_id: int
    file_name: str
    bbox: list[float]
    score: float
    category_id: int
    annotated_category_id: int | None


@dataclass(frozen=True)
class Analysis:
    """Everything beyond the metrics; see the parts.

    metrics, baseline_metrics: of the whole evaluation and of the baseline's (empty without one).
    intervals: metric -> its value on the sample and its interval at `confidence`;
        undefined metrics are left out, and all without replicates.
    differences: metric -> candidate minus baseline, likewise; empty without one.
    iou: at which right and wrong are told apart.
    score: detections below it are left out of confusion, pictures and label errors.
    recall: the grid of the curves.
    curves: name of the IoU thresholds ("0.50", "0.75", "0.50:0.95") -> mean precision
        over categories at `recall`.
    confusion: None for keypoints, of which categories have no common measure.
    calibration: None without detections, and where scores are no probabilities.
    label_errors: most confident first; none for keypoints.
    worst: images with most errors, first the worst.
    examples: name of the error type -> images that show it, first the most confident.
    losses: mean loss terms on the split, where they were computed.
    operating_point: the one score threshold for all categories with the highest F1;
        None without a true positive.
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


_FORMAT = TypeAdapter(Analysis)


def write_analysis(path: str | Path, analysis: Analysis) -> None:
    """Writes an analysis as JSON, whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, _FORMAT.dump_json(analysis) + b"\n")


def read_analysis(path: str | Path) -> Analysis:
    """Reads what `write_analysis` wrote.

    Raises:
        DataError: the file cannot be read, or is no analysis; it names the key.
    """
    analysis = parse_file(_FORMAT, path, what="an analysis")
    names = [error.name for error in analysis.errors]
    ids = [category.id for category in analysis.categories]
    if names != list(ERROR_TYPES):
        raise not_of_this_version(path, "an analysis", f"errors: {quoted(names)}, expected {', '.join(ERROR_TYPES)}")
    if len(set(ids)) < len(ids):
        raise not_of_this_version(path, "an analysis", "categories: an id is there more than once")
    return analysis
