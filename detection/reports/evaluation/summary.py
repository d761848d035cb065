"""The page's first screen, its headline and notes: the main metrics, and the main problems."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from detection.analysis.analysis_file import Analysis, Category, ImageResult, ImageSample, Interval
from detection.analysis.comparison import Comparison
from detection.reports.evaluation.metric_tables import (
    FIRST,
    UNCLEAR,
    change_cell,
    change_text,
    difference,
    interval_text,
    is_defined,
    is_significant,
    judgement,
    main_error,
    main_error_text,
    metric_cell,
    metric_text,
    ordered_categories,
)
from detection.reports.evaluation.next_steps import FEW_INSTANCES
from detection.reports.evaluation.pictures import Galleries
from detection.reports.html.table import Cell, Link, Number, Table, shown_name

_UNDEFINED = f"{FIRST} is undefined: the images have no ground truth."

LISTED = 5  # max categories, and max images
WORST = "worst"  # gallery of the images with the most errors

_TILES = ("AP", "AP50", "AP75")
COMPARED = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}


def headline(analysis: Analysis) -> str:
    """Returns the main metric and its change as a sentence."""
    value = analysis.metrics.get(FIRST)
    if not is_defined(value):
        return _UNDEFINED
    text = f"{_named(FIRST, analysis.iou_type)} {metric_text(value)}"
    interval = analysis.intervals.get(FIRST)
    if interval:
        text += f" ({_percent(analysis.confidence)} interval {interval_text(interval)})"
    before = analysis.baseline_metrics.get(FIRST)
    change = difference(value, before)
    if change is None:
        return f"{text}."
    comparison_text = _change(change, before, analysis.differences.get(FIRST), analysis.confidence)
    return f"{text}, {comparison_text.format(other='the baseline')}."


def _named(metric: str, iou_type: str) -> str:
    """Returns a metric's name, such as "AP of masks", because AP alone is understood as AP of boxes."""
    return metric if iou_type == "bbox" else f"{metric} of {COMPARED[iou_type]}"


def change_headline(comparison: Comparison) -> str:
    """Returns the main metric of both models as a sentence."""
    change = comparison.metrics.get(FIRST)
    if change is None or change.difference is None:
        return _UNDEFINED
    comparison_text = _change(change.difference, change.a, change.interval, comparison.confidence)
    return f"B has {_named(FIRST, comparison.iou_type)} {metric_text(change.b)}, {comparison_text.format(other='A')}."


def _change(change: float, before: float | None, interval: Interval | None, confidence: float) -> str:
    """Describes a change, such as "+0.020 against {other}'s 0.380", with its significance if there is an interval."""
    text = f"{change_text(change)} against {{other}}'s {metric_text(before)}"
    if interval is None:
        return text
    verdict = {"better": "a significant gain", "worse": "a significant loss", UNCLEAR: "no significant difference"}
    shown = interval_text(interval, signed=True)
    return f"{text} ({_percent(confidence)} interval {shown}): {verdict[judgement(interval)]}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:g} %"


def sample_note(sample: ImageSample) -> str:
    """Returns a note that a sample was analysed; "" if all images were."""
    if sample.images >= sample.of:
        return ""
    return (
        f"Metrics are of all {sample.of:,} images. Intervals, categories, errors and everything else are of a random "
        f"sample of {sample.images:,} images (seed {sample.seed})."
    )


def remarks(comparison: Comparison) -> list[str]:
    """Returns the notes on a comparison: on its sample, if it has one, and its own."""
    note = sample_note(comparison.sample) if comparison.sample else ""
    return [*filter(None, [note]), *comparison.remarks]


def method(analysis: Analysis) -> list[str]:
    """Returns the definitions of the metrics, intervals and errors."""
    what = COMPARED.get(analysis.iou_type, analysis.iou_type)
    lines = [f"COCO's metrics for {what}, as pycocotools computes them, on {analysis.sample.of:,} images."]
    lines.append(
        "AP is average precision, AR average recall, over the IoU thresholds or at the one that the name ends in, "
        "such as AP50; s, m and l stand for small, medium and large instances, the number in AR100 for the "
        "max detections per image. TP, FP and FN are true positives, false positives and false negatives."
    )
    if analysis.intervals:
        lines.append(
            f"Intervals hold {100 * analysis.confidence:g} % of {analysis.replicates:,} bootstrap replicates, each of "
            "as many images drawn with replacement, shifted so that their median is the metric itself. Differences "
            "are of both models on the same images."
        )
    if analysis.boundaries:
        lines.append("Boundary IoU is that of Cheng et al. (CVPR 2021).")
    if analysis.errors:
        lines.append("Error types are TIDE's (Bolya et al., ECCV 2020).")
    return lines


class Tile(NamedTuple):
    """A metric in large type: name, value, and a note below in the colour of `tone`."""

    name: str
    value: str
    note: str
    tone: str


def tiles(analysis: Analysis) -> list[Tile]:
    """Returns AP, AP50, AP75, the AR of all sizes with the most detections, and the best F1, if defined."""
    # For keypoints, AR is named AR, and AR50 is AR at one IoU threshold; otherwise AR has max detections, as AR100.
    recalls = [name for name in analysis.metrics if name.startswith("AR") and name[2:].lstrip("@").isdigit()]
    names = [*_TILES, "AR" if "AR" in analysis.metrics else recalls[-1] if recalls else ""]
    shown = [_metric_tile(analysis, name) for name in names if is_defined(analysis.metrics.get(name))]
    point = analysis.operating_point
    if point:
        shown.append(Tile("Best F1", metric_text(point.f1), f"at score {metric_text(point.score)}", ""))
    return shown


def _metric_tile(analysis: Analysis, name: str) -> Tile:
    value, interval = analysis.metrics[name], analysis.intervals.get(name)
    change = difference(value, analysis.baseline_metrics.get(name))
    if change is not None:
        significant = is_significant(analysis.differences.get(name))
        tone = ("good" if change > 0 else "bad") if significant else ""
        return Tile(name, metric_text(value), f"{change_text(change)} to baseline", tone)
    return Tile(name, metric_text(value), interval_text(interval) if interval else "", "")


def category_summary(analysis: Analysis, shown: Galleries) -> Table:
    """Returns the categories with the lowest AP, with their main errors.

    Categories with fewer than FEW_INSTANCES instances come last: single detections decide their
    AP.  The mean AP weights categories equally: a category reduces it by (1 - AP) / K, with K
    categories with ground truth.

    Args:
        analysis: analysis of the evaluation.
        shown: figures of the page, for links.
    """
    measured = [one for one in ordered_categories(analysis) if is_defined(one.metrics.get(FIRST))]
    measured.sort(key=lambda category: category.ground_truth < FEW_INSTANCES)
    compared = any(one.baseline_metrics for one in analysis.categories)
    rows = [_category_row(one, analysis, shown, compared, len(measured)) for one in measured[:LISTED]]
    header = ["category", FIRST, *([f"{FIRST} change"] if compared else []), "mean AP lost", "ground truth"]
    return Table("", [*header, "main error", "look at"], rows)


def image_summary(analysis: Analysis, shown: Galleries) -> Table:
    """Returns the images with the most errors."""
    anchors = _anchors(WORST, shown)
    rows: list[list[Cell]] = [
        [_image_link(image, anchors), str(image.image_id), image.fp, image.fn, image.tp]
        for image in analysis.worst[:LISTED]
    ]
    return Table("", ("image", "id", "FP", "FN", "TP"), rows)


def _category_row(
    category: Category, analysis: Analysis, shown: Galleries, compared: bool, measured: int
) -> list[Cell]:
    value = category.metrics[FIRST]
    lost = (1.0 - value) / measured
    change = difference(value, category.baseline_metrics.get(FIRST))
    return [
        shown_name(category.name),
        metric_cell(value),
        *([change_cell(change)] if compared else []),
        Number(metric_text(lost), lost),
        category.ground_truth,
        main_error_text(category) or "",
        _picture_of(category, analysis, shown) or "",
    ]


def _picture_of(category: Category, analysis: Analysis, shown: Galleries) -> Link | str | None:
    """Returns an image with the category's main error: a link to its picture, or its name if it has none."""
    error = main_error(category)
    if error is None:
        return None
    images: Mapping[str, Sequence[ImageResult]] = {**analysis.examples, WORST: analysis.worst}
    showing = [
        (image, _anchors(name, shown))
        for name in dict.fromkeys([error[0], WORST, *images])
        for image in images.get(name, ())
        if _shows(image, category.id, error[0])
    ]
    links = [_image_link(image, anchors) for image, anchors in showing]
    return next((link for link in links if isinstance(link, Link)), links[0] if links else None)


def _shows(image: ImageResult, category_id: int, error: str) -> bool:
    boxes = [*image.ground_truth, *image.detections]
    return any(box.category_id == category_id and box.status == error for box in boxes)


def _anchors(gallery: str, shown: Galleries) -> dict[int, str]:
    """Returns image id -> id of its figure in the gallery."""
    return {figure.image_id: figure.anchor(gallery) for figure in shown.get(gallery, ())}


def _image_link(image: ImageResult, anchors: Mapping[int, str]) -> Link | str:
    name = shown_name(image.file_name) or f"image {image.image_id}"
    anchor = anchors.get(image.image_id)
    return Link(name, f"#{anchor}") if anchor else name
