"""An `EvalConfig`'s thresholds: TFMA's judgement, and the same in words."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from components.coco_evaluator.tfma.slice_metrics import (
    BASELINE,
    CANDIDATE,
    SliceKey,
    SliceMetrics,
    describe,
    model_names,
    tfma_values,
)
from components.coco_evaluator.tfma.slicing import describe_spec
from components.coco_evaluator.thresholds import NO_THRESHOLD, Verdict

Slices = Mapping[SliceKey, Mapping[str, SliceMetrics]]
Metrics = dict[SliceKey, dict[Any, float]]  # by tfma.metrics.MetricKey


def asked(threshold: Any) -> str:
    """Describes a `GenericValueThreshold` or `GenericChangeThreshold`, such as "at least 0.4"."""
    if hasattr(threshold, "direction"):
        return _asked_change(threshold)
    bounds = []
    if threshold.HasField("lower_bound"):
        bounds.append(f"at least {threshold.lower_bound.value:.6g}")
    if threshold.HasField("upper_bound"):
        bounds.append(f"at most {threshold.upper_bound.value:.6g}")
    return " and ".join(bounds)


def compared(metric: str, value: float, before: float | None, threshold: Any, *, met: bool) -> str:
    """Describes the comparison of one metric with one threshold.

    Args:
        metric: name of the metric.
        value: value of the candidate; NaN if undefined.
        before: value of the baseline; None for a threshold on the value itself.
        threshold: `GenericValueThreshold` or `GenericChangeThreshold`.
        met: TFMA's decision.
    """
    if math.isnan(value) or (before is not None and math.isnan(before)):
        return f"{metric} is undefined: there is no ground truth to measure it on"
    wanted = ("" if met else "not ") + asked(threshold)
    if before is None:
        return f"{metric} is {value:.6g}, {wanted}"
    change = f"{value - before:+.6g}" + (f" ({(value - before) / before:+.2%})" if before else "")
    return f"{metric} is {value:.6g} against {before:.6g} of the baseline, a change of {change}, {wanted}"


def _asked_change(threshold: Any) -> str:
    from tensorflow_model_analysis.proto import config_pb2

    higher = threshold.direction == config_pb2.MetricDirection.HIGHER_IS_BETTER
    bounds = []
    if threshold.HasField("absolute"):
        bounds.append(f"{threshold.absolute.value:+.6g}")
    if threshold.HasField("relative"):
        bounds.append(f"{threshold.relative.value:+.6g} of the baseline's")
    return ("at least " if higher else "at most ") + " and ".join(bounds)


class Judged(NamedTuple):
    """The decision by an `EvalConfig`.

    validation: TFMA's `ValidationResult`; None without thresholds.
    verdict: the same in words.
    """

    validation: Any | None
    verdict: Verdict


def judge_by_config(slices: Slices, config: Any) -> Judged:
    """Compares an evaluation with the thresholds of an `EvalConfig`.

    A threshold without slices holds for every slice, as in TFMA; change thresholds are met
    without a baseline.  An undefined metric meets no threshold.

    Args:
        slices: metrics of `candidate` and optionally `baseline` per slice.
        config: completed by `eval_config.complete`.
    """
    from tensorflow_model_analysis.evaluators.metrics_validator import validate_metrics
    from tensorflow_model_analysis.metrics import metric_specs
    from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import CombineValidations

    thresholds = metric_specs.metric_thresholds_from_metrics_specs(config.metrics_specs, eval_config=config)
    if not thresholds:
        return Judged(None, NO_THRESHOLD)
    names = model_names(config)
    metrics = {key: tfma_values(models, names) for key, models in slices.items()}
    combine = CombineValidations(config)
    state = combine.create_accumulator()
    for item in metrics.items():
        state = combine.add_input(state, validate_metrics(item, config))
    validation = combine.extract_output(state)
    return Judged(
        validation, Verdict(validation.validation_ok, _Words(slices, metrics, validation, names).of(thresholds))
    )


def without_thresholds(*, blessed: bool) -> Any:
    """Returns the `ValidationResult` of an `EvalConfig` without thresholds: `tfma.load_validation_result` needs it."""
    from tensorflow_model_analysis.proto import validation_result_pb2

    return validation_result_pb2.ValidationResult(validation_ok=blessed, missing_thresholds=True)


class _Words:
    """Sentences on thresholds: first what is not met, then the rest."""

    def __init__(self, slices: Slices, metrics: Metrics, validation: Any, names: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._names = names
        self._failed = {
            (result.slice_key.SerializeToString(), *_identity(failure.metric_key, failure.metric_threshold))
            for result in validation.metric_validations_per_slice
            for failure in result.failures
        }
        self._categories = {
            category["id"]: category["name"]
            for models in slices.values()
            for category in models[CANDIDATE].per_category
        }

    def of(self, thresholds: Mapping[Any, Iterable[tuple[Any, Any]]]) -> list[str]:
        """Args: `thresholds`, (slicing spec or None, threshold)s by metric key."""
        unmet: list[str] = []
        met: list[str] = []
        for key, pairs in thresholds.items():
            if key.model_name == self._names.get(BASELINE):
                continue  # TFMA does not judge the baseline
            for spec, threshold in pairs:
                self._compare(key, spec, threshold, unmet, met)
        return list(dict.fromkeys(unmet + met))

    def _compare(self, key: Any, spec: Any, threshold: Any, unmet: list[str], met: list[str]) -> None:
        metric = self._metric(key)
        if not any(key in metrics for metrics in self._metrics.values()):
            unmet.append(f"{metric}: there is no such metric. Are these the data set's category ids?")
            return
        matching = self._matching(spec)
        if not matching:
            place = describe_spec(spec)
            unmet.append(f"{metric}: no image is in a slice by {place}, where it should be {asked(threshold)}")
        passed: list[str] = []
        for slice_key in matching:
            failed = self._has_failed(slice_key, key, threshold)
            sentence = self._sentence(slice_key, key, threshold, met=not failed)
            (unmet if failed else passed).append(sentence)
        if len(passed) > 1:
            passed = [f"{metric} is {asked(threshold)} on {len(passed)} of {len(matching)} slices"]
        met += passed

    def _sentence(self, slice_key: SliceKey, key: Any, threshold: Any, *, met: bool) -> str:
        metrics = self._metrics[slice_key]
        value_key = key._replace(is_diff=False)
        before = metrics[key.make_baseline_key(self._names[BASELINE])] if key.is_diff else None
        sentence = compared(self._metric(key), metrics[value_key], before, threshold, met=met)
        return f"{describe(slice_key)}: {sentence}" if slice_key else sentence

    def _metric(self, key: Any) -> str:
        if key.sub_key is None:
            return str(key.name)
        name = self._categories.get(key.sub_key.class_id)
        return f"{key.name} of category {key.sub_key.class_id}" + (f" ({name})" if name else "")

    def _matching(self, spec: Any) -> list[SliceKey]:
        from tensorflow_model_analysis.slicer import slicer_lib

        if spec is None:
            return list(self._metrics)
        single = slicer_lib.SingleSliceSpec(spec=spec)
        return [key for key in self._metrics if single.is_slice_applicable(key)]

    def _has_failed(self, slice_key: SliceKey, key: Any, threshold: Any) -> bool:
        from tensorflow_model_analysis.proto import config_pb2
        from tensorflow_model_analysis.slicer import slicer_lib

        kind = "change_threshold" if key.is_diff else "value_threshold"
        wrapped = config_pb2.MetricThreshold(**{kind: threshold})
        slice_bytes = slicer_lib.serialize_slice_key(slice_key).SerializeToString()
        return (slice_bytes, *_identity(key.to_proto(), wrapped)) in self._failed


def _identity(key: Any, threshold: Any) -> tuple[bytes, bytes]:
    return key.SerializeToString(), threshold.SerializeToString()
