"""Tables of what goes wrong: kinds of errors, sizes, label errors, and the scores' calibration."""

from collections.abc import Mapping

from detection.coco.analysis.findings import ERROR_TYPES, Analysis, Calibration, LabelError, SizeBucket
from detection.coco.evaluation_report.numbers import change_text, figure_cell, figure_text
from detection.coco.marks import category_name
from detection.pages.names import shown_name
from detection.pages.table import Cell, Number, Table

# As Bolya et al. (ECCV 2020, section 2.2) define them; {iou} is the threshold.
_DEFINITIONS = {
    "Cls": "lies on an object (IoU of at least {iou}) of another category",
    "Loc": "right category, but an IoU of 0.1 to {iou} only",
    "Both": "another category, and an IoU of 0.1 to {iou} only",
    "Dupe": "right, but a more confident detection has the object already",
    "Bkg": "an IoU of less than 0.1 with every object",
    "Miss": "an object without a detection, wrong ones included",
}


def error_table(analysis: Analysis) -> Table:
    """One row a type of error, with what mending it would bring."""
    most = max((error.ap_gain for error in analysis.errors), default=0.0)
    rows: list[list[Cell]] = [
        [
            ERROR_TYPES.get(error.name, error.name),
            _DEFINITIONS.get(error.name, "").format(iou=f"{analysis.iou:g}"),
            error.count,
            Number(change_text(error.ap_gain), error.ap_gain, max(error.ap_gain, 0.0) / most if most > 0 else 0.0),
        ]
        for error in analysis.errors
    ]
    return Table("", ("error", "what it is", "count", "AP50 gain if mended"), rows)


def size_table(analysis: Analysis) -> Table:
    """One row a range of object sizes, from the smallest objects' to the largest ones'."""
    present = [at for at, bucket in enumerate(analysis.sizes) if bucket.objects]
    shown = analysis.sizes[present[0] : present[-1] + 1] if present else []
    figures = list(dict.fromkeys(name for bucket in analysis.sizes for name in bucket.figures))
    rows: list[list[Cell]] = [
        [
            _size_text(bucket),
            bucket.objects,
            *(figure_cell(bucket.figures.get(name), bar=name == figures[0]) for name in figures),
        ]
        for bucket in shown
    ]
    return Table("", ("size, pixels", "objects", *figures), rows)


def calibration_table(calibration: Calibration) -> Table:
    """One row a bin of scores."""
    rows: list[list[Cell]] = [
        [
            f"{part.low:.2f} to {part.high:.2f}",
            part.count,
            figure_cell(part.score if part.count else None),
            figure_cell(part.right if part.count else None),
        ]
        for part in calibration.bins
    ]
    return Table("", ("scores", "detections", "mean score", "share that is right"), rows)


def calibration_text(calibration: Calibration) -> str:
    """Whether scores promise too much or too little, and by how much."""
    count = sum(part.count for part in calibration.bins)
    gap = sum(part.count * (part.score - part.right) for part in calibration.bins) / max(count, 1)
    leaning = "too high" if gap > 0 else "too low"
    return (
        f"The expected calibration error is {figure_text(calibration.expected_error)}, the greatest of a bin "
        f"{figure_text(calibration.greatest_error)}. On average scores are {leaning} by {figure_text(abs(gap))}."
    )


def label_error_table(analysis: Analysis, names: Mapping[int, str]) -> Table:
    """One row a likely mistake in the ground truth."""
    rows: list[list[Cell]] = [
        [
            shown_name(error.file_name),
            str(error.image_id),
            _labelled(error, names),
            category_name(error.category_id, names),
            figure_cell(error.score),
            ", ".join(f"{value:.0f}" for value in error.bbox),
        ]
        for error in analysis.label_errors
    ]
    return Table("", ("file", "image", "labelled", "detected", "score", "x, y, width, height"), rows)


def label_error_text(error: LabelError, names: Mapping[int, str]) -> str:
    """In a line, what a person should look at."""
    detected = f"{category_name(error.category_id, names)} {error.score:.2f}"
    labelled = "no label" if error.object_category_id is None else f"labelled {_labelled(error, names)}"
    return f"{labelled}, detected {detected}"


def image_table(analysis: Analysis) -> Table:
    """One row an image worth a look."""
    rows: list[list[Cell]] = [
        [shown_name(found.file_name), str(found.image_id), found.wrong, found.missed, found.right]
        for found in analysis.worst
    ]
    return Table("", ("file", "image", "wrong", "missed", "right"), rows)


def loss_table(analysis: Analysis) -> Table:
    """One row a term of the loss."""
    rows: list[list[Cell]] = [[name, Number(f"{value:.4g}", value)] for name, value in analysis.losses.items()]
    return Table("", ("term", "mean"), rows)


def _size_text(bucket: SizeBucket) -> str:
    return f"{bucket.low:g} and more" if not bucket.high else f"{bucket.low:g} to {bucket.high:g}"


def _labelled(error: LabelError, names: Mapping[int, str]) -> str:
    if error.object_category_id is None:
        return "no label"
    return category_name(error.object_category_id, names)
