"""Metrics of a model on a slice, under TFMA's keys, and in the files that TensorFlow Model Analysis reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.summary import metrics_to_json
from detection.storage.atomic import write_bytes, write_text
from detection.storage.paths import join
from schemas.metrics import metrics_of_report

Value: TypeAlias = str | int | float

# TFMA's SliceKeyType: (feature, value) pairs by ascending feature; empty: all images.
SliceKey: TypeAlias = tuple[tuple[str, Value], ...]

OVERALL: SliceKey = ()

CANDIDATE, BASELINE = "candidate", "baseline"  # role of a model in an evaluation

# Metrics of a single category, each under the sub key `class_id` in TFMA's files.
CATEGORY_METRICS = ("AP", "AP50")

NAN = float("nan")


def describe(key: SliceKey) -> str:
    """Describes a slice.

    >>> describe((("brightness", "dark"), ("image/width", 640)))
    'brightness = dark, image/width = 640'
    >>> describe(())
    'all images'
    """
    return ", ".join(f"{feature} = {value}" for feature, value in key) or "all images"


class SliceMetrics(NamedTuple):
    """Metrics of one model on one slice.

    images: in the slice.
    metrics: name -> value, -1 where undefined; of the first IoU type such as `AP`, of others `segm/AP`.
    per_category: [{"id", "name", "AP", "AP50"}] by ascending id, with the same names.
    """

    images: int
    metrics: dict[str, float]
    per_category: list[dict[str, Any]]

    @classmethod
    def of(cls, metrics: Sequence[CocoMetrics], *, images: int) -> Self:
        """Keeps the metrics of each IoU type without their arrays."""
        per_category = [dict(category) for category in metrics[0].per_category]
        for other in metrics[1:]:
            for category, own in zip(per_category, other.per_category, strict=True):
                category |= {f"{other.iou_type}/{name}": own[name] for name in CATEGORY_METRICS}
        return cls(images, metrics_of_report(metrics_to_json(*metrics)), per_category)


def model_names(config: Any) -> dict[str, str]:
    """Returns the name of each model in an `EvalConfig`, by its role in the evaluation.

    Args:
        config: with one `ModelSpec`, or two of which one `is_baseline`.
    """
    return {BASELINE if spec.is_baseline else CANDIDATE: spec.name for spec in config.model_specs}


def tfma_values(models: Mapping[str, SliceMetrics], names: Mapping[str, str]) -> dict[Any, float]:
    """Returns the metrics of a slice by `tfma.metrics.MetricKey`.

    These are for each model its metrics, `AP` and `AP50` of each category under the sub key
    `class_id`, which is the data set's category id, and `example_count`; with a baseline also
    the differences to it.  An undefined metric is NaN, as in TFMA's own metrics: -1 would be
    taken for a value, and its difference for a change.

    Args:
        models: metrics of `candidate` and optionally `baseline`.
        names: name of each model in the `EvalConfig`, as `model_names` returns them.
    """
    values: dict[Any, float] = {}
    for part, metrics in models.items():
        values |= _of_model(metrics, names[part])
    if BASELINE in models:
        values |= {
            key.make_diff_key(): value - values[key.make_baseline_key(names[BASELINE])]
            for key, value in values.items()
            if key.model_name == names[CANDIDATE] and key.make_baseline_key(names[BASELINE]) in values
        }
    return values


def metric_keys(metrics: Mapping[str, float], per_category: list[dict[str, Any]], model: str) -> dict[Any, float]:
    """Returns metrics of all categories and of each one by `tfma.metrics.MetricKey`; NaN where undefined."""
    from tensorflow_model_analysis.metrics import metric_types

    # TFMA looks thresholds up under keys without a word on example weights.
    values = {
        metric_types.MetricKey(name, model_name=model, example_weighted=None): _or_nan(value)
        for name, value in metrics.items()
    }
    for category in per_category:
        sub_key = metric_types.SubKey(class_id=category["id"])
        for name in (name for name in category if name.rpartition("/")[2] in CATEGORY_METRICS):
            key = metric_types.MetricKey(name, model_name=model, sub_key=sub_key, example_weighted=None)
            values[key] = _or_nan(category[name])
    return values


def _of_model(metrics: SliceMetrics, model: str) -> dict[Any, float]:
    from tensorflow_model_analysis.metrics import metric_types
    from tensorflow_model_analysis.metrics.example_count import EXAMPLE_COUNT_NAME

    count = metric_types.MetricKey(EXAMPLE_COUNT_NAME, model_name=model)
    return {count: float(metrics.images)} | metric_keys(metrics.metrics, metrics.per_category, model)


def _or_nan(value: float) -> float:
    return NAN if value == UNDEFINED else value


def write_slices(
    folder: str | Path,
    slices: Mapping[SliceKey, Mapping[str, SliceMetrics]],
    *,
    config: Any,
    validation: Any,
    models: Mapping[str, str],
    data: str,
) -> None:
    """Writes the files of `tfma.load_eval_result(folder)` and `tfma.load_validation_result(folder)`.

    Args:
        folder: of the evaluation.
        slices: metrics of `candidate` and optionally `baseline` per slice.
        config: `tfma.EvalConfig`, completed by `eval_config.complete`.
        validation: TFMA's `ValidationResult`.
        models: path of each model.
        data: path of the examples.

    Raises:
        DataError: a file cannot be written.
    """
    # Twenty seconds, and only needed here.
    import tensorflow_model_analysis as tfma
    from google.protobuf import json_format
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import convert_slice_metrics_to_proto

    from detection.storage.tfrecord import framed

    names = model_names(config)
    messages = (
        convert_slice_metrics_to_proto((key, tfma_values(metrics, names)), add_metrics_callbacks=None)
        for key, metrics in slices.items()
    )
    records = (framed(message.SerializeToString()) for message in messages)
    write_bytes(join(folder, f"{tfma.METRICS_KEY}-00000-of-00001.tfrecord"), b"".join(records))
    write_bytes(join(folder, f"{tfma.VALIDATIONS_KEY}.tfrecord"), framed(validation.SerializeToString()))
    run = config_pb2.EvalRun(
        eval_config=config,
        version=tfma.version.VERSION,
        data_location=data,
        model_locations={names[part]: place for part, place in models.items()},
    )
    write_text(join(folder, "eval_config.json"), json_format.MessageToJson(run))
