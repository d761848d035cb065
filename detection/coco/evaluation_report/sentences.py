"""Sentences of the pages: how good, whether better, on what and how it was measured."""

from detection.coco.analysis.changes import Comparison
from detection.coco.analysis.findings import Analysis, Interval, Sample
from detection.coco.evaluation_report.numbers import (
    change_text,
    difference,
    figure_text,
    interval_text,
    is_defined,
    is_significant,
)

FIRST = "AP"  # the figure that is told first

UNCLEAR = "unclear"  # whether better or worse

_UNDEFINED = f"{FIRST} is undefined: there is no object to measure it on."


def headline(analysis: Analysis) -> str:
    """The first figure in a sentence, and how it compares."""
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
    """The first figure of both in a sentence."""
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
    verdict = {"better": "a significant gain", "worse": "a significant loss", UNCLEAR: "no clear difference"}
    told = interval_text(interval, signed=True)
    return f"{text} ({_percent(confidence)} interval {told}): {verdict[judgement(interval)]}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def sample_note(sample: Sample) -> str:
    """That a sample was analysed, where one was."""
    if sample.images >= sample.of:
        return ""
    return (
        f"The figures are of all {sample.of:,} images. Intervals and everything below the figures are of a random "
        f"sample of {sample.images:,} images (seed {sample.seed})."
    )


def method(analysis: Analysis) -> list[str]:
    """What the figures, intervals and errors are."""
    what = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}.get(analysis.iou_type, analysis.iou_type)
    lines = [f"COCO's metrics for {what}, as pycocotools computes them, on {analysis.sample.of:,} images."]
    lines.append(
        "AP is average precision, AR average recall, over the IoU thresholds or at that which the name ends in, "
        "such as AP50; s, m and l stand for small, medium and large objects, the number behind AR for the "
        "detections counted an image."
    )
    if analysis.intervals:
        lines.append(
            f"Intervals hold {100 * analysis.confidence:g} % of {analysis.replicates:,} bootstrap replicates, each of "
            "as many images drawn with replacement, moved so that their median is the figure itself. Differences "
            "are of both models on the same images."
        )
    if analysis.errors:
        lines.append("Types of errors are TIDE's (Bolya et al., ECCV 2020).")
    return lines
