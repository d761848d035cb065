"""Figures under TFMA's metric keys."""

from collections.abc import Mapping
from typing import Any

from components.coco_evaluator.tfma.slice_figures import BASELINE, CANDIDATE, CATEGORY_FIGURES, SliceFigures
from detection.coco.metrics import UNDEFINED

NAN = float("nan")


def model_names(config: Any) -> dict[str, str]:
    """What an `EvalConfig` calls each model, by its part in the evaluation.

    Args:
        config: with one `ModelSpec`, or two of which one `is_baseline`.
    """
    return {BASELINE if spec.is_baseline else CANDIDATE: spec.name for spec in config.model_specs}


def slice_metrics(models: Mapping[str, SliceFigures], names: Mapping[str, str]) -> dict[Any, float]:
    """All that TFMA keeps of a slice, by `tfma.metrics.MetricKey`.

    That is for each model the figures, `AP` and `AP50` of each category under the sub
    key `class_id`, which is the data set's category id, and `example_count`; and where
    there is a baseline, the differences to it.  An undefined figure is NaN, as in
    TFMA's own metrics: -1 would be taken for a value, and its difference for a change.

    Args:
        models: by their part in the evaluation.
        names: see `model_names`.
    """
    values: dict[Any, float] = {}
    for part, found in models.items():
        values |= _of_model(found, names[part])
    if BASELINE in models:
        values |= {
            key.make_diff_key(): value - values[key.make_baseline_key(names[BASELINE])]
            for key, value in values.items()
            if key.model_name == names[CANDIDATE] and key.make_baseline_key(names[BASELINE]) in values
        }
    return values


def figure_keys(figures: Mapping[str, float], per_category: list[dict[str, Any]], model: str) -> dict[Any, float]:
    """Figures of all categories and of each one, by `tfma.metrics.MetricKey`; NaN where undefined."""
    from tensorflow_model_analysis.metrics import metric_types

    # TFMA looks thresholds up under keys without a word on example weights.
    values = {
        metric_types.MetricKey(name, model_name=model, example_weighted=None): _or_nan(value)
        for name, value in figures.items()
    }
    for category in per_category:
        sub_key = metric_types.SubKey(class_id=category["id"])
        for name in CATEGORY_FIGURES:
            key = metric_types.MetricKey(name, model_name=model, sub_key=sub_key, example_weighted=None)
            values[key] = _or_nan(category[name])
    return values


def _of_model(found: SliceFigures, model: str) -> dict[Any, float]:
    from tensorflow_model_analysis.metrics import metric_types
    from tensorflow_model_analysis.metrics.example_count import EXAMPLE_COUNT_NAME

    count = metric_types.MetricKey(EXAMPLE_COUNT_NAME, model_name=model)
    return {count: float(found.images)} | figure_keys(found.figures, found.per_category, model)


def _or_nan(value: float) -> float:
    return NAN if value == UNDEFINED else value
