"""The trainer's contract: inputs, outputs and parameters."""

from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.detection_trainer import custom_job
from components.detection_trainer.executor import Executor
from components.detection_trainer.identity import (
    CONFIG_KEY,
    OTHER_SETTINGS_KEY,
    REMOTE_PARAMETERS,
    REUSE_RULE,
    SPLIT_KEY,
    trainer_properties,
)
from components.history import driver as history
from components.history.records import RUN_ROOT_KEY
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS


class Driver(history.Driver):
    """Reuses a training of equal deciding parameters."""

    RULE = REUSE_RULE


class DetectionTrainerSpec(ComponentSpec):
    """Inputs: Examples, and optionally a Model to start from; outputs: Model and ModelRun."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        CONFIG_KEY: ExecutionParameter(type=str),
        RUN_ROOT_KEY: ExecutionParameter(type=str),
        SPLIT_KEY: ExecutionParameter(type=str),
        OTHER_SETTINGS_KEY: ExecutionParameter(type=str),
        custom_job.JOB_KEY: ExecutionParameter(type=str, optional=True),
        **{name: ExecutionParameter(type=RUNTIME_PARAMETERS[name].kind, optional=True) for name in REMOTE_PARAMETERS},
    }
    INPUTS = {  # noqa: RUF012
        keys.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        keys.BASE_MODEL_KEY: ChannelParameter(type=standard_artifacts.Model, optional=True),
    }
    OUTPUTS = {  # noqa: RUF012
        keys.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        keys.MODEL_RUN_KEY: ChannelParameter(type=standard_artifacts.ModelRun),
    }


class DetectionTrainer(base_component.BaseComponent):
    """Trains a detector on `Examples` made by `CocoExampleGen`.

    `model` holds the SavedModel of the weights that `train.ema` selects (where TFX looks for
    one) and the run's configuration; `model_run` the checkpoints and TensorBoard logs.  During
    training, both are below `<run_root>/training/`, so that a killed run resumes from its
    newest checkpoint.
    """

    SPEC_CLASS = DetectionTrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        *,
        examples: types.BaseChannel,
        config: Config,
        run_root: str,
        base_model: types.BaseChannel | None = None,
        parameters: Mapping[str, Any] | None = None,
        job: str | None = None,
    ) -> None:
        """Creates the component.

        Args:
            examples: channel of one `Examples`, or of one per span, with the same categories.
            config: its sections `model` and `train` decide whether an earlier result is
                reused; the other sections, and the keys `WITHOUT_EFFECT` of `train`, may
                change without training again.
            run_root: folder of the run, with the history.
            base_model: channel of the `Model` to start from, if `train.init` says so; may be empty.
            parameters: parameters of a submission, by the names of `REMOTE_PARAMETERS`; they replace keys of `config`.
            job: `custom_job.JOB_KEY` of a Vertex custom job that trains; None: the component's process does.
        """
        super().__init__(
            DetectionTrainerSpec(
                examples=examples,
                base_model=base_model,
                run_root=run_root,
                **trainer_properties(config, TRAIN_SPLIT),
                **(parameters or {}),
                **({} if job is None else {custom_job.JOB_KEY: job}),
                model=types.Channel(type=standard_artifacts.Model),
                model_run=types.Channel(type=standard_artifacts.ModelRun),
            ),
            custom_executor_spec=None if job is None else executor_spec.ExecutorClassSpec(custom_job.Executor),
        )
