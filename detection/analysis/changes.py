"""The types that a comparison of two models, a and b, consists of."""

from dataclasses import dataclass

from detection.analysis.findings import ErrorType, ImageFindings, Interval, Sample


@dataclass(frozen=True)
class Change:
    """A figure of both models, -1 where undefined.

    difference: b minus a; None where one is undefined.
    interval: of the difference on the sample; None where there is no sample, no
        replicate, or nothing to measure.
    """

    a: float
    b: float
    difference: float | None
    interval: Interval | None


@dataclass(frozen=True)
class CategoryChange:
    """One category.

    objects: ground truth without crowds and ignored ones; None where it is not known.
    figures: name -> change; AP alone has an interval.
    """

    id: int
    name: str
    objects: int | None
    figures: dict[str, Change]


@dataclass(frozen=True)
class ErrorChange:
    """One of `ERROR_TYPES`, in both models."""

    a: ErrorType
    b: ErrorType


@dataclass(frozen=True)
class ImageChange:
    """An image on which the models differ.

    errors: how many more wrong detections and missed objects b has; negative: fewer.
    """

    errors: int
    a: ImageFindings
    b: ImageFindings


@dataclass(frozen=True)
class Comparison:
    """Models a and b on the same images.

    a, b: their names.
    sample: what was compared image by image; None: finished figures were.
    remarks: what to know of the comparison, as sentences: why there are no intervals,
        that the ground truths differ.
    confidence: of the intervals.
    replicates: behind them, 0 without.
    iou, score: at which images were compared.
    figures: name -> change, of all images.
    categories: by ascending id.
    errors: in the order of `ERROR_TYPES`; empty where they are not known of both.
    better, worse: images where b has fewer, or more, errors, first those that changed most.
    """

    iou_type: str
    a: str
    b: str
    sample: Sample | None
    remarks: list[str]
    confidence: float
    replicates: int
    iou: float
    score: float
    figures: dict[str, Change]
    categories: list[CategoryChange]
    errors: list[ErrorChange]
    better: list[ImageChange]
    worse: list[ImageChange]
