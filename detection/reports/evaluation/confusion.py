"""The confusion matrix as a heat map, and the pairs of categories that are confused most."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detection.analysis.analysis_file import Confusion
from detection.reports.box_styles import category_name
from detection.reports.evaluation.numbers import share_cell
from detection.reports.html.table import Cell, Table

MOST_CATEGORIES = 20  # of the heat map
MOST_PAIRS = 30

NO_OBJECT, NOT_FOUND = "background (FP)", "missed (FN)"


class HeatCell(NamedTuple):
    """A cell: its count `times`, the share of its row, and whether it is on the diagonal."""

    times: int
    share: float
    right: bool


class HeatMap(NamedTuple):
    """The matrix of some categories.

    columns: names; the last is NOT_FOUND.
    rows: (name, a cell a column); the last is NO_OBJECT.
    left_out: number of categories that are not among them.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatCell]]]
    left_out: int


def heat_map(confusion: Confusion, names: Mapping[int, str]) -> HeatMap:
    """The categories that are confused most, in their own order; shares are of whole rows."""
    matrix = np.asarray(confusion.matrix, np.int64)
    categories = len(confusion.category_ids)
    shown = [*_most_confused(matrix, categories), categories]
    labels = [_label(confusion, index, names) for index in shown[:-1]]
    rows = [
        (label, [_cell(matrix, row, column, categories) for column in shown])
        for label, row in zip([*labels, NO_OBJECT], shown, strict=True)
    ]
    return HeatMap([*labels, NOT_FOUND], rows, categories - len(labels))


class Pair(NamedTuple):
    """A pair of categories: ground truth of one, detected as the other `times` times, of `of` instances."""

    truth: str
    detected: str
    times: int
    of: int

    @property
    def share(self) -> float:
        """Of the ground truth, 0..1."""
        return self.times / self.of


def most_confused_pair(confusion: Confusion, names: Mapping[int, str]) -> Pair | None:
    """The pair that is confused most often; None without confusion of categories."""
    return next(iter(_pairs(confusion, names, most=1)), None)


def pair_table(confusion: Confusion, names: Mapping[int, str]) -> Table:
    """Pairs of categories by how often the first is detected as the second, then by the share."""
    rows: list[list[Cell]] = [
        [pair.truth, pair.detected, pair.times, share_cell(pair.times, pair.of, bar=True)]
        for pair in _pairs(confusion, names, most=MOST_PAIRS)
    ]
    return Table("", ("ground truth", "detected as", "count", "share of its ground truth"), rows)


def _pairs(confusion: Confusion, names: Mapping[int, str], *, most: int) -> list[Pair]:
    matrix = np.asarray(confusion.matrix, np.int64)
    categories = len(confusion.category_ids)
    between = _off_diagonal(matrix, categories)
    shares = between / np.maximum(matrix[:categories].sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-shares.ravel(), -between.ravel()))[:most]
    return [
        Pair(
            _label(confusion, row, names),
            _label(confusion, column, names),
            int(matrix[row, column]),
            int(matrix[row].sum()),
        )
        for row, column in (divmod(int(index), categories) for index in order if between.flat[index])
    ]


def _most_confused(matrix: npt.NDArray[np.int64], categories: int) -> list[int]:
    between = _off_diagonal(matrix, categories)
    confused = between.sum(axis=0) + between.sum(axis=1)
    objects = matrix[:categories].sum(axis=1)
    order = np.lexsort((np.arange(categories), -objects, -confused))
    return sorted(order[:MOST_CATEGORIES].tolist())


def _off_diagonal(matrix: npt.NDArray[np.int64], categories: int) -> npt.NDArray[np.int64]:
    between = matrix[:categories, :categories].copy()
    np.fill_diagonal(between, 0)
    return between


def _cell(matrix: npt.NDArray[np.int64], row: int, column: int, categories: int) -> HeatCell:
    count, together = int(matrix[row, column]), int(matrix[row].sum())
    return HeatCell(count, count / together if together else 0.0, row == column and row < categories)


def _label(confusion: Confusion, index: int, names: Mapping[int, str]) -> str:
    return category_name(confusion.category_ids[index], names)
