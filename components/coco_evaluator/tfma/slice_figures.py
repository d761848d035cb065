"""What a model reaches on a slice: small, where a `CocoMetrics` with its arrays is not."""

from typing import Any, NamedTuple, Self

from detection.coco.metrics import CocoMetrics

CANDIDATE, BASELINE = "candidate", "baseline"  # a model's part in an evaluation

# Figures of a single category, each under the sub key `class_id` in TFMA's files.
CATEGORY_FIGURES = ("AP", "AP50")


class SliceFigures(NamedTuple):
    """Figures of one model on one slice.

    images: in the slice.
    figures: name -> value, -1 where undefined; see `detection.coco.metrics`.
    per_category: [{"id", "name", "AP", "AP50"}] by ascending id.
    """

    images: int
    figures: dict[str, float]
    per_category: list[dict[str, Any]]

    @classmethod
    def of(cls, metrics: CocoMetrics, *, images: int) -> Self:
        """Keeps the figures of `metrics`, and lets its arrays go."""
        return cls(images, dict(metrics.by_name), metrics.per_category)
