"""COCO's metrics as a TFMA metric: what an `EvalConfig` names, for TFX's own Evaluator and ours.

metrics { class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics"
          config: '{"categories": [1, 2, 3]}' }
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from tensorflow_model_analysis import constants
from tensorflow_model_analysis.metrics import metric_types

from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch, join_batches, map_categories
from components.coco_evaluator.tfma.eval_config import check_our_metrics
from components.coco_evaluator.tfma.metric_options import METRICS_CLASS, MetricOptions, read_options
from components.coco_evaluator.tfma.slice_metrics import metric_keys
from detection.coco import MetricsAccumulator
from detection.coco.metrics import metric_names
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.inference.results import results_from_outputs
from detection.types import EncodedImage
from schemas import features, serving
from schemas.errors import ConfigError, DataError
from schemas.metrics import IouType

_OUTPUTS = (serving.BOXES, serving.SCORES, serving.CLASSES, serving.COUNT)
_OPTIONAL = (serving.MASKS, serving.KEYPOINTS)
_PENDING = 500  # images matched at a time
_WHERE = f"categories of {METRICS_CLASS}"


class CocoMetrics(metric_types.Metric):
    """COCO metrics of boxes, masks or keypoints, equal to pycocotools' to the last bit, whatever the bundling.

    Under their names as metrics, `AP` and `AP50` also of each category under the sub
    key `class_id`, the data set's category id; NaN where undefined.  It takes the
    outputs of the signature of `schemas.serving`, and of the record
    `schemas.features.COCO`, `HEIGHT` and `WIDTH`.
    """

    def __init__(self, name: str = METRICS_CLASS, **options: Any) -> None:
        """Creates the metric.

        Args:
            name: name of the metric object; no metric has it.
            options: fields of `MetricOptions` by name.

        Raises:
            ConfigError: an unknown option, or a value of the wrong kind.
        """
        read_options(options, where=METRICS_CLASS)
        super().__init__(_computations, name=name, **options)


def _computations(
    name: str, eval_config: Any = None, model_names: Sequence[str] | None = None, **options: Any
) -> list[metric_types.MetricComputation]:
    """One for each model; each gives all metrics, so that an entry with `binarize` adds nothing."""
    parsed = read_options(options, where=METRICS_CLASS)
    if eval_config is not None:
        check_our_metrics(eval_config, "EvalConfig")
    if not parsed.categories:
        raise ConfigError(
            f"{METRICS_CLASS}: no categories. Give the data set's category ids, such as "
            "config: '{\"categories\": [1, 2, 3]}'."
        )
    baselines = {spec.name for spec in eval_config.model_specs if spec.is_baseline} if eval_config else set()
    return [_computation(parsed, model, known_only=model in baselines) for model in model_names or [""]]


def _computation(options: MetricOptions, model: str, *, known_only: bool) -> metric_types.MetricComputation:
    per_category = [{"id": entry["id"], "AP": 0.0, "AP50": 0.0} for entry in options.category_entries()]
    metrics = dict.fromkeys(metric_names(options.params()), 0.0)
    wanted = (features.COCO, features.HEIGHT, features.WIDTH)
    return metric_types.MetricComputation(
        keys=list(metric_keys(metrics, per_category if options.use_cats else [], model)),
        preprocessors=[
            metric_types.StandardMetricInputsPreprocessor(
                include_filter={constants.FEATURES_KEY: {key: {} for key in wanted}, constants.PREDICTIONS_KEY: {}},
                include_default_inputs=False,
            )
        ],
        combiner=_Match(options, model, known_only=known_only),
    )


class _State(NamedTuple):
    """Images that were matched, and some that wait: matching many at once is quicker."""

    accumulator: MetricsAccumulator
    pending: list[DetectedBatch]


class _Match(beam.CombineFn):
    """TFMA's inputs of one image each to the metrics by metric key.

    Args:
        options: options of the metrics.
        model: name of the model whose predictions are evaluated.
        known_only: drops detections of unknown categories, as of a model of an earlier state of the data set; else
            they are an error.
    """

    def __init__(self, options: MetricOptions, model: str, *, known_only: bool) -> None:
        self._options = options
        self._model = model
        self._known_only = known_only

    def create_accumulator(self) -> _State:
        categories = self._options.category_entries()
        return _State(MetricsAccumulator(categories, self._options.params(), where=_WHERE), [])

    def add_input(self, state: _State, element: metric_types.StandardMetricInputs) -> _State:
        state.pending.append(_read_detected(element, self._model, self._options.iou_type))
        return self._match_pending(state) if len(state.pending) >= _PENDING else state

    def merge_accumulators(self, states: Iterable[_State]) -> _State:
        merged = self.create_accumulator()
        for state in states:
            merged.accumulator.merge(self._match_pending(state).accumulator)
        return merged

    def compact(self, state: _State) -> _State:
        return self._match_pending(state)

    def extract_output(self, state: _State) -> dict[metric_types.MetricKey, float]:
        metrics = self._match_pending(state).accumulator.result()
        return metric_keys(metrics.by_name, metrics.per_category, self._model)

    def _match_pending(self, state: _State) -> _State:
        if state.pending:
            batch = join_batches(state.pending)
            if self._known_only:
                batch = map_categories(batch, {entry["id"]: entry["id"] for entry in self._options.category_entries()})
            state.accumulator.add(
                batch.images,
                batch.annotations,
                batch.detections,
                where="ground truth of the examples",
                where_detections="detections of the model",
            )
            state.pending.clear()
        return state


def _read_detected(element: metric_types.StandardMetricInputs, model: str, iou_type: IouType) -> DetectedBatch:
    """One image with its objects, and the model's detections in its pixels."""
    entry, annotations = unpack_entries(_feature(element, features.COCO))
    image = EncodedImage(
        image_id=entry["id"],
        name="",
        encoded=b"",
        height=int(_feature(element, features.HEIGHT)),
        width=int(_feature(element, features.WIDTH)),
    )
    results = results_from_outputs(_outputs(element, model), [image], with_masks=iou_type == "segm")[0]
    where = f"{METRICS_CLASS}: the model {model!r}" if model else f"{METRICS_CLASS}: the model"
    return DetectedBatch([entry], annotations, results.compared_by((iou_type,), where=where), [ALL_IMAGES])


def _feature(element: metric_types.StandardMetricInputs, key: str) -> Any:
    values = np.asarray(element.features.get(key, ())).reshape(-1)
    if len(values) != 1:
        raise DataError(f"{METRICS_CLASS}: a record lacks {key}. Write the examples with CocoExampleGen.")
    return values[0]


def _outputs(element: metric_types.StandardMetricInputs, model: str) -> dict[str, Any]:
    """The signature's outputs for one image, as a batch of one."""
    predictions = element.predictions
    if model and isinstance(predictions, Mapping):
        predictions = predictions.get(model, predictions)
    missing = [name for name in _OUTPUTS if not (isinstance(predictions, Mapping) and name in predictions)]
    if missing:
        raise DataError(
            f"{METRICS_CLASS}: the model's outputs lack {', '.join(missing)}. "
            f"Export it with Cocoflow, and name the signature {serving.ENCODED_SIGNATURE!r} in model_specs."
        )
    names = [name for name in (*_OUTPUTS, *_OPTIONAL) if name in predictions]
    outputs = {name: np.asarray(predictions[name])[None] for name in names}
    return outputs | {serving.COUNT: outputs[serving.COUNT].reshape(1)}
