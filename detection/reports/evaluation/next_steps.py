"""Next steps: recommendations from an analysis, one documented rule per step.

Each rule reads values of the analysis, and returns no step if its condition is not met.
Configuration keys are Cocoflow's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detection.analysis.analysis_file import ERROR_TYPES, Analysis, SizeBucket
from detection.reports.evaluation.category_changes import category_gains
from detection.reports.evaluation.charts import most_confused_pair
from detection.reports.evaluation.error_tables import errors_at_score, label_error_text, score_gap, size_text
from detection.reports.evaluation.metric_tables import (
    FIRST,
    UNCLEAR,
    change_text,
    interval_text,
    is_defined,
    judgement,
    metric_text,
)
from detection.reports.html.table import shown_name

FEW_IMAGES = 50  # min images for reliable bootstrap intervals; docs/evaluation.md has measurements
FEW_INSTANCES = 10  # min instances of a category, below which single detections decide its AP
POOR_CALIBRATION = 0.05  # expected calibration error
SIZE_GAP = 0.1  # difference of AP between a size range and all sizes
LABEL_ERRORS = "label-errors"  # name of a rule
_NAMED = 3  # max categories in a sentence


class Step(NamedTuple):
    """A step: name of the rule, evidence, action, and id of the section with the details."""

    rule: str
    evidence: str
    action: str
    section: str


def next_steps(analysis: Analysis, *, doubts: Sequence[str] = ()) -> list[Step]:
    """Returns the steps of all rules whose condition is met, the most urgent first.

    Args:
        analysis: the analysis.
        doubts: what in the files explains the metrics: the first step, without those that would find faults of the
            files in the model or the labels.
    """
    steps = [step for rule in _RULES if not (doubts and rule in _OF_THE_MODEL) and (step := rule(analysis))]
    if not doubts:
        return steps
    action = "If this was not meant, correct the files or the options and evaluate again, before you change the model."
    return [Step("files", f"{'; '.join(doubts)}.", action, "metrics"), *steps]


def _no_match(analysis: Analysis) -> Step | None:
    """There is ground truth, and no detection matches any of it."""
    instances = sum(category.ground_truth for category in analysis.categories)
    detections = sum(category.detections for category in analysis.categories)
    if not instances or analysis.operating_point:
        return None
    if not detections:
        evidence = f"There are no detections for {instances:,} instances."
        action = "Check that the model is trained, and that its score threshold is not too high."
    else:
        evidence = f"None of {detections:,} detections matches any of {instances:,} instances."
        action = (
            "Check that image ids, category ids and boxes (x, y, width, height in pixels of the stored image) of the "
            "detections are those of the ground truth."
        )
    return Step("no-match", evidence, action, "categories")


def _baseline(analysis: Analysis) -> Step | None:
    """There is a baseline, and AP is lower, its change is not significant, or categories lost AP."""
    change = analysis.differences.get(FIRST)
    if change is None:
        return None
    said = judgement(change)
    losses = [
        f"{shown_name(one.name)} ({change_text(one.difference)})"
        for one in category_gains(analysis)
        if one.difference < 0
    ]
    named = f" The largest losses: {_listed(losses)}."
    shown = f"{change_text(change.value)}, interval {interval_text(change, signed=True)}"
    if said == "worse":
        evidence, action = f"{FIRST} is significantly lower than the baseline's ({shown}).", "Keep the baseline."
    elif said == UNCLEAR:
        evidence = f"The change of {FIRST} is not significant on {analysis.sample.images:,} images ({shown})."
        action = "Evaluate on more images before you replace the baseline."
    elif losses:
        evidence = (
            f"{FIRST} is significantly higher than the baseline's ({shown}), but {len(losses):,} of "
            f"{len(analysis.categories):,} categories lost {FIRST}."
        )
        action = "Check these categories before you replace the baseline."
    else:
        return None
    return Step("baseline", evidence, action + (named if losses else ""), "metrics")


def _lost_categories(analysis: Analysis) -> Step | None:
    """No detection matches any ground truth of some categories, while those of others do."""
    lost = [one for one in analysis.categories if one.ground_truth and one.metrics.get(FIRST) == 0.0]
    if not lost or len(lost) == sum(one.ground_truth > 0 for one in analysis.categories):
        return None
    lost.sort(key=lambda one: -one.ground_truth)
    named = _listed([f"{shown_name(one.name)} ({one.ground_truth:,} instances)" for one in lost])
    evidence = f"{FIRST} is 0 for {len(lost):,} of {len(analysis.categories):,} categories: {named}."
    action = (
        "Check that train has enough annotations of them, under the same names: check-data lists the number of each "
        "category."
    )
    return Step("lost-categories", evidence, action, "categories")


def _main_error(analysis: Analysis) -> Step | None:
    """The error type with the largest AP50 gain, if it is above 0."""
    error = max(analysis.errors, key=lambda error: error.ap_gain, default=None)
    if error is None or error.ap_gain <= 0:
        return None
    evidence = (
        f"AP50 loses most to error type {ERROR_TYPES.get(error.name, error.name)}: {change_text(error.ap_gain)} if all "
        f"{error.count:,} at any score were fixed ({errors_at_score(analysis, error.name):,} at scores of at least "
        f"{analysis.score:g})."
    )
    return Step("main-error", evidence, _ERROR_ACTIONS[error.name](analysis), "errors")


def _fix_classification(analysis: Analysis) -> str:
    pair = analysis.confusion and most_confused_pair(analysis.confusion, _names(analysis))
    worst = ""
    if pair:
        worst = (
            f"Most confused: {pair.ground_truth} detected as {pair.detected} ({pair.times:,} times, "
            f"{100 * pair.fraction:.1f} % of its ground truth). "
        )
    return f"{worst}Check that the annotations tell these categories apart, then add training images of both."


def _fix_localisation(_: Analysis) -> str:
    return (
        "Check how tightly the ground-truth boxes fit in the pictures of this error, then train longer or with a "
        "larger input (model.image_size)."
    )


def _fix_duplicates(_: Analysis) -> str:
    return (
        "Lower the IoU threshold of hard NMS (model.postprocess.iou_threshold), which needs no training. A detector "
        "without suppression, a CenterNet or a D-FINE, has fewer duplicates after more training steps."
    )


def _fix_background(analysis: Analysis) -> str:
    missing = sum(error.kind == "missing" for error in analysis.label_errors)
    first = f"Check the {missing:,} candidates for missing annotations first. " if missing else ""
    return f"{first}Then add training images that show such background without annotations."


def _fix_fn(analysis: Analysis) -> str:
    weakest = _weakest(analysis.sizes, _recall)
    worst = ""
    if weakest:
        worst = (
            f"Recall is lowest for sizes of {size_text(weakest)} pixels (AR {metric_text(_recall(weakest))}, "
            f"{weakest.ground_truth:,} instances). "
        )
    return f"{worst}Add training images with such instances, or train with a larger input (model.image_size)."


_ERROR_ACTIONS: Mapping[str, Callable[[Analysis], str]] = {
    "Cls": _fix_classification,
    "Loc": _fix_localisation,
    "Both": _fix_classification,
    "Dupe": _fix_duplicates,
    "Bkg": _fix_background,
    "Miss": _fix_fn,
}


def _label_errors(analysis: Analysis) -> Step | None:
    """There are label-error candidates."""
    errors = analysis.label_errors
    if not errors:
        return None
    missing = sum(error.kind == "missing" for error in errors)
    first = max(errors, key=lambda error: error.score)
    evidence = (
        f"{len(errors):,} label-error candidates are listed: {missing:,} with no annotation, "
        f"{len(errors) - missing:,} annotated as another category. The highest score: "
        f"{shown_name(first.file_name)} (image {first.image_id}), {label_error_text(first, _names(analysis))}."
    )
    action = "Look at each, correct the annotations, and evaluate again: until then these detections count as FP."
    return Step(LABEL_ERRORS, evidence, action, "label-errors")


def _threshold(analysis: Analysis) -> Step | None:
    """There is a score threshold with the highest F1 over all categories."""
    point = analysis.operating_point
    if point is None:
        return None
    evidence = (
        f"Recommended score threshold: {metric_text(point.score)}. There F1 is highest over all categories "
        f"({metric_text(point.f1)}: precision {metric_text(point.precision)}, recall {metric_text(point.recall)}, "
        f"IoU {analysis.iou:g})."
    )
    own = sorted((one.best.score, shown_name(one.name)) for one in analysis.categories if one.best)
    action = "Drop detections below it in the application."
    if len(own) > 1:
        (low, lowest), (high, highest) = own[0], own[-1]
        action += (
            f" The best thresholds of single categories lie between {metric_text(low)} ({lowest}) and "
            f"{metric_text(high)} ({highest}); the table of categories lists them."
        )
    return Step("threshold", evidence, action, "categories")


def _calibration(analysis: Analysis) -> Step | None:
    """The expected calibration error is above POOR_CALIBRATION."""
    calibration = analysis.calibration
    if calibration is None or calibration.expected_error <= POOR_CALIBRATION:
        return None
    gap = score_gap(calibration)
    evidence = (
        f"Scores are not calibrated: expected calibration error {metric_text(calibration.expected_error)}, on average "
        f"{metric_text(abs(gap))} {'higher' if gap > 0 else 'lower'} than the precision."
    )
    action = "Do not read scores as probabilities: choose thresholds by precision, or export with --calibrate."
    return Step("calibration", evidence, action, "calibration")


def _sizes(analysis: Analysis) -> Step | None:
    """The AP of a size range with at least FEW_INSTANCES instances is SIZE_GAP or more below the AP of all sizes."""
    weakest, overall = _weakest(analysis.sizes, _precision), analysis.metrics.get(FIRST)
    if weakest is None or overall is None or not is_defined(overall) or overall - _precision(weakest) < SIZE_GAP:
        return None
    instances = sum(bucket.ground_truth for bucket in analysis.sizes)
    evidence = (
        f"{FIRST} is lowest for sizes of {size_text(weakest)} pixels: {metric_text(_precision(weakest))}, against "
        f"{metric_text(overall)} for all sizes ({weakest.ground_truth:,} of {instances:,} instances)."
    )
    if _is_small(weakest, analysis.sizes):
        action = "Train with a larger input (model.image_size), or on crops."
    else:
        action = "Add training images with instances of this size."
    return Step("sizes", evidence, action, "sizes")


def _few_images(analysis: Analysis) -> Step | None:
    """Fewer than FEW_IMAGES images were evaluated."""
    images = analysis.sample.of
    if not 0 < images < FEW_IMAGES:
        return None
    evidence = f"Only {images:,} images were evaluated."
    action = f"Evaluate on at least {FEW_IMAGES}: with fewer, single images decide and intervals are too narrow."
    return Step("few-images", evidence, action, "method")


def _few_instances(analysis: Analysis) -> Step | None:
    """Some categories have between 1 and FEW_INSTANCES - 1 instances."""
    few = sorted(
        (one for one in analysis.categories if 0 < one.ground_truth < FEW_INSTANCES),
        key=lambda category: (category.ground_truth, category.id),
    )
    if not few:
        return None
    named = _listed([f"{shown_name(one.name)} ({one.ground_truth})" for one in few])
    evidence = f"{len(few):,} of {len(analysis.categories):,} categories have fewer than {FEW_INSTANCES} instances: "
    action = "Their AP says little: add annotated images of them to the evaluated split."
    return Step("few-instances", f"{evidence}{named}.", action, "categories")


def _no_instances(analysis: Analysis) -> Step | None:
    """Some categories have no ground truth."""
    missing = [one for one in analysis.categories if not one.ground_truth]
    if not missing:
        return None
    named = _listed([shown_name(one.name) for one in missing])
    evidence = f"{len(missing):,} of {len(analysis.categories):,} categories have no ground truth: {named}."
    action = "Their AP is undefined and no part of the mean: add annotated images of them to the evaluated split."
    return Step("no-instances", evidence, action, "categories")


# Most urgent first.
_RULES: Sequence[Callable[[Analysis], Step | None]] = (
    _no_match,
    _baseline,
    _lost_categories,
    _main_error,
    _label_errors,
    _threshold,
    _calibration,
    _sizes,
    _few_images,
    _few_instances,
    _no_instances,
)
_OF_THE_MODEL = {_main_error, _label_errors, _sizes}  # their cures are longer training, a larger input, other labels


def _listed(names: Sequence[str]) -> str:
    """Lists the first names, and the number of the others."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _names(analysis: Analysis) -> dict[int, str]:
    return {category.id: category.name for category in analysis.categories}


def _weakest(sizes: Sequence[SizeBucket], value: Callable[[SizeBucket], float]) -> SizeBucket | None:
    """Returns the size range with the lowest value among those with at least FEW_INSTANCES instances."""
    counted = [bucket for bucket in sizes if bucket.ground_truth >= FEW_INSTANCES and is_defined(value(bucket))]
    return min(counted, key=value, default=None)


def _precision(bucket: SizeBucket) -> float:
    return bucket.metrics.get(FIRST, -1.0)


def _recall(bucket: SizeBucket) -> float:
    """Returns the AR with the most detections, under any name."""
    return next((value for name, value in bucket.metrics.items() if name.startswith("AR")), -1.0)


def _is_small(bucket: SizeBucket, sizes: Sequence[SizeBucket]) -> bool:
    """Returns whether more than half of the instances are larger."""
    instances = np.array([one.ground_truth for one in sizes])
    larger = np.array([one.low > bucket.low for one in sizes])
    return bool(instances[larger].sum() * 2 > instances.sum())
