"""The trainer's contract: what goes in and what comes out."""

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.detection_trainer.executor import RUN_ROOT_KEY, Executor
from components.detection_trainer.identity import (
    FIRST_WEIGHTS_KEY,
    SETTINGS_KEY,
    SPLIT_KEY,
    VALIDATION_SPLIT_KEY,
    training_properties,
)
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config


class DetectionTrainerSpec(ComponentSpec):
    """Examples, and perhaps a Model to start from, in; Model and ModelRun out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SETTINGS_KEY: ExecutionParameter(type=str),
        RUN_ROOT_KEY: ExecutionParameter(type=str),
        SPLIT_KEY: ExecutionParameter(type=str),
        FIRST_WEIGHTS_KEY: ExecutionParameter(type=str),
        VALIDATION_SPLIT_KEY: ExecutionParameter(type=str),
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

    `model` holds the SavedModel of the weights that `train.ema` says (where TFX looks for
    one) and the run's configuration; `model_run` the checkpoints and TensorBoard logs.  While
    it trains, both lie below `<run_root>/training/`, so that a run that was killed
    goes on from its newest checkpoint.
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
    ) -> None:
        """Wires the component.

        Args:
            examples: channel of one `Examples`, or of one a span, of the same categories.
            config: its `model` and `train` sections decide whether an earlier result
                is reused; the others, and of `train` the keys `WITHOUT_EFFECT`, may
                change without training anew.
            run_root: folder of the run; holds its config.yaml.
            split: that is trained on.
            base_model: channel of the `Model` to start from, as `train.init` says, or of none.

        Raises:
            DataError: there are no weights at `train.init.checkpoint`.
        """
        super().__init__(
            DetectionTrainerSpec(
                examples=examples,
                base_model=base_model,
                run_root=run_root,
                **training_properties(config, split),
                model=types.Channel(type=standard_artifacts.Model),
                model_run=types.Channel(type=standard_artifacts.ModelRun),
            )
        )
