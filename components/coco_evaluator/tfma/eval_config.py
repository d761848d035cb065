"""TFMA's `EvalConfig`: read, checked, and completed as TFX completes it.

A config that asks for something that the evaluator does not do is refused: it must not seem to be
honoured.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from components.coco_evaluator.tfma.metric_options import METRICS_CLASS, METRICS_MODULE, MetricOptions, read_options
from components.coco_evaluator.tfma.slice_metrics import CATEGORY_METRICS
from detection.coco.metrics import metric_names
from detection.coco.params import Params
from detection.storage.files import read_text
from detection.storage.paths import require_supported
from schemas.errors import ConfigError, DataError
from schemas.metrics import METRIC_DEFINITIONS
from schemas.serving import ENCODED_SIGNATURE

_OURS = (METRICS_CLASS, METRICS_MODULE)
_COUNT_CLASS = "ExampleCount"  # TFMA's own: its metric is the slice's number of images
# Fields that the evaluator would ignore, by type of message.
_NOT_HONOURED = {
    "EvalConfig": "cross_slicing_specs",
    "Options": "compute_confidence_intervals min_slice_size disabled_outputs",
    "SlicingSpec": "slice_keys_sql",
    "ModelSpec": "output_names example_weight_key example_weight_keys prediction_key prediction_keys",
    "MetricsSpec": "output_names output_weights aggregate example_weights query_key cross_slice_thresholds",
    "BinarizationOptions": "k_list top_k_list",
    "MetricConfig": "cross_slice_thresholds",
}
_SHOWN = 400  # characters of the parser's reason


def check_eval_config(config: Any, where: str) -> None:
    """Refuses a config with parts that the evaluator would ignore.

    Args:
        config: `tfma.EvalConfig`.
        where: starts every message.

    Raises:
        ConfigError: the first such field, which the message names.
    """
    _check_models(config.model_specs, where)
    options = check_our_metrics(config, where)
    for place, message in _messages(config, where):
        kind = message.DESCRIPTOR.name
        _refuse_fields(message, _NOT_HONOURED.get(kind, "").split(), place)
        for issue in _issues(kind, message):
            raise ConfigError(f"{place}: {issue}")
        if kind == "MetricsSpec":
            _check_metric_names(message, options, place)


def _messages(message: Any, where: str, separator: str = ": ") -> Iterator[tuple[str, Any]]:
    """Yields a message and all inside it, each with its place, such as `metrics_specs[0].thresholds[AP]`."""
    yield where, message
    for field, value in message.ListFields():
        place = f"{where}{separator}{field.name}"
        if isinstance(value, Mapping):
            inner = [(f"{place}[{key}]", one) for key, one in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            inner = [(f"{place}[{position}]", one) for position, one in enumerate(value)]
        else:
            inner = [(place, value)]
        for one_place, one in inner:
            if hasattr(one, "ListFields"):
                yield from _messages(one, one_place, ".")


def check_our_metrics(config: Any, where: str) -> MetricOptions:
    """Returns the options of `CocoMetrics`, which hold for all of an `EvalConfig`.

    Raises:
        ConfigError: options that cannot be read, or that differ between two entries; a
            threshold on all metrics at once; metrics averaged over categories or outputs.
    """
    by_place: dict[str, MetricOptions] = {}
    for position, spec in enumerate(config.metrics_specs):
        for number, metric in enumerate(spec.metrics):
            if metric.class_name != METRICS_CLASS:
                continue
            place = f"{where}: metrics_specs[{position}].metrics[{number}]"
            by_place[place] = read_options(metric.config, where=f"{place}.config")
            if metric.HasField("threshold") or metric.per_slice_thresholds:
                raise ConfigError(
                    f"{place}: {METRICS_CLASS} has many metrics, so a threshold has to name one: write it in "
                    'thresholds or per_slice_thresholds of the metrics_specs entry, such as {key: "AP" value {...}}.'
                )
            _refuse_fields(spec, ("aggregate", "output_names"), f"{where}: metrics_specs[{position}]")
    first = next(iter(by_place.values()), MetricOptions())
    for place, options in by_place.items():
        if options != first:
            raise ConfigError(
                f"{place}.config: differs from that of {next(iter(by_place))}; the metrics' names are the same. "
                f"Give {METRICS_CLASS} the same options everywhere."
            )
    return first


def _issues(kind: str, message: Any) -> Iterator[str]:
    """Yields why a message of some type is refused."""
    match kind:
        case "SlicingSpec" if both := sorted(set(message.feature_keys) & set(message.feature_values)):
            yield (
                f"{', '.join(both)} stands in feature_keys and feature_values. "
                "Keep one: the first makes a slice of each value, the second one slice of that value."
            )
        case "ModelSpec" if message.signature_name not in ("", ENCODED_SIGNATURE):
            yield f"signature_name: {message.signature_name!r}; the evaluator calls {ENCODED_SIGNATURE!r}."
        case "MetricConfig" if (message.class_name, message.module) not in (_OURS, (_COUNT_CLASS, message.module)):
            given = f"{message.class_name!r} of the module {message.module!r}"
            yield f"unknown metric {given}. Known are {_OURS[0]!r} of the module {_OURS[1]!r}, and {_COUNT_CLASS!r}."
        case "PerSliceMetricThreshold" if not message.slicing_specs:
            yield "no slicing_specs. Name the slices; one empty entry means all images."
        case "MetricThreshold" if not message.ListFields():
            yield "asks nothing. Give a value_threshold or a change_threshold."
        case "GenericValueThreshold" if not message.ListFields():
            yield "asks nothing. Give lower_bound or upper_bound."
        case "GenericChangeThreshold" if not (message.HasField("absolute") or message.HasField("relative")):
            yield "asks nothing. Give absolute or relative."
        case "GenericChangeThreshold" if not message.direction:
            yield "has no direction. Give HIGHER_IS_BETTER or LOWER_IS_BETTER."


def _check_models(specs: Any, where: str) -> None:
    baselines = sum(spec.is_baseline for spec in specs)
    if len(specs) > 2 or (len(specs) == 2 and baselines != 1) or (len(specs) == 1 and baselines):
        raise ConfigError(
            f"{where}: model_specs: {len(specs)} models, {baselines} of them with is_baseline. "
            "Give the candidate alone, or the candidate and one baseline, or none."
        )
    if len({spec.name for spec in specs}) < len(specs):
        raise ConfigError(f"{where}: model_specs: two models of one name. Give each a name of its own.")


def _check_metric_names(spec: Any, options: MetricOptions, where: str) -> None:
    known = metric_names(options.params())
    others = {iou_type: metrics for iou_type, metrics in METRIC_DEFINITIONS.items() if iou_type != options.iou_type}
    known += [f"{iou_type}/{metric.name}" for iou_type, metrics in others.items() for metric in metrics]
    known += [f"{iou_type}/{name}" for iou_type in others if iou_type != "keypoints" for name in options.metrics]
    kind: str = options.iou_type
    if spec.HasField("binarize"):
        known, kind = [name for name in known if name.rpartition("/")[2] in CATEGORY_METRICS], "a category"
    for field in ("thresholds", "per_slice_thresholds"):
        if unknown := sorted(set(getattr(spec, field)) - set(known)):
            raise ConfigError(
                f"{where}.{field}: unknown metric {', '.join(unknown)}. Known for {kind} are {', '.join(known)}."
            )


def _refuse_fields(message: Any, fields: Iterable[str], where: str) -> None:
    for name in {field.name for field, _ in message.ListFields()}.intersection(fields):
        raise ConfigError(f"{where}: {name} is not honoured. Remove it.")


def read_eval_config(path: str | Path) -> Any:
    """Reads and checks a `tfma.EvalConfig`, JSON or text format.

    Raises:
        ConfigError: the file cannot be read, is no `EvalConfig`, or asks for something
            that is not honoured; the message names the field.
    """
    require_supported(path, "evaluate.eval_config")
    try:
        text = read_text(path)
    except DataError as error:
        raise ConfigError(f"{path}: cannot read the EvalConfig: {error} Give a file in JSON or text format.") from None
    return parse_eval_config(text, where=str(path))


def parse_eval_config(text: str, *, where: str = "EvalConfig") -> Any:
    """`read_eval_config` of a file's content; errors start with `where`."""
    from google.protobuf import json_format, text_format
    from tensorflow_model_analysis.proto import config_pb2

    config = config_pb2.EvalConfig()
    try:
        if text.lstrip().startswith("{"):
            json_format.Parse(text, config)
        else:
            text_format.Parse(text, config)
    except (json_format.ParseError, text_format.ParseError, RecursionError) as error:  # nested thousands deep
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: no EvalConfig: {reason[:_SHOWN]}") from None
    check_eval_config(config, where)
    return config


def eval_config_to_json(config: Any) -> str:
    """Inverse of `parse_eval_config`, as components pass it on."""
    from google.protobuf import json_format

    return json_format.MessageToJson(config)


def complete(config: Any | None, *, has_baseline: bool = False, iou_type: str = "bbox") -> Any:
    """Completes a config by TFMA's own rules.

    Without a baseline, change thresholds are dropped and the model has no name; with
    one, there are a `candidate` and a `baseline`, or what the config calls them.

    Args:
        config: checked; None: all images, no thresholds.  Stays unchanged.
        has_baseline: whether there is another model to compare with.
        iou_type: IoU type of a config that has no metric.
    """
    from tensorflow_model_analysis.proto import config_pb2
    from tensorflow_model_analysis.utils import config_util

    completed = config_pb2.EvalConfig()
    if config is not None:
        completed.CopyFrom(config)
    if not completed.model_specs:
        completed.model_specs.add(signature_name=ENCODED_SIGNATURE)
    if len(completed.model_specs) == 1:
        completed.model_specs[0].name = ""  # TFMA adds a baseline beside a nameless model only
    if not completed.slicing_specs:
        completed.slicing_specs.add()
    if not any(spec.metrics for spec in completed.metrics_specs):
        options = "" if iou_type == "bbox" else json.dumps({"iou_type": iou_type})
        completed.metrics_specs.add().metrics.add(class_name=METRICS_CLASS, module=METRICS_MODULE, config=options)
    return config_util.update_eval_config_with_defaults(completed, has_baseline=has_baseline, rubber_stamp=True)


def params_of(config: Any) -> Params:
    """Returns the params of a checked config, with COCO's defaults."""
    return check_our_metrics(config, "EvalConfig").params()
