"""Sentences of the pages: the main metric, its change, the images and the method of the evaluation."""

from detection.analysis.analysis_file import Analysis, Interval, Sample
from detection.analysis.comparison import Comparison
from detection.reports.evaluation.numbers import (
    change_text,
    difference,
    figure_text,
    interval_text,
    is_defined,
    is_significant,
)

FIRST = "AP"  # the metric that is told first

UNCLEAR = "not significant"

_UNDEFINED = f"{FIRST} is undefined: the images have no ground truth."


def headline(analysis: Analysis) -> str:
    """The first metric in a sentence, and its change."""
    value = analysis.figures.get(FIRST)
    if not is_defined(value):
        return _UNDEFINED
    text = f"{FIRST} {figure_text(value)}"
    interval = analysis.intervals.get(FIRST)
    if interval:
        text += f" ({_percent(analysis.confidence)} interval {interval_text(interval)})"
    before = analysis.before.get(FIRST)
    change = difference(value, before)
    if change is None:
        return f"{text}."
    told = _change(change, before, analysis.differences.get(FIRST), analysis.confidence)
    return f"{text}, {told.format(other='the baseline')}."


def change_headline(comparison: Comparison) -> str:
    """The first metric of both in a sentence."""
    change = comparison.figures.get(FIRST)
    if change is None or change.difference is None:
        return _UNDEFINED
    told = _change(change.difference, change.a, change.interval, comparison.confidence)
    return f"B has {FIRST} {figure_text(change.b)}, {told.format(other='A')}."


def judgement(change: Interval | None) -> str:
    """What a difference's interval says: "better", "worse" or UNCLEAR; "" without one."""
    if change is None:
        return ""
    if not is_significant(change):
        return UNCLEAR
    return "better" if change.low > 0 else "worse"


def _change(change: float, before: float | None, interval: Interval | None, confidence: float) -> str:
    """Such as "+0.020 against {other}'s 0.380"; with an interval, whether it is more than chance."""
    text = f"{change_text(change)} against {{other}}'s {figure_text(before)}"
    if interval is None:
        return text
    verdict = {"better": "a significant gain", "worse": "a significant loss", UNCLEAR: "no significant difference"}
    told = interval_text(interval, signed=True)
    return f"{text} ({_percent(confidence)} interval {told}): {verdict[judgement(interval)]}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def sample_note(sample: Sample) -> str:
    """Says that a sample was analysed; "" if all images were."""
    if sample.images >= sample.of:
        return ""
    return (
        f"Metrics are of all {sample.of:,} images. Intervals, categories, errors and everything else are of a random "
        f"sample of {sample.images:,} images (seed {sample.seed})."
    )


def method(analysis: Analysis) -> list[str]:
    """Definitions of the metrics, intervals and errors."""
    what = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}.get(analysis.iou_type, analysis.iou_type)
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
    if analysis.errors:
        lines.append("Error types are TIDE's (Bolya et al., ECCV 2020).")
    return lines
