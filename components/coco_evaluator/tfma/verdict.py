"""An `EvalConfig`'s thresholds: TFMA's judgement, and the same in words."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from components.coco_evaluator.thresholds import NO_THRESHOLD, Verdict, verdict_of

Slices = Mapping[SliceKey, Mapping[str, SliceMetrics]]


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
    from tensorflow_model_analysis.metrics.metric_specs import metric_thresholds_from_metrics_specs
    from tensorflow_model_analysis.writers.metrics_plots_and_validations_writer import CombineValidations

    thresholds = metric_thresholds_from_metrics_specs(config.metrics_specs, eval_config=config)
    if not thresholds:
        return Judged(None, NO_THRESHOLD)
    names = model_names(config)
    metrics = {key: tfma_values(models, names) for key, models in slices.items()}
    failures: dict[SliceKey, set[Any]] = {}
    combine = CombineValidations(config)
    state = combine.create_accumulator()
    for key, values in metrics.items():
        of_slice = validate_metrics((key, values), config)
        failures[key] = set(_failures(of_slice))
        state = combine.add_input(state, of_slice)
    validation = combine.extract_output(state)
    categories = {entry["id"]: entry["name"] for models in slices.values() for entry in models[CANDIDATE].per_category}
    comparison = _Comparison(metrics, failures, names.get(BASELINE), categories)
    results = [
        result
        for key, pairs in thresholds.items()
        if key.model_name != comparison.baseline  # TFMA does not judge the baseline
        for spec, threshold in pairs
        for result in comparison.results(key, spec, threshold)
    ]
    return Judged(validation, verdict_of(results)._replace(blessed=validation.validation_ok))


def without_thresholds(*, blessed: bool) -> Any:
    """Returns the `ValidationResult` of an `EvalConfig` without thresholds: `tfma.load_validation_result` needs it."""
    from tensorflow_model_analysis.proto import validation_result_pb2

    return validation_result_pb2.ValidationResult(validation_ok=blessed, missing_thresholds=True)


def _failures(validation: Any) -> Iterator[tuple[Any, bytes]]:
    """Yields the key and the serialized threshold of each failure."""
    from tensorflow_model_analysis.metrics.metric_types import MetricKey

    for failure in (one for of_slice in validation.metric_validations_per_slice for one in of_slice.failures):
        key, threshold = MetricKey.from_proto(failure.metric_key), failure.metric_threshold
        yield key, (threshold.change_threshold if key.is_diff else threshold.value_threshold).SerializeToString()


@dataclass(frozen=True)
class _Comparison:
    """Describes which thresholds are met.

    metrics: value by `tfma.metrics.MetricKey`, per slice.
    failures: key and serialized threshold of each failure, per slice.
    baseline: name of the baseline; None: no baseline.
    categories: name by id.
    """

    metrics: Mapping[SliceKey, Mapping[Any, float]]
    failures: Mapping[SliceKey, set[Any]]
    baseline: str | None
    categories: Mapping[int, str]

    def results(self, key: Any, spec: Any | None, threshold: Any) -> list[tuple[bool, str]]:
        """Returns whether a threshold is met, with a sentence, for each slice; one for all slices that meet it.

        Args:
            key: `tfma.metrics.MetricKey`.
            spec: `tfma.SlicingSpec` of the slices; None: all slices.
            threshold: `GenericValueThreshold` or `GenericChangeThreshold`.
        """
        from tensorflow_model_analysis.slicer import slicer_lib

        metric = str(key.name)
        if key.sub_key is not None:
            name = self.categories.get(key.sub_key.class_id)
            metric += f" of category {key.sub_key.class_id}" + (f" ({name})" if name else "")
        if not any(key in values for values in self.metrics.values()):
            return [(False, f"{metric}: there is no such metric. Are these the data set's category ids?")]
        applies = (lambda _: True) if spec is None else slicer_lib.SingleSliceSpec(spec=spec).is_slice_applicable
        slices = list(filter(applies, self.metrics))
        if not slices:
            place = describe_spec(spec)
            return [(False, f"{metric}: no image is in a slice by {place}, where it should be {_describe(threshold)}")]
        results = [self._result(slice_key, key, threshold, metric) for slice_key in slices]
        unmet = [result for result in results if not result[0]]
        if len(results) - len(unmet) < 2:
            return results
        passed = len(results) - len(unmet)
        return [*unmet, (True, f"{metric} is {_describe(threshold)} on {passed} of {len(slices)} slices")]

    def _result(self, slice_key: SliceKey, key: Any, threshold: Any, metric: str) -> tuple[bool, str]:
        met = (key, threshold.SerializeToString()) not in self.failures[slice_key]
        values = self.metrics[slice_key]
        value, wanted = values[key._replace(is_diff=False)], ("" if met else "not ") + _describe(threshold)
        before = values[key.make_baseline_key(self.baseline)] if key.is_diff else None
        if math.isnan(value) or (before is not None and math.isnan(before)):
            sentence = f"{metric} is undefined: there is no ground truth to measure it on"
        elif before is None:
            sentence = f"{metric} is {value:.6g}, {wanted}"
        else:
            change = f"{value - before:+.6g}" + (f" ({(value - before) / before:+.2%})" if before else "")
            sentence = f"{metric} is {value:.6g} against {before:.6g} of the baseline, a change of {change}, {wanted}"
        return met, f"{describe(slice_key)}: {sentence}" if slice_key else sentence


def _describe(threshold: Any) -> str:
    """Describes a `GenericValueThreshold` or `GenericChangeThreshold`, such as "at least 0.4"."""
    from tensorflow_model_analysis.proto import config_pb2

    given = {field.name: value for field, value in threshold.ListFields()}
    if "direction" not in given:
        words = {"lower_bound": "at least", "upper_bound": "at most"}
        return " and ".join(f"{words[name]} {bound.value:.6g}" for name, bound in given.items())
    higher = given.pop("direction") == config_pb2.MetricDirection.HIGHER_IS_BETTER
    words = {"absolute": "", "relative": " of the baseline's"}
    bounds = " and ".join(f"{bound.value:+.6g}{words[name]}" for name, bound in given.items())
    return f"at {'least' if higher else 'most'} {bounds}"
