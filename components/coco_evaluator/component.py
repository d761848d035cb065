"""The evaluator's contract: what goes in and what comes out."""

import json
from collections.abc import Mapping

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_evaluator.executor import (
    BATCH_SIZE_KEY,
    SPLIT_KEY,
    THRESHOLDS_ABSOLUTE_KEY,
    THRESHOLDS_IMPROVEMENT_KEY,
    Executor,
)
from components.coco_evaluator.verdict import check_thresholds
from schemas.artifacts import EVAL_SPLIT
from schemas.errors import ConfigError


class CocoEvaluatorSpec(ComponentSpec):
    """Examples and models in, ModelEvaluation and ModelBlessing out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SPLIT_KEY: ExecutionParameter(type=str),
        BATCH_SIZE_KEY: ExecutionParameter(type=int),
        THRESHOLDS_ABSOLUTE_KEY: ExecutionParameter(type=str),
        THRESHOLDS_IMPROVEMENT_KEY: ExecutionParameter(type=str),
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
    """Exact COCO box metrics of a model on one split, and whether the model is blessed.

    `evaluation` holds the figures (a metrics file of ours and files for
    `tfma.load_eval_result`), the detections as COCO results and the reasons of the
    verdict; `blessing` is one that TFX's own resolver and Pusher understand.
    """

    SPEC_CLASS = CocoEvaluatorSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)

    def __init__(
        self,
        *,
        examples: types.BaseChannel,
        model: types.BaseChannel,
        baseline_model: types.BaseChannel | None = None,
        split: str = EVAL_SPLIT,
        batch_size: int = 8,
        thresholds_absolute: Mapping[str, float] | None = None,
        thresholds_improvement: Mapping[str, float] | None = None,
    ) -> None:
        """Wires the component.

        Args:
            examples: channel of one `Examples`, made by `CocoExampleGen`.
            model: channel of one `Model` with the signature of `schemas.serving`.
            baseline_model: channel of the last blessed `Model`, if there is one; it is
                evaluated on the same images.  The candidate itself is ignored here.
            split: that is evaluated.
            batch_size: images a call of the model.
            thresholds_absolute: figure -> least value; none: every model is blessed.
            thresholds_improvement: figure -> least difference to the baseline.

        Raises:
            ConfigError: an unknown figure, or a batch size below 1.
        """
        for thresholds in (thresholds_absolute, thresholds_improvement):
            check_thresholds(thresholds or {})
        if batch_size < 1:
            raise ConfigError(f"batch_size {batch_size}: give a number of images from 1 on.")
        super().__init__(
            CocoEvaluatorSpec(
                examples=examples,
                model=model,
                baseline_model=baseline_model,
                split=split,
                batch_size=batch_size,
                thresholds_absolute=json.dumps(dict(thresholds_absolute or {}), sort_keys=True),
                thresholds_improvement=json.dumps(dict(thresholds_improvement or {}), sort_keys=True),
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
            )
        )
