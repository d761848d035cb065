"""Fits score curves of a model on a split (`export --calibrate`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.analysis.evaluated import Evaluated, evaluate_models
from detection.coco.engine.batch import IGNORED, TP
from detection.coco.metrics import metrics_from_arrays
from detection.coco.params import make_params
from detection.datasets.examples import OpenSplit, require_categories
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.score_curves import MIN_SAMPLES, ScoreCurve, ScoreCurves, calibrate_scores, fit_curves
from detection.inference.formats.serving_module import ServingModule
from detection.inference.restore import TrainedDetector
from detection.inference.results import joined
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.record_reader import RecordReader
from detection.storage.tfrecord import find_shards
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError

_BATCH = 8
_IOU = 0.5  # min IoU of a true positive


class ScoreCalibration(NamedTuple):
    """Images for the calibration of scores.

    data: folder of Examples, or of another data set.
    split: name of the split.
    """

    data: str
    split: str


def fit_score_curves(
    trained: TrainedDetector, calibration: ScoreCalibration, *, model: str, open_split: OpenSplit
) -> tuple[ScoreCurves, list[str]]:
    """Detects objects in the images of a split and fits curves to the detections that match its ground truth.

    Args:
        trained: the exported detector.
        calibration: images.
        model: name of the model in error messages.
        open_split: opens the split.

    Returns:
        Curves, and notes for the user: calibration error and APs before and after.

    Raises:
        DataError: the data cannot be read, lacks categories of the model or has no annotations in the split, or
            the model has no detections.
    """
    data, split = calibration

    def check(categories: list[dict[str, Any]]) -> None:
        require_categories(trained.categories, categories, model=model, data=data)

    with open_split(data, split=split, check=check) as dataset:
        check(dataset.categories)
        evaluated = _evaluate(trained, find_shards(dataset.records), dataset.categories, calibration)
    curves = fit_and_measure(evaluated, [category["id"] for category in trained.categories], split)
    return curves, _notes(curves, evaluated, trained.categories)


def _evaluate(
    trained: TrainedDetector, shards: list[str], categories: list[dict[str, Any]], calibration: ScoreCalibration
) -> Evaluated:
    """Matches the detections of all images with their ground truth."""
    reader = RecordReader(shards)
    where = f"{calibration.data}, split {calibration.split}"
    images, annotations, results = [], [], []
    for record in map(parse_record, map(reader.read, range(len(reader)))):
        images.append(record.entry)
        annotations += record.annotations
    if not annotations:
        raise DataError(
            f"{where}: no annotations for the calibration of scores. Pass another split with --calibrate-split."
        )
    detector = SignatureDetector(ServingModule(trained.detector, trained.categories).serve_encoded, batch_size=_BATCH)
    for start in range(0, len(reader), _BATCH):
        encoded = [parse_record(reader.read(at)).image for at in range(start, min(start + _BATCH, len(reader)))]
        results += detector.detect(encoded, with_masks=False)
    rows = joined(results).rows
    if not len(rows):
        raise DataError(
            f"{where}: the model has no detections on its {len(images)} images, so there are no scores to "
            "calibrate. Pass images like those of the training, or lower model.postprocess.score_threshold."
        )
    ground_truth = {"images": images, "annotations": annotations, "categories": categories}
    return evaluate_models(ground_truth, [(where, rows)], make_params(), _options(len(images)))[0].sampled


def _options(images: int) -> AnalysisConfig:
    return AnalysisConfig(images=images, replicates=0, iou=_IOU)


def fit_and_measure(evaluated: Evaluated, category_ids: Sequence[int], split: str) -> ScoreCurves:
    """Fits curves to evaluated detections, excluding those that COCO ignores, such as crowds.

    The error after calibration is cross-fitted: the curves of each half of the images calibrate the other half.

    Args:
        evaluated: detections as rows, at least one.
        category_ids: category ids in the order of the network's classes.
        split: name of the split.
    """
    detections, images = evaluated.detections, len(evaluated.ground_truth.images)
    scores, classes = detections.scores, _classes(evaluated, category_ids)
    statuses = evaluated.diagnosis(_options(images)).detections

    def fit(kept: npt.NDArray[np.bool_]) -> list[ScoreCurve]:
        kept = kept & (statuses != IGNORED)
        return fit_curves(scores[kept], classes[kept], statuses[kept] == TP, num_classes=len(category_ids))

    even = detections.image % 2 == 0
    by_odd, by_even = (calibrate_scores(fit(fitted_on), scores, classes) for fitted_on in (~even, even))
    cross_fitted = evaluated.with_scores(np.where(even, by_odd, by_even))
    return ScoreCurves(
        curves=tuple(fit(np.ones(len(scores), bool))),
        split=split,
        images=images,
        iou=_IOU,
        error_before=_calibration_error(evaluated),
        error_after=_calibration_error(cross_fitted),
    )


def _classes(evaluated: Evaluated, category_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Returns the class indices of the detections, int64 [N]."""
    order = np.argsort(category_ids)
    ids = np.array([category["id"] for category in evaluated.ground_truth.categories])
    of_category = np.searchsorted(np.array(category_ids)[order], ids[evaluated.detections.category])
    return order[of_category]


def _calibration_error(evaluated: Evaluated) -> float:
    measured = evaluated.calibration(_options(len(evaluated.ground_truth.images)))
    assert measured is not None  # there are detections, and their scores are probabilities
    return measured.expected_error


def _notes(curves: ScoreCurves, evaluated: Evaluated, categories: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the effect of the curves, with the measured APs."""
    classes = _classes(evaluated, [category["id"] for category in categories])
    calibrated = evaluated.with_scores(calibrate_scores(curves.curves, evaluated.detections.scores, classes))
    change = float(np.abs(_category_aps(calibrated) - _category_aps(evaluated)).max())
    aps = "the AP of each category is unchanged"
    if change > 0.0:  # nearly equal scores become equal in float32
        aps = f"APs of categories change by {change:.1g} at most"
    notes = [
        f"scores calibrated on {curves.images} images of {curves.split}: expected calibration error "
        f"{curves.error_before:.4f} before, {curves.error_after:.4f} after (each half of the images with the curves of "
        f"the other half); {aps}"
    ]
    pairs = zip(curves.curves, categories, strict=True)
    named = [curve for curve, category in pairs if category.get("name", "") is not None]
    few = [curve for curve in named if curve.fitted_on != "category"]
    if few:
        instead = "uncalibrated scores" if few[0].fitted_on == "nothing" else "the curve of all categories"
        notes.append(
            f"{len(few)} of {len(named)} categories have fewer than {MIN_SAMPLES} true or false positives on these "
            f"images and use {instead}"
        )
    return notes


def _category_aps(evaluated: Evaluated) -> npt.NDArray[np.float64]:
    metrics = metrics_from_arrays(evaluated.arrays, evaluated.ground_truth.categories, evaluated.params)
    return np.array([category["AP"] for category in metrics.per_category])
