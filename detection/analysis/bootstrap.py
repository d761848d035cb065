"""Intervals of a model's figures and of what it gained, from the same resampled images."""

from dataclasses import dataclass, field

from detection.analysis.categories import category_figures
from detection.analysis.evaluated import Evaluated
from detection.analysis.findings import Interval
from detection.analysis.intervals import difference_intervals, figure_intervals
from detection.analysis.options import AnalysisOptions
from detection.analysis.resampling import draw_images
from detection.coco.params import FloatArray


@dataclass(frozen=True)
class Intervals:
    """Without replicates, images or a baseline the parts are empty.

    figures: by name.
    differences: candidate minus baseline, by the figure's name.
    categories: the same of the AP of each category, by its id.
    """

    figures: dict[str, Interval] = field(default_factory=dict)
    differences: dict[str, Interval] = field(default_factory=dict)
    categories: dict[int, Interval] = field(default_factory=dict)


def bootstrap(candidate: Evaluated, baseline: Evaluated | None, options: AnalysisOptions) -> Intervals:
    """Draws images with replacement, as many as there are, and evaluates each draw.

    What is undefined is left out.
    """
    if not options.replicates or not candidate.objects.images:
        return Intervals()
    weights = draw_images(len(candidate.objects.images), options.replicates, options.seed)
    drawn = candidate.resampled(weights)
    figures = figure_intervals(candidate.figures, drawn.figures, options.confidence)
    if baseline is None:
        return Intervals(figures)
    before = baseline.resampled(weights)
    return Intervals(
        figures,
        difference_intervals(candidate.figures, baseline.figures, drawn.figures, before.figures, options.confidence),
        difference_intervals(
            _precisions(candidate),
            _precisions(baseline),
            _by_category(candidate, drawn.categories),
            _by_category(baseline, before.categories),
            options.confidence,
        ),
    )


def _precisions(evaluated: Evaluated) -> dict[int, float]:
    """AP by category id, -1 where undefined."""
    rows = category_figures(evaluated.arrays, evaluated.params)
    return {category["id"]: row["AP"] for category, row in zip(evaluated.objects.categories, rows, strict=True)}


def _by_category(evaluated: Evaluated, values: FloatArray) -> dict[int, FloatArray]:
    return {category["id"]: row for category, row in zip(evaluated.objects.categories, values, strict=True)}
