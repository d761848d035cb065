"""Our metrics in TFX's own Evaluator: `module_path="components.coco_evaluator.stock_evaluator"`.

TFMA would feed serialized records to the model, whose signature takes encoded images;
so its step of prediction is replaced, the rest is TFMA's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow_model_analysis as tfma
from apache_beam.utils import shared
from tensorflow_model_analysis.extractors import unbatch_extractor

from components.coco_evaluator.tfma.eval_config import check_our_metrics
from components.coco_evaluator.tfma.metric_options import METRICS_CLASS, METRICS_MODULE
from components.coco_evaluator.tfma.slicing import feature_values
from detection.inference.formats.saved_model import SavedModelDetector
from detection.input_pipeline.evaluation_records import parse_record
from schemas.serving import ENCODED_SIGNATURE

_BATCH_SIZE = 8  # images a call of the model, where ModelSpec.inference_batch_size says nothing
_OVERALL = tfma.SlicingSpec()


def stock_eval_config(
    categories: Sequence[int | Mapping[str, Any]],
    *,
    slicing: Iterable[Sequence[str]] = (),
    absolute: Mapping[str, float] | None = None,
    improvement: Mapping[str, float] | None = None,
    batch_size: int = _BATCH_SIZE,
    **options: Any,
) -> tfma.EvalConfig:
    """An `EvalConfig` for `tfx.components.Evaluator`.

    Args:
        categories: of the data set: ids, or COCO's `categories` entries.
        slicing: features to slice by, each entry those of one slicing, such as
            `[("brightness",), ("image/object/class/text",)]`.
        absolute: metric -> min value, over all images.
        improvement: metric -> min change from the baseline, over all images.
        batch_size: images a call of the model.
        **options: further ones of `MetricOptions`.

    Raises:
        ConfigError: an unknown option, or a value of the wrong kind.
    """
    config = json.dumps({"categories": [_shorten(category) for category in categories], **options})
    metrics = tfma.MetricConfig(class_name=METRICS_CLASS, module=METRICS_MODULE, config=config)
    spec = tfma.MetricsSpec(metrics=[metrics, tfma.MetricConfig(class_name="ExampleCount")])
    for name, value in (absolute or {}).items():
        _add_threshold(spec, name, value_threshold=tfma.GenericValueThreshold(lower_bound={"value": value}))
    for name, value in (improvement or {}).items():
        change = tfma.GenericChangeThreshold(absolute={"value": value}, direction=tfma.MetricDirection.HIGHER_IS_BETTER)
        _add_threshold(spec, name, change_threshold=change)
    made = tfma.EvalConfig(
        model_specs=[tfma.ModelSpec(signature_name=ENCODED_SIGNATURE, inference_batch_size=batch_size)],
        slicing_specs=[_OVERALL, *(tfma.SlicingSpec(feature_keys=keys) for keys in slicing)],
        metrics_specs=[spec],
    )
    check_our_metrics(made, "stock_eval_config")
    return made


def custom_extractors(
    eval_shared_model: Any, eval_config: tfma.EvalConfig, tensor_adapter_config: Any
) -> list[tfma.extractors.Extractor]:
    """TFMA's extractors with our prediction and our derived features; TFX calls it by this name."""
    models = eval_shared_model if isinstance(eval_shared_model, list) else [eval_shared_model]
    extractors = tfma.default_extractors(
        eval_shared_model=eval_shared_model,
        eval_config=eval_config,
        tensor_adapter_config=tensor_adapter_config,
        custom_predict_extractor=_extractor("ExtractPredictions", beam.ParDo(_Predict(models, eval_config))),
    )
    asked = {key for spec in eval_config.slicing_specs for key in (*spec.feature_keys, *spec.feature_values)}
    derive = _extractor("DeriveFeatures", beam.Map(_with_derived, keys=sorted(asked)))
    position = [extractor.stage_name for extractor in extractors].index(unbatch_extractor.UNBATCH_EXTRACTOR_STAGE_NAME)
    return [*extractors[: position + 1], derive, *extractors[position + 1 :]]


class _Predict(beam.DoFn):
    """Adds the signature's outputs to a batch, under the model's name where there are several.

    As in our own evaluator the model always sees batches of one size, so that it
    answers to the last bit the same.
    """

    def __init__(self, models: Sequence[Any], config: tfma.EvalConfig) -> None:
        self._sizes = {spec.name: spec.inference_batch_size or _BATCH_SIZE for spec in config.model_specs}
        self._models = {model.model_name: (model.model_path, shared.Shared()) for model in models}

    def setup(self) -> None:
        self._detectors = {
            name: loaded.acquire(
                partial(SavedModelDetector, folder=folder, batch_size=self._sizes.get(name, _BATCH_SIZE))
            )
            for name, (folder, loaded) in self._models.items()
        }

    def process(self, extracts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        images = [parse_record(record).image for record in np.ravel(extracts[tfma.INPUT_KEY])]
        outputs = {name: detector.outputs(images) for name, detector in self._detectors.items()}
        yield {**extracts, tfma.PREDICTIONS_KEY: outputs if len(outputs) > 1 else next(iter(outputs.values()))}


def _with_derived(extracts: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """One image's extracts, with the features to slice by that are not in its record."""
    missing = [key for key in keys if key not in extracts[tfma.FEATURES_KEY]]
    if not missing:
        return extracts
    record = parse_record(np.ravel(extracts[tfma.INPUT_KEY])[0])
    derived = {key: values for key in missing if (values := feature_values(record, key)) is not None}
    return {**extracts, tfma.FEATURES_KEY: {**extracts[tfma.FEATURES_KEY], **derived}}


def _extractor(name: str, step: beam.PTransform) -> tfma.extractors.Extractor:
    return tfma.extractors.Extractor(stage_name=name, ptransform=step)


def _shorten(category: int | Mapping[str, Any]) -> int | dict[str, Any]:
    """Keeps the fields of a category that the metric needs: the id, and LVIS' frequency."""
    if not isinstance(category, Mapping):
        return category
    kept = {key: category[key] for key in ("id", "frequency") if key in category}
    return kept if len(kept) > 1 else int(category["id"])


def _add_threshold(spec: tfma.MetricsSpec, name: str, **threshold: Any) -> None:
    spec.per_slice_thresholds[name].thresholds.add(
        slicing_specs=[_OVERALL], threshold=tfma.MetricThreshold(**threshold)
    )
