"""CocoEvaluator: its inputs, parameters and outputs."""

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_evaluator.executor import CONFIG_KEY, EVAL_CONFIG_KEY, SERVED_IMAGES_KEY, THRESHOLDS_KEY, Executor
from components.history.driver import Driver
from components.history.records import RUN_ROOT_KEY
from schemas.config.evaluate import EvaluateConfig


class CocoEvaluatorSpec(ComponentSpec):
    """Examples and models in, ModelEvaluation and ModelBlessing out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        CONFIG_KEY: ExecutionParameter(type=str),
        EVAL_CONFIG_KEY: ExecutionParameter(type=str, optional=True),
        THRESHOLDS_KEY: ExecutionParameter(type=str, optional=True),
        RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True),
        SERVED_IMAGES_KEY: ExecutionParameter(type=int, optional=True),
    }
    INPUTS = {  # noqa: RUF012
        keys.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        keys.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        keys.BASELINE_MODEL_KEY: ChannelParameter(type=standard_artifacts.Model, optional=True),
    }
    OUTPUTS = {  # noqa: RUF012
        keys.EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation),
        keys.BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing),
    }


class CocoEvaluator(base_beam_component.BaseBeamComponent):
    """Computes exact COCO metrics of a model on one split, analyses its errors, and blesses the model or not.

    `evaluation` holds the metrics (`metrics.json`, and files for `tfma.load_eval_result` and
    `tfma.load_validation_result`), the detections as COCO results, the analysis, a report and
    the reasons of the verdict; `blessing` is one that TFX's own resolver and Pusher read.
    """

    SPEC_CLASS = CocoEvaluatorSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        *,
        examples: types.BaseChannel,
        model: types.BaseChannel,
        baseline_model: types.BaseChannel | None = None,
        config: EvaluateConfig | None = None,
        eval_config: Any | None = None,
        thresholds: RuntimeParameter | None = None,
        run_root: str | None = None,
        served_images: int = 0,
    ) -> None:
        """Wires the component.

        Args:
            examples: channel of one `Examples`, made by `CocoExampleGen`.
            model: channel of one `Model` with the signature of `schemas.serving`.
            baseline_model: channel of the last blessed `Model`, if there is one; it is
                evaluated on the same images.  The candidate itself is ignored here.
            config: options of the evaluation; default `EvaluateConfig()`.  Its
                `eval_config`, a file, is not read here.
            eval_config: `tfma.EvalConfig`: slices, and thresholds on them beside those of
                `config`.  None: all images, no such thresholds.
            thresholds: parameter of a compiled pipeline that replaces `config.thresholds`.
            run_root: folder of the run, with the history; None: nothing is recorded.
            served_images: number of images for `SavedModelPusher`: `evaluation` holds them with the
                model's outputs.

        Raises:
            ConfigError: an `EvalConfig` that is not honoured.
        """
        config = config or EvaluateConfig()
        super().__init__(
            CocoEvaluatorSpec(
                examples=examples,
                model=model,
                baseline_model=baseline_model,
                config=config.model_dump_json(exclude={"eval_config"}),
                eval_config=None if eval_config is None else _checked_json(eval_config),
                evaluate_thresholds=thresholds,
                run_root=run_root,
                served_images=served_images or None,
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
            )
        )


def _checked_json(config: Any) -> str:
    from components.coco_evaluator.tfma.eval_config import eval_config_to_json, parse_eval_config

    text = eval_config_to_json(config)
    parse_eval_config(text)
    return text
