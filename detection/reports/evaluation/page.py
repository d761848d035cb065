"""The evaluation report: content of the template, and the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from detection.analysis.analysis_file import ERROR_TYPES, Analysis
from detection.reports.box_styles import DETECTION_STATUSES, GROUND_TRUTH_STATUSES
from detection.reports.evaluation import charts
from detection.reports.evaluation.category_changes import category_gains, gain_sentences, gain_table
from detection.reports.evaluation.charts import heat_map, pair_table
from detection.reports.evaluation.error_tables import (
    boundary_area_table,
    boundary_category_table,
    boundary_text,
    calibration_table,
    calibration_text,
    error_table,
    image_table,
    label_error_table,
    loss_table,
    mask_match_table,
    size_table,
)
from detection.reports.evaluation.metric_tables import category_table, metric_table, slice_table
from detection.reports.evaluation.next_steps import FEW_INSTANCES, next_steps
from detection.reports.evaluation.panels import label_crop, mask_crop, side_by_side
from detection.reports.evaluation.pictures import Galleries, PictureSource, Shown, measured, write_illustrated_page
from detection.reports.evaluation.summary import (
    COMPARED,
    WORST,
    category_summary,
    headline,
    image_summary,
    method,
    sample_note,
    tiles,
)
from detection.reports.evaluation.thresholds import thresholds

_LABELS, _MASKS = "labels", "masks"  # names of galleries, besides WORST and the error types


class Judged(Protocol):
    """The blessing decision, and a sentence per threshold."""

    @property
    def blessed(self) -> bool:
        """True if the model is blessed."""

    @property
    def reasons(self) -> Sequence[str]:
        """The reasons."""


def write_evaluation_report(
    path: str | Path,
    analysis: Analysis,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    slices: Sequence[Mapping[str, Any]] = (),
    verdict: Judged | None = None,
    pictures: PictureSource | None = None,
    doubts: Sequence[str] = (),
) -> None:
    """Writes the report: one self-contained HTML file, written atomically.

    The file has at most 5 MB: excess pictures are dropped, and the page states their number.

    Args:
        path: path of the HTML file.
        analysis: the analysis to show; those by further IoU types have sections of their own.
        title: heading, such as "raccoons, efficientdet-d0".
        facts: name -> text, such as the model's folder, the date, the command.
        slices: entries of the metrics file on slices.
        verdict: whether the model is blessed; None: no thresholds were applied.
        pictures: source of the images; None: no image files.
        doubts: what in the files explains the metrics, a sentence each.

    Raises:
        DataError: the file cannot be written.
    """
    names = {category.id: category.name for category in analysis.categories}
    views = {_prefix(one, analysis): _content(one, names) for one in analysis.of_all_types}
    content = _first_screen(analysis, doubts) | {
        "title": title,
        "facts": facts or {},
        "verdict": _banner(verdict),
        "slices": slice_table(slices) if slices else None,
    }
    write_illustrated_page(
        path,
        "report.html.j2",
        scripts=("tables.js", "curves.js", "thresholds.js"),
        galleries={
            f"{_prefix(one, analysis)}{name}": figures
            for one in analysis.of_all_types
            for name, figures in _galleries(one, names, pictures).items()
        },
        source=pictures,
        content=lambda shown: content | _shown_content(analysis, views, shown, slices=bool(slices)),
    )


def _first_screen(analysis: Analysis, doubts: Sequence[str]) -> dict[str, Any]:
    """Content before the sections, and what all sections share."""
    return {
        "headlines": [headline(one) for one in analysis.of_all_types],
        "sample_note": sample_note(analysis.sample),
        "tiles": tiles(analysis),
        "steps": next_steps(analysis, doubts=doubts),
        "analysis": analysis,
        "error_types": {name: words.capitalize() for name, words in ERROR_TYPES.items()},
        "legend_groups": {"Ground truth": GROUND_TRUTH_STATUSES, "Detections": DETECTION_STATUSES},
    }


def _shown_content(
    analysis: Analysis, views: Mapping[str, Mapping[str, Any]], shown: Shown, *, slices: bool
) -> dict[str, Any]:
    """Content that depends on the pictures shown; `views`: content of each IoU type by the prefix of its ids."""
    sections: dict[str, str] = {}
    complete = []
    for prefix, view in views.items():
        own = {name.removeprefix(prefix): one for name, one in shown.galleries.items() if name.startswith(prefix)}
        examples = {name: own[name] for name in ERROR_TYPES if own.get(name)}
        complete.append({**view, "prefix": prefix, "galleries": own, "examples": examples})
        sections |= _sections(complete[-1], slices=slices)
    return {
        "views": complete,
        "sections": sections,
        "first_categories": category_summary(analysis, shown.galleries),
        "first_images": image_summary(analysis, shown.galleries),
        "few_instances": any(one.ground_truth < FEW_INSTANCES for one in analysis.categories) and FEW_INSTANCES,
    }


def _content(analysis: Analysis, names: Mapping[int, str]) -> dict[str, Any]:
    """Content of the sections of one IoU type that does not depend on the pictures shown."""
    calibration, confusion, boundaries = analysis.calibration, analysis.confusion, analysis.boundaries
    curves = charts.mean_curves(analysis)
    return {
        "analysis": analysis,
        "metrics": metric_table(analysis),
        "errors": error_table(analysis),
        "sizes": size_table(analysis),
        "boundary_text": boundary_text(analysis.iou),
        "boundary_areas": boundaries and boundary_area_table(boundaries),
        "boundary_categories": boundaries and boundary_category_table(boundaries, names),
        "mask_matches": boundaries and mask_match_table(boundaries, names),
        "categories": category_table(analysis),
        "gains": gain_table(analysis),
        "gain_sentences": gain_sentences(category_gains(analysis)),
        "mean_curves": curves,
        "curves_alt": charts.curves_text(analysis),
        "category_curves": {"recall": analysis.recall, "curves": charts.category_curves(analysis)},
        "thresholds": thresholds(analysis),
        "calibration": calibration and calibration_table(calibration),
        "calibration_text": calibration and calibration_text(calibration),
        "reliability_bars": calibration and charts.reliability_bars(calibration),
        "count_bars": calibration and charts.count_bars(calibration),
        "heat_map": confusion and heat_map(confusion, names),
        "pairs": confusion and pair_table(confusion, names),
        "images": image_table(analysis),
        "label_errors": label_error_table(analysis, names),
        "losses": loss_table(analysis),
        "method": method(analysis),
    }


def _prefix(analysis: Analysis, first: Analysis) -> str:
    """Returns what the ids of an analysis' sections start with: nothing for the first IoU type."""
    return "" if analysis is first else f"{analysis.iou_type}-"


def _sections(view: Mapping[str, Any], *, slices: bool) -> dict[str, str]:
    """Id -> heading of the sections with content of an analysis, in their order."""
    analysis: Analysis = view["analysis"]
    prefix, is_first = view["prefix"], not view["prefix"]
    content = {
        "metrics": ("Metrics", bool(analysis.metrics)),
        "curves": ("Precision and recall", bool(view["mean_curves"])),
        "thresholds": ("Score threshold", view["thresholds"] is not None),
        "slices": ("Slices", slices and is_first),
        "gains": ("Gained and forgotten", bool(category_gains(analysis))),
        "categories": ("Categories", bool(analysis.categories)),
        "errors": ("Error types (TIDE)", bool(analysis.errors)),
        "confusion": ("Confusion matrix", analysis.confusion is not None),
        "sizes": ("Sizes", any(bucket.ground_truth for bucket in analysis.sizes)),
        "calibration": ("Calibration of scores", analysis.calibration is not None),
        "boundaries": ("Boundaries of masks", bool(analysis.boundaries and analysis.boundaries.categories)),
        WORST: ("Images with most errors", bool(analysis.worst)),
        "examples": ("Examples of each error type", bool(view["examples"])),
        "label-errors": ("Label-error candidates", bool(analysis.label_errors)),
        "losses": ("Losses", bool(analysis.losses)),
        "method": ("How it was measured", True),
    }
    of_type = "" if is_first else f"{COMPARED[analysis.iou_type].capitalize()}: "
    return {f"{prefix}{name}": f"{of_type}{heading}" for name, (heading, there) in content.items() if there}


def _banner(verdict: Judged | None) -> dict[str, Any]:
    """Returns the first line, its reasons, and its `tone`: "good", "bad" or "plain"."""
    if verdict is None:
        return {"tone": "plain", "text": "Evaluated without a blessing decision.", "reasons": ()}
    tone, text = ("good", "Blessed.") if verdict.blessed else ("bad", "Not blessed.")
    return {"tone": tone, "text": text, "reasons": verdict.reasons}


def _galleries(analysis: Analysis, names: Mapping[int, str], source: PictureSource | None) -> Galleries:
    results = {WORST: analysis.worst, **analysis.examples}
    galleries = {
        name: [side_by_side(measured(image, source), names) for image in images] for name, images in results.items()
    }
    matches = analysis.boundaries.worst if analysis.boundaries else []
    return galleries | {
        _LABELS: [label_crop(error, at, names) for at, error in enumerate(analysis.label_errors)],
        _MASKS: [mask_crop(match, at, names) for at, match in enumerate(matches)],
    }
