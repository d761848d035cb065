"""Tables of error types, sizes, boundaries of masks, label-error candidates, images, and the scores' calibration."""

from collections.abc import Mapping

from detection.analysis.analysis_file import (
    ERROR_TYPES,
    Analysis,
    Boundaries,
    Calibration,
    LabelError,
    MaskMatch,
    MaskOverlap,
    SizeBucket,
)
from detection.analysis.boundaries import DILATION_RATIO, GOOD_MASK, POOR_BOUNDARY
from detection.reports.box_styles import category_name
from detection.reports.evaluation.metric_tables import change_text, fraction_cell, metric_cell, metric_text
from detection.reports.html.table import Cell, Number, Table, shown_name

NO_LABEL = "no annotation"

_OVERLAPS = ("matched masks", "mean mask IoU", "mean boundary IoU", "good mask, poor boundary")

# Definitions of Bolya et al. (ECCV 2020, section 2.2); {iou} is the threshold.
_DEFINITIONS = {
    "Cls": "detection with an IoU of at least {iou} with ground truth of another category",
    "Loc": "detection with an IoU of 0.1 to {iou} with ground truth of its category",
    "Both": "detection with an IoU of 0.1 to {iou} with ground truth of another category",
    "Dupe": "detection of ground truth that a detection with a higher score matches already",
    "Bkg": "detection with an IoU below 0.1 with all ground truth",
    "Miss": "ground truth without a detection, not counting those of a classification or localisation error",
}


def error_table(analysis: Analysis) -> Table:
    """Returns one row per error type: counts at any and at the tables' score, and the AP50 gain of a fix."""
    most = max((error.ap_gain for error in analysis.errors), default=0.0)
    rows: list[list[Cell]] = [
        [
            ERROR_TYPES.get(error.name, error.name),
            _DEFINITIONS.get(error.name, "").format(iou=f"{analysis.iou:g}"),
            error.count,
            errors_at_score(analysis, error.name),
            Number(change_text(error.ap_gain), error.ap_gain, max(error.ap_gain, 0.0) / most if most > 0 else 0.0),
        ]
        for error in analysis.errors
    ]
    counts = ("count at any score", f"at {analysis.score:g} and above")
    return Table("", ("error type", "definition", *counts, "AP50 gain if fixed"), rows)


def errors_at_score(analysis: Analysis, name: str) -> int:
    """Counts the errors of a type at the analysis' score, over all categories."""
    return sum(category.errors.get(name, 0) for category in analysis.categories)


def size_table(analysis: Analysis) -> Table:
    """Returns one row per size range, the smallest first."""
    present = [at for at, bucket in enumerate(analysis.sizes) if bucket.ground_truth]
    shown = analysis.sizes[present[0] : present[-1] + 1] if present else []
    metrics = list(dict.fromkeys(name for bucket in analysis.sizes for name in bucket.metrics))
    rows: list[list[Cell]] = [
        [
            size_text(bucket),
            bucket.ground_truth,
            *(metric_cell(bucket.metrics.get(name), bar=name == metrics[0]) for name in metrics),
        ]
        for bucket in shown
    ]
    return Table("", ("size, pixels", "ground truth", *metrics), rows)


def boundary_text(iou: float) -> str:
    """Explains the tables of boundaries; `iou` is the threshold of true positives."""
    return (
        f"True positives at IoU {iou:g}, of any score, with the ground truth that they match. Boundary IoU "
        f"compares only the pixels of both masks near their contours, within {100 * DILATION_RATIO:g} % of the "
        f"image's diagonal. The last column is the fraction of masks with a mask IoU of at least {GOOD_MASK:g} "
        f"and a boundary IoU below {POOR_BOUNDARY:g}."
    )


def boundary_area_table(boundaries: Boundaries) -> Table:
    """Returns one row per area range."""
    rows = [[name, *_overlap_cells(overlap)] for name, overlap in boundaries.areas.items()]
    return Table("", ("size", *_OVERLAPS), rows)


def boundary_category_table(boundaries: Boundaries, names: Mapping[int, str]) -> Table:
    """Returns one row per category with matched masks, the lowest mean Boundary IoU first."""
    ordered = sorted(boundaries.categories.items(), key=lambda item: (item[1].boundary_iou or 0.0, item[0]))
    rows = [[category_name(category_id, names), *_overlap_cells(overlap)] for category_id, overlap in ordered]
    return Table("", ("category", *_OVERLAPS), rows)


def _overlap_cells(overlap: MaskOverlap) -> list[Cell]:
    return [
        overlap.matches,
        metric_cell(overlap.mask_iou),
        metric_cell(overlap.boundary_iou, bar=True),
        fraction_cell(overlap.poor_boundaries, overlap.matches),
    ]


def mask_match_table(boundaries: Boundaries, names: Mapping[int, str]) -> Table:
    """Returns one row per matched mask with a low Boundary IoU."""
    rows: list[list[Cell]] = [
        [
            shown_name(match.file_name),
            str(match.image_id),
            category_name(match.detection.category_id, names),
            metric_cell(match.detection.score),
            metric_cell(match.mask_iou),
            metric_cell(match.boundary_iou),
        ]
        for match in boundaries.worst
    ]
    return Table("", ("file", "image", "category", "score", "mask IoU", "boundary IoU"), rows)


def mask_match_text(match: MaskMatch, names: Mapping[int, str]) -> str:
    """Describes a matched mask in one line."""
    name = category_name(match.detection.category_id, names)
    return f"{name} {match.detection.score:.2f}, mask IoU {match.mask_iou:.2f}, boundary IoU {match.boundary_iou:.2f}"


def calibration_table(calibration: Calibration) -> Table:
    """Returns one row per bin of scores."""
    rows: list[list[Cell]] = [
        [
            f"{part.low:.2f} to {part.high:.2f}",
            part.count,
            metric_cell(part.score if part.count else None),
            metric_cell(part.precision if part.count else None),
        ]
        for part in calibration.bins
    ]
    return Table("", ("scores", "detections", "mean score", "precision"), rows)


def calibration_text(calibration: Calibration) -> str:
    """Describes the calibration errors, and whether scores are too high or too low."""
    gap = score_gap(calibration)
    leaning = "higher" if gap > 0 else "lower"
    return (
        f"Expected calibration error (ECE) {metric_text(calibration.expected_error)}, maximum of a bin (MCE) "
        f"{metric_text(calibration.max_error)}. On average scores are {metric_text(abs(gap))} {leaning} than the "
        "precision."
    )


def score_gap(calibration: Calibration) -> float:
    """Returns mean score minus precision over all detections."""
    count = sum(part.count for part in calibration.bins)
    return sum(part.count * (part.score - part.precision) for part in calibration.bins) / max(count, 1)


def label_error_table(analysis: Analysis, names: Mapping[int, str]) -> Table:
    """Returns one row per label-error candidate."""
    rows: list[list[Cell]] = [
        [
            shown_name(error.file_name),
            str(error.image_id),
            _labelled(error, names),
            category_name(error.category_id, names),
            metric_cell(error.score),
            ", ".join(f"{value:.0f}" for value in error.bbox),
        ]
        for error in analysis.label_errors
    ]
    return Table("", ("file", "image", "ground truth", "detected", "score", "x, y, width, height"), rows)


def label_error_text(error: LabelError, names: Mapping[int, str]) -> str:
    """Describes a label-error candidate in one line."""
    detected = f"{category_name(error.category_id, names)} {error.score:.2f}"
    labelled = NO_LABEL if error.annotated_category_id is None else f"annotated as {_labelled(error, names)}"
    return f"{labelled}, detected {detected}"


def image_table(analysis: Analysis) -> Table:
    """Returns one row per image with the most errors."""
    rows: list[list[Cell]] = [
        [shown_name(image.file_name), str(image.image_id), image.fp, image.fn, image.tp] for image in analysis.worst
    ]
    return Table("", ("file", "image", "FP", "FN", "TP"), rows)


def loss_table(analysis: Analysis) -> Table:
    """Returns one row per loss term."""
    rows: list[list[Cell]] = [[name, Number(f"{value:.4g}", value)] for name, value in analysis.losses.items()]
    return Table("", ("term", "mean"), rows)


def size_text(bucket: SizeBucket) -> str:
    """Formats a size range, such as "32 to 96"."""
    return f"{bucket.low:g} and more" if not bucket.high else f"{bucket.low:g} to {bucket.high:g}"


def _labelled(error: LabelError, names: Mapping[int, str]) -> str:
    if error.annotated_category_id is None:
        return NO_LABEL
    return category_name(error.annotated_category_id, names)
