"""TFMA's `EvalConfig`: read, checked, and completed as TFX completes it.

A config that asks for something that the evaluator does not do is refused: it must not
seem to be honoured.
"""

from pathlib import Path
from typing import Any

from components.coco_evaluator.tfma.eval_config_checks import check_eval_config, check_our_metrics
from components.coco_evaluator.tfma.metric_options import METRICS_CLASS, METRICS_MODULE
from detection.coco.params import Params
from schemas.errors import ConfigError
from schemas.serving import ENCODED_SIGNATURE

_SHOWN = 400  # characters of the parser's reason


def read_eval_config(path: str | Path) -> Any:
    """Reads and checks a `tfma.EvalConfig`, JSON or text format.

    Raises:
        ConfigError: the file cannot be read, is no `EvalConfig`, or asks for something
            that is not honoured; the message names the field.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the EvalConfig: {error}. Give a file in JSON or text format.") from None
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


def complete(config: Any | None, *, has_baseline: bool = False) -> Any:
    """The config as it takes effect, by TFMA's own rules.

    Without a baseline, change thresholds are dropped and the model has no name; with
    one, there are a `candidate` and a `baseline`, or what the config calls them.

    Args:
        config: checked; None: all images, no thresholds.  Stays unchanged.
        has_baseline: whether there is another model to compare with.
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
        completed.metrics_specs.add().metrics.add(class_name=METRICS_CLASS, module=METRICS_MODULE)
    return config_util.update_eval_config_with_defaults(completed, has_baseline=has_baseline, rubber_stamp=True)


def params_of(config: Any) -> Params:
    """The evaluation's parameters that a checked config asks for; COCO's own where it says nothing."""
    return check_our_metrics(config, "EvalConfig").params()
