"""Models' detections on the images of an analysis, evaluated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from detection.analysis.instances import Found, Objects, found_in, objects_of_images, read_found, read_objects
from detection.analysis.matching import candidate_pairs, match
from detection.analysis.options import AnalysisOptions
from detection.analysis.resampling import Resampled, Weights, resample
from detection.analysis.sampling import sample_ids
from detection.coco.engine import Arrays, MatchingEngine
from detection.coco.engine.batch import BatchEvaluation, Diagnosis, Geometry
from detection.coco.engine.streaming import require_analysis
from detection.coco.metrics import metrics_from_arrays
from detection.coco.params import Params
from detection.datasets.entries import Entry, Rows
from schemas.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What is made of it is made once, when it is first asked for.

    objects: the ground truth.
    found: the detections.
    params: of the evaluation.
    """

    objects: Objects
    found: Found
    params: Params

    @cached_property
    def evaluation(self) -> BatchEvaluation:
        """The engine's."""
        objects = self.objects
        return BatchEvaluation(objects.sound, objects.annotations, objects.categories, self.found.entries, self.params)

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
        return metrics_from_arrays(self.arrays, self.objects.categories, self.params).by_name

    def diagnosis(self, options: AnalysisOptions) -> Diagnosis:
        """What became of each detection and object."""
        return self.evaluation.diagnose(iou=options.iou, score=options.score)

    def resampled(self, weights: Weights) -> Resampled:
        """The figures under weights [B, I] of the images."""
        pairs = candidate_pairs(self.objects, self.found, self.geometry.overlaps, self.params)
        matches = match(self.objects, self.found, self.geometry.areas, pairs, self.params)
        return resample(self.objects, self.found, matches, weights, self.params)


class Model(NamedTuple):
    """One model's detections.

    figures: of all images.
    sampled: those in the images that are analysed.
    """

    figures: dict[str, float]
    sampled: Evaluated


def evaluate_models(
    ground_truth: Mapping[str, Any],
    detections: Sequence[tuple[str, Sequence[Entry] | Rows]],
    params: Params,
    options: AnalysisOptions,
) -> list[Model]:
    """Reads what is given, checks it, and takes the same sample of the images for all models.

    Args:
        ground_truth: COCO tree.
        detections: of each model how errors name it, and its COCO results or rows.
        params: of the evaluation.
        options: of the analysis.

    Raises:
        ConfigError: params or options that do not fit.
        DataError: see `detection.coco.validation.checks`; more categories than an analysis has memory for.
    """
    _check(params, options)
    require_analysis(len(ground_truth["categories"]), params, models=len(detections), replicates=options.replicates)
    whole = read_objects(ground_truth, params, where="ground truth")
    ids = [image["id"] for image in whole.images]
    part = objects_of_images(whole, sample_ids(ids, options.images, options.seed), params)
    models = []
    for where, entries in detections:
        found = read_found(entries, whole, params, where=where)
        if len(part.images) == len(whole.images):
            evaluated = Evaluated(whole, found, params)
            models.append(Model(evaluated.figures, evaluated))
        else:
            sampled = Evaluated(part, found_in(found, whole, part), params)
            models.append(Model(_figures(whole, found, params), sampled))
    return models


def _check(params: Params, options: AnalysisOptions) -> None:
    if not params.use_cats:
        raise ConfigError("use_cats: an analysis tells categories apart; evaluate without it only.")
    if not any(abs(threshold - options.iou) < 1e-9 for threshold in params.iou_thresholds):
        known = ", ".join(f"{threshold:g}" for threshold in params.iou_thresholds)
        raise ConfigError(f"iou {options.iou}: the evaluation's IoU thresholds are {known}; choose one of them.")


def _figures(objects: Objects, found: Found, params: Params) -> dict[str, float]:
    """Of all images, which may be too many to keep what an `Evaluated` keeps of them."""
    engine = MatchingEngine(objects.categories, params)
    engine.add(objects.sound, objects.annotations, found.entries, where="ground truth")
    return metrics_from_arrays(engine.arrays(), objects.categories, params).by_name
