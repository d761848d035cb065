"""The trainer's contract: inputs, outputs and parameters."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.detection_trainer import custom_job
from components.detection_trainer.executor import Executor
from components.detection_trainer.identity import (
    CONFIG_KEY,
    INITIAL_WEIGHTS_KEY,
    OTHER_SETTINGS_KEY,
    REMOTE_PARAMETERS,
    SPLIT_KEY,
    VALIDATION_SPLIT_KEY,
    remote_properties,
    training_properties,
)
from components.history.records import RUN_ROOT_KEY
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS


class Remote(NamedTuple):
    """What a training of a compiled pipeline has in place of files of the run's folder.

    parameters: values of parameters of `schemas.config.runtime_parameters`, by name.
    job: `custom_job.JOB_KEY` of a Vertex custom job that trains; None: the container does.
    """

    parameters: Mapping[str, RuntimeParameter]
    job: str | None = None

    def properties(self, config: Config, split: str) -> dict[str, Any]:
        """Returns the execution parameters."""
        given = {name: self.parameters[name] for name in REMOTE_PARAMETERS}
        return {**remote_properties(config, split), custom_job.JOB_KEY: self.job, **given}


class DetectionTrainerSpec(ComponentSpec):
    """Inputs: Examples, and optionally a Model to start from; outputs: Model and ModelRun."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        CONFIG_KEY: ExecutionParameter(type=str),
        RUN_ROOT_KEY: ExecutionParameter(type=str),
        SPLIT_KEY: ExecutionParameter(type=str),
        INITIAL_WEIGHTS_KEY: ExecutionParameter(type=str, optional=True),
        VALIDATION_SPLIT_KEY: ExecutionParameter(type=str, optional=True),
        OTHER_SETTINGS_KEY: ExecutionParameter(type=str, optional=True),
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
    training, both lie below `<run_root>/training/`, so that a killed run resumes from its
    newest checkpoint.
    """

    SPEC_CLASS = DetectionTrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        *,
        examples: types.BaseChannel,
        config: Config,
        run_root: str,
        split: str = TRAIN_SPLIT,
        base_model: types.BaseChannel | None = None,
        remote: Remote | None = None,
    ) -> None:
        """Creates the component.

        Args:
            examples: channel of one `Examples`, or of one per span, with the same categories.
            config: its sections `model` and `train` decide whether an earlier result is
                reused; the other sections, and the keys `WITHOUT_EFFECT` of `train`, may
                change without training again.
            run_root: folder of the run, with its config.yaml and the history.
            split: name of the split to train on.
            base_model: channel of the `Model` to start from, see `train.init`; may be empty.
            remote: for a compiled pipeline, whose trainer shares no file with this process.

        Raises:
            DataError: `train.init.checkpoint` has no weights.
        """
        super().__init__(
            DetectionTrainerSpec(
                examples=examples,
                base_model=base_model,
                run_root=run_root,
                **(training_properties(config, split) if remote is None else remote.properties(config, split)),
                model=types.Channel(type=standard_artifacts.Model),
                model_run=types.Channel(type=standard_artifacts.ModelRun),
            ),
            custom_executor_spec=executor_spec.ExecutorClassSpec(custom_job.Executor)
            if remote and remote.job
            else None,
        )
