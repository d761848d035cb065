"""The evaluation report: everything put into the template, and written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from detection.coco.analysis.findings import ERROR_TYPES, Analysis
from detection.coco.evaluation_report import charts
from detection.coco.evaluation_report.category_table import category_table
from detection.coco.evaluation_report.confusion import heat_map, pair_table
from detection.coco.evaluation_report.error_tables import (
    calibration_table,
    calibration_text,
    error_table,
    image_table,
    label_error_table,
    loss_table,
    size_table,
)
from detection.coco.evaluation_report.figure_table import figure_table
from detection.coco.evaluation_report.illustrated import Galleries, Shown, write_illustrated_page
from detection.coco.evaluation_report.panels import label_crop, side_by_side
from detection.coco.evaluation_report.pictures import PictureSource, measured
from detection.coco.evaluation_report.sentences import headline, method, sample_note
from detection.coco.marks import DETECTION_STATUSES, OBJECT_STATUSES

_WORST, _LABELS = "worst", "labels"  # names of galleries; the others' are error types


class Judged(Protocol):
    """Whether a model is blessed, and a sentence for each threshold."""

    @property
    def blessed(self) -> bool:
        """Whether it is."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why, or why not."""


class _Banner(NamedTuple):
    """The first line: `tone` is "good", "bad" or "plain"."""

    tone: str
    text: str
    reasons: Sequence[str]


def write_evaluation_report(
    path: str | Path,
    analysis: Analysis,
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    verdict: Judged | None = None,
    pictures: PictureSource | None = None,
) -> None:
    """Writes the report: one HTML file that needs nothing else, whole or not at all.

    It is no larger than 5 MB: pictures that are too many are left out, and the page says how many.

    Args:
        path: of the file.
        analysis: what is told.
        title: heading, such as "raccoons, efficientdet-d0".
        facts: name -> text, such as the model's folder, the date, the command.
        verdict: whether the model is blessed; None: nobody asked.
        pictures: of the images; None: there are none to be had.

    Raises:
        DataError: the file cannot be written.
    """
    names = {category.id: category.name for category in analysis.categories}
    told = _content(analysis, names) | {"title": title, "facts": facts or {}, "verdict": _banner(verdict)}

    def content(shown: Shown) -> dict[str, Any]:
        examples = {
            words.capitalize(): shown.galleries[name]
            for name, words in ERROR_TYPES.items()
            if shown.galleries.get(name)
        }
        sections = _sections(analysis, curves=bool(told["mean_curves"]), examples=bool(examples))
        return told | {"examples": examples, "sections": sections}

    write_illustrated_page(
        path,
        "report.html.j2",
        scripts=("tables.js", "curves.js"),
        galleries=_galleries(analysis, names, pictures),
        source=pictures,
        content=content,
    )


def _content(analysis: Analysis, names: Mapping[int, str]) -> dict[str, Any]:
    """All but the pictures."""
    calibration, confusion = analysis.calibration, analysis.confusion
    curves = charts.mean_curves(analysis)
    return {
        "analysis": analysis,
        "headline": headline(analysis),
        "sample_note": sample_note(analysis.sample),
        "figures": figure_table(analysis),
        "errors": error_table(analysis),
        "sizes": size_table(analysis),
        "categories": category_table(analysis),
        "mean_curves": curves,
        "curves_alt": charts.curves_text(analysis),
        "category_curves": {"recall": analysis.recall, "curves": charts.category_curves(analysis)},
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
        "legend_groups": {"Ground truth": OBJECT_STATUSES, "Detections": DETECTION_STATUSES},
        "plot_width": charts.WIDTH,
        "plot_height": charts.HEIGHT,
    }


def _sections(analysis: Analysis, *, curves: bool, examples: bool) -> dict[str, str]:
    """Id -> heading of those that have something to tell, in their order."""
    told = {
        "figures": ("Figures", bool(analysis.figures)),
        "errors": ("Types of errors", bool(analysis.errors)),
        "sizes": ("Sizes of objects", any(bucket.objects for bucket in analysis.sizes)),
        "categories": ("Categories", bool(analysis.categories)),
        "curves": ("Precision and recall", curves),
        "calibration": ("Calibration of scores", analysis.calibration is not None),
        "confusion": ("Confusion", analysis.confusion is not None),
        "worst": ("Worst images", bool(analysis.worst)),
        "examples": ("Examples of errors", examples),
        "label-errors": ("Likely label errors", bool(analysis.label_errors)),
        "losses": ("Losses", bool(analysis.losses)),
        "method": ("How it was measured", True),
    }
    return {name: heading for name, (heading, there) in told.items() if there}


def _banner(verdict: Judged | None) -> _Banner:
    if verdict is None:
        return _Banner("plain", "Evaluated; no blessing was asked for.", ())
    if verdict.blessed:
        return _Banner("good", "Blessed.", verdict.reasons)
    return _Banner("bad", "Not blessed.", verdict.reasons)


def _galleries(analysis: Analysis, names: Mapping[int, str], source: PictureSource | None) -> Galleries:
    found = {_WORST: analysis.worst, **analysis.examples}
    figures = {
        name: [side_by_side(measured(image, source), names) for image in images] for name, images in found.items()
    }
    return figures | {_LABELS: [label_crop(error, at, names) for at, error in enumerate(analysis.label_errors)]}
