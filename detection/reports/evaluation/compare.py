"""Compares two models from results files or folders of evaluations, and writes a report on one results file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import rich.table

from detection.analysis.analyse import analyse
from detection.analysis.comparison import CategoryChange, Comparison, compare_detections
from detection.analysis.folders import compare_evaluations
from detection.coco.evaluation import doubts, read_results, require_ground_truth
from detection.coco.params import make_params
from detection.reports.evaluation.comparison_page import category_change_table, change_table, write_comparison_page
from detection.reports.evaluation.metric_tables import FIRST
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.pictures import pictures_in
from detection.reports.evaluation.summary import change_headline, remarks
from detection.reports.html.table import rich_table
from detection.storage.files import is_dir
from detection.storage.json_files import read_json
from detection.storage.paths import name_of
from schemas.errors import ConfigError

_MOST_CATEGORIES = 10  # max categories in the terminal


def check_flags(
    *, a: str, b: str, ground_truth: str | None, images: str | None, iou_type: str | None, output: str | None
) -> None:
    """Refuses contradictory flags.

    Raises:
        ConfigError: a file and a folder; files without ground truth; folders with an IoU type;
            images without a page that shows them.
    """
    folders = is_dir(a), is_dir(b)
    if folders[0] != folders[1]:
        folder, file = (a, b) if folders[0] else (b, a)
        raise ConfigError(
            f"{folder} is a folder, {file} is not. Compare two results files, or two folders of evaluations."
        )
    if not folders[0] and ground_truth is None:
        raise ConfigError("results files are compared on their ground truth: pass it with --ground-truth.")
    if folders[0] and iou_type is not None:
        raise ConfigError("--iou-type is for results files; folders of evaluations contain it. Remove it.")
    if images is not None and (output is None or ground_truth is None):
        raise ConfigError("--images is for the page's pictures: pass --output and --ground-truth, too.")


def load_ground_truth(path: str) -> Any:
    """The content of an annotation file, with all that images have.

    Raises:
        DataError: the file cannot be read, or is invalid.
    """
    tree = read_json(path)
    require_ground_truth(tree, where=path)
    return tree


def compare(a: str, b: str, *, ground_truth: Any, iou_type: str | None) -> list[Comparison]:
    """Compares two results files, or two folders of evaluations by each common IoU type.

    Args:
        a: file or folder.
        b: file or folder of the other model.
        ground_truth: COCO tree of both; None: compare only the metrics of folders.
        iou_type: IoU type of results files; default `bbox`.

    Raises:
        DataError: a file that cannot be read or compared.
    """
    if is_dir(a):
        return compare_evaluations(a, b, ground_truth=ground_truth)
    kind = iou_type or "bbox"
    first, second = (
        read_results(
            path, kind, images=ground_truth["images"], categories=ground_truth["categories"], where="the ground truth"
        )
        for path in (a, b)
    )
    return [compare_detections(ground_truth, first, second, params=make_params(kind), names=(a, b))]


def write_page(path: str, comparisons: Sequence[Comparison], *, ground_truth: Any, images: str | None) -> None:
    """Writes the comparisons as a page.

    Args:
        path: path of the HTML file.
        comparisons: comparison by each IoU type.
        ground_truth: COCO tree with the images' file names.
        images: folder of the images; None: no pictures.

    Raises:
        DataError: a missing folder, or a file that cannot be written.
    """
    title = f"{name_of(comparisons[0].b)} against {name_of(comparisons[0].a)}"
    pictures = None if images is None else pictures_in(images, ground_truth["images"])
    write_comparison_page(path, comparisons, title=title, pictures=pictures)


def write_file_report(
    path: str, *, ground_truth: str, detections: str, params: dict[str, Any], images: str | None
) -> None:
    """Analyses the detections in a results file and writes the evaluation report.

    Args:
        path: path of the HTML file.
        ground_truth: COCO annotation file.
        detections: COCO results file.
        params: keyword arguments of `make_params`.
        images: folder of the images; None: no pictures.

    Raises:
        ConfigError: invalid params.
        DataError: a file or folder that cannot be read, or written.
    """
    chosen = make_params(**params)
    tree = load_ground_truth(ground_truth)
    categories = tree["categories"] if chosen.use_cats else ()
    results = read_results(
        detections, chosen.iou_type, images=tree["images"], categories=categories, where=ground_truth
    )
    write_evaluation_report(
        path,
        analyse(tree, results, params=chosen),
        title=f"{name_of(detections)} on {name_of(ground_truth)}",
        facts={"detections": detections, "ground truth": ground_truth},
        pictures=None if images is None else pictures_in(images, tree["images"]),
        doubts=list(doubts(tree, results, chosen)),
    )


def comparison_tables(comparison: Comparison) -> Iterator[rich.table.Table]:
    """Yields tables for a terminal: the metrics, and the categories whose AP changed most."""
    yield rich_table(change_table(comparison), title=f"COCO metrics, {comparison.iou_type}")
    changed = _most_changed(comparison.categories)
    if len(comparison.categories) > 1 and changed:
        table = category_change_table(replace(comparison, categories=changed))
        yield rich_table(table, title=f"Categories whose {FIRST} changed most")


def comparison_lines(comparison: Comparison) -> list[str]:
    """Returns the lines below the tables."""
    return [change_headline(comparison), *remarks(comparison)]


def _most_changed(categories: list[CategoryChange]) -> list[CategoryChange]:
    changes = [(abs(one.metrics[FIRST].difference or 0.0), one) for one in categories if FIRST in one.metrics]
    changed = sorted((pair for pair in changes if pair[0]), key=lambda pair: -pair[0])
    return [replace(one, metrics={FIRST: one.metrics[FIRST]}) for _, one in changed[:_MOST_CATEGORIES]]
