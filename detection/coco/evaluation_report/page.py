"""The page itself: everything put into the template, and written."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from markupsafe import Markup

from detection.atomic_files import write_text
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
from detection.coco.evaluation_report.figure_table import figure_table, headline
from detection.coco.evaluation_report.panels import Figure, Region, label_crop, side_by_side
from detection.coco.evaluation_report.pictures import Encoded, PictureSource, Wanted, encode_pictures
from detection.coco.marks import OBJECT_STATUSES, STATUSES
from detection.drawing import text_color
from detection.pages.render import render_page
from detection.tag_places import Rectangle

MOST_BYTES = 5_000_000

_TEMPLATE = "report.html.j2"
_SCRIPTS = ("tables.js", "curves.js")
_SLACK = 20_000  # bytes
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


class _Stored(NamedTuple):
    """A picture and its place, pixels of the image."""

    webp: bytes
    region: Region


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

    Pictures, the most interesting first, are left out where the file would be greater
    than MOST_BYTES; the page says how many.

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
    content = _content(analysis, names) | {"title": title, "facts": facts or {}, "verdict": _banner(verdict)}
    galleries = _galleries(analysis, names)
    # Without pictures first: what the rest takes is what they cannot have.
    page = _render(analysis, content, {name: [] for name in galleries}, {}, _pictures_note(None))
    if pictures:
        wanted = list(_by_interest(galleries.values()))
        encoded = _encode(wanted, pictures, MOST_BYTES - _SLACK - len(page.encode()))
        shown = {id(wanted[position]) for position in encoded.shown}
        kept = {name: [figure for figure in figures if id(figure) in shown] for name, figures in galleries.items()}
        page = _render(analysis, content, kept, _stored(wanted, encoded), _pictures_note(encoded))
    write_text(path, page)


def _content(analysis: Analysis, names: Mapping[int, str]) -> dict[str, Any]:
    """All but the pictures."""
    calibration, confusion = analysis.calibration, analysis.confusion
    curves = charts.mean_curves(analysis)
    return {
        "analysis": analysis,
        "headline": headline(analysis),
        "sample_note": _sample_note(analysis),
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
        "method": _method(analysis),
        "plot_width": charts.WIDTH,
        "plot_height": charts.HEIGHT,
        "statuses": STATUSES,
        "object_statuses": OBJECT_STATUSES,
    }


def _render(
    analysis: Analysis,
    content: Mapping[str, Any],
    galleries: Mapping[str, Sequence[Figure]],
    pictures: Mapping[str, _Stored],
    note: str,
) -> str:
    examples = {words.capitalize(): galleries[name] for name, words in ERROR_TYPES.items() if galleries.get(name)}
    return render_page(
        __package__,
        _TEMPLATE,
        scripts=_SCRIPTS,
        filters={"pixels": _pixels, "rectangle": _rectangle, "text_color": text_color, "dashes": _dashes},
        sections=_sections(analysis, bool(content["mean_curves"]), bool(examples)),
        galleries=galleries,
        examples=examples,
        pictures=pictures,
        pictures_note=note,
        **content,
    )


def _sections(analysis: Analysis, curves: bool, examples: bool) -> dict[str, str]:
    """Id -> heading of those that have something to tell, in their order."""
    told = {
        "figures": ("Figures", bool(analysis.figures)),
        "errors": ("Types of errors", bool(analysis.errors)),
        "sizes": ("Sizes of objects", bool(analysis.sizes)),
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
        return _Banner("good", "Blessed: all thresholds are met.", verdict.reasons)
    return _Banner("bad", "Not blessed.", verdict.reasons)


def _sample_note(analysis: Analysis) -> str:
    sample = analysis.sample
    if sample.images >= sample.of:
        return ""
    return (
        f"The figures are of all {sample.of:,} images. Intervals and everything below the figures are of a random "
        f"sample of {sample.images:,} images (seed {sample.seed})."
    )


def _method(analysis: Analysis) -> list[str]:
    what = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}.get(analysis.iou_type, analysis.iou_type)
    lines = [f"COCO's metrics for {what}, as pycocotools computes them, on {analysis.sample.of:,} images."]
    lines.append(
        "AP is average precision, AR average recall, over the IoU thresholds or at that which the name ends in, "
        "such as AP50; s, m and l stand for small, medium and large objects, the number behind AR for the "
        "detections counted an image."
    )
    if analysis.intervals:
        lines.append(
            f"Intervals hold {100 * analysis.confidence:g} % of {analysis.replicates:,} bootstrap replicates, "
            "each of as many images drawn with replacement. Both models see the same images in each."
        )
    if analysis.errors:
        lines.append("Types of errors are TIDE's (Bolya et al., ECCV 2020).")
    return lines


def _galleries(analysis: Analysis, names: Mapping[int, str]) -> dict[str, list[Figure]]:
    found = {_WORST: analysis.worst, **analysis.examples}
    figures = {name: [side_by_side(image, names) for image in images] for name, images in found.items()}
    return figures | {_LABELS: [label_crop(error, at, names) for at, error in enumerate(analysis.label_errors)]}


def _by_interest(galleries: Iterable[Sequence[Figure]]) -> Iterable[Figure]:
    """The first of each gallery, then the second of each, and so on."""
    return (figure for rank in zip_longest(*galleries) for figure in rank if figure is not None)


def _encode(figures: Sequence[Figure], source: PictureSource, budget: int) -> Encoded:
    wanted = [Wanted(figure.key, figure.image_id, figure.region, figure.markup) for figure in figures]
    return encode_pictures(wanted, source, budget=budget)


def _stored(figures: Iterable[Figure], encoded: Encoded) -> dict[str, _Stored]:
    """Whole images fill what their figures see; parts lie where they were cut out."""
    pictures = encoded.pictures
    return {
        figure.key: _Stored(pictures[figure.key].webp, pictures[figure.key].region if figure.region else figure.view)
        for figure in figures
        if figure.key in pictures
    }


def _pictures_note(encoded: Encoded | None) -> str:
    if encoded is None:
        return "This report has no pictures: the evaluation was given no image files."
    notes = []
    if encoded.unreadable:
        notes.append(f"{encoded.unreadable:,} pictures are not shown: their images could not be read.")
    if encoded.left_out:
        notes.append(f"{encoded.left_out:,} pictures, the least interesting, were left out to keep this file small.")
    return " ".join(notes)


def _pixels(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _rectangle(rectangle: Rectangle) -> Markup:
    left, top, right, bottom = rectangle
    values = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return Markup(" ".join(f'{name}="{_pixels(value)}"' for name, value in values.items()))


def _dashes(dash: Sequence[float]) -> str:
    """In pixels: lines are two wide."""
    return " ".join(f"{2 * length:g}" for length in dash)
