"""The evaluator's contract: what goes in and what comes out."""

import json
from dataclasses import asdict
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_beam_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_evaluator.executor import (
    ANALYSIS_KEY,
    BATCH_SIZE_KEY,
    EVAL_CONFIG_KEY,
    IMAGES_PER_STATE_KEY,
    LOSSES_KEY,
    SPLIT_KEY,
    THRESHOLDS_KEY,
    Executor,
)
from components.coco_evaluator.thresholds import Thresholds
from detection.analysis.options import AnalysisOptions
from schemas.artifacts import EVAL_SPLIT
from schemas.errors import ConfigError


class CocoEvaluatorSpec(ComponentSpec):
    """Examples and models in, ModelEvaluation and ModelBlessing out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SPLIT_KEY: ExecutionParameter(type=str),
        BATCH_SIZE_KEY: ExecutionParameter(type=int),
        IMAGES_PER_STATE_KEY: ExecutionParameter(type=int),
        THRESHOLDS_KEY: ExecutionParameter(type=str),
        ANALYSIS_KEY: ExecutionParameter(type=str),
        LOSSES_KEY: ExecutionParameter(type=int),
        EVAL_CONFIG_KEY: ExecutionParameter(type=str, optional=True),
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
    """Exact COCO box metrics of a model on one split, what explains them, and whether the model is blessed.

    `evaluation` holds the figures (a metrics file of ours and files for
    `tfma.load_eval_result` and `tfma.load_validation_result`), the detections as COCO
    results, the analysis, a report for people and the reasons of the verdict;
    `blessing` is one that TFX's own resolver and Pusher understand.
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
        images_per_state: int = 200_000,
        eval_config: Any | None = None,
        thresholds: Thresholds | None = None,
        analysis: AnalysisOptions | None = None,
        losses: bool = True,
    ) -> None:
        """Wires the component.

        Args:
            examples: channel of one `Examples`, made by `CocoExampleGen`.
            model: channel of one `Model` with the signature of `schemas.serving`.
            baseline_model: channel of the last blessed `Model`, if there is one; it is
                evaluated on the same images.  The candidate itself is ignored here.
            split: that is evaluated.
            batch_size: images a call of the model.
            images_per_state: where the split has more, each category and area range is
                summed up by a worker of its own; the figures are the same.
            eval_config: `tfma.EvalConfig`: slices, and thresholds on them.  None: all
                images, no such thresholds.
            thresholds: asked of the model; a model is blessed where these and those of
                `eval_config` are met.  None: nothing is asked.
            analysis: of what is told beyond the figures; default `AnalysisOptions()`.
            losses: whether the mean losses on the analysed images are told, too.

        Raises:
            ConfigError: numbers below 1; significance without a bootstrap; an
                `EvalConfig` that is not honoured.
        """
        for name, number in (("batch_size", batch_size), ("images_per_state", images_per_state)):
            if number < 1:
                raise ConfigError(f"{name} {number}: give a number of images from 1 on.")
        thresholds, analysis = thresholds or Thresholds(), analysis or AnalysisOptions()
        if thresholds.significant and not analysis.replicates:
            raise ConfigError("thresholds.significant needs intervals: give analysis some replicates, such as 200.")
        super().__init__(
            CocoEvaluatorSpec(
                examples=examples,
                model=model,
                baseline_model=baseline_model,
                split=split,
                batch_size=batch_size,
                images_per_state=images_per_state,
                eval_config=None if eval_config is None else _checked(eval_config),
                thresholds=json.dumps(asdict(thresholds), sort_keys=True),
                analysis=json.dumps(asdict(analysis), sort_keys=True),
                losses=int(losses),
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
            )
        )


def _checked(config: Any) -> str:
    from components.coco_evaluator.tfma.eval_config import eval_config_to_json, parse_eval_config

    text = eval_config_to_json(config)
    parse_eval_config(text)
    return text
