"""One model's detections on the images of an analysis, evaluated."""

from dataclasses import dataclass
from functools import cached_property

from detection.coco.analysis.instances import Found, Objects, found_in
from detection.coco.analysis.matching import candidate_pairs, match
from detection.coco.analysis.resampling import Resampled, Weights, resample
from detection.coco.engine import Arrays, BatchEvaluation, MatchingEngine
from detection.coco.engine.geometry import Geometry
from detection.coco.metrics import metrics_from_arrays
from detection.coco.settings import Settings


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What is made of it is made once, when it is first asked for.

    objects: the ground truth.
    found: the detections.
    settings: of the evaluation.
    """

    objects: Objects
    found: Found
    settings: Settings

    @cached_property
    def evaluation(self) -> BatchEvaluation:
        """The engine's."""
        objects = self.objects
        return BatchEvaluation(
            objects.images, objects.annotations, objects.categories, self.found.entries, self.settings
        )

    @cached_property
    def arrays(self) -> Arrays:
        """Precision, recall and scores."""
        return self.evaluation.arrays()

    @cached_property
    def geometry(self) -> Geometry:
        """Shapes and overlaps."""
        return self.evaluation.geometry()

    @cached_property
    def figures(self) -> dict[str, float]:
        """The figures by name."""
        return metrics_from_arrays(self.arrays, self.objects.categories, self.settings).figures

    def resampled(self, weights: Weights) -> Resampled:
        """The figures under weights [B, I] of the images."""
        pairs = candidate_pairs(self.objects, self.found, self.geometry.overlaps, self.settings)
        matches = match(self.objects, self.found, self.geometry.areas, pairs, self.settings)
        return resample(self.objects, self.found, matches, weights, self.settings)

    def in_images_of(self, part: Objects) -> "Evaluated":
        """The detections in the images of a part of the ground truth."""
        if len(part.images) == len(self.objects.images):
            return self
        return Evaluated(part, found_in(self.found, self.objects, part), self.settings)


def figures_of(objects: Objects, found: Found, settings: Settings) -> dict[str, float]:
    """The figures alone, in as little memory as they take."""
    engine = MatchingEngine(objects.categories, settings)
    engine.add(objects.images, objects.annotations, found.entries, where="ground truth")
    return metrics_from_arrays(engine.arrays(), objects.categories, settings).figures
