"""Component spec of the pusher."""

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.history.driver import Driver
from components.history.records import RUN_ROOT_KEY
from components.saved_model_pusher.executor import (
    CONFIG_KEY,
    EVALUATION_KEY,
    PUSH_DIRECTORY_KEY,
    REGISTRATION_KEY,
    SCORE_THRESHOLDS_KEY,
    Executor,
)
from components.saved_model_pusher.model_registry import Registration
from schemas.config.config import PushConfig


class SavedModelPusherSpec(ComponentSpec):
    """Model, its blessing and its evaluation in, PushedModel out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        PUSH_DIRECTORY_KEY: ExecutionParameter(type=str),
        CONFIG_KEY: ExecutionParameter(type=str),
        SCORE_THRESHOLDS_KEY: ExecutionParameter(type=int),
        RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True),
        REGISTRATION_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS = {  # noqa: RUF012
        keys.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        keys.MODEL_BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing, optional=True),
        EVALUATION_KEY: ChannelParameter(type=standard_artifacts.ModelEvaluation, optional=True),
    }
    OUTPUTS = {keys.PUSHED_MODEL_KEY: ChannelParameter(type=standard_artifacts.PushedModel)}  # noqa: RUF012


class SavedModelPusher(base_component.BaseComponent):
    """Validates a blessed SavedModel, and pushes it to `push_directory/<version>`, atomically.

    With TFX's caching, the same model and blessing are pushed once.
    """

    SPEC_CLASS = SavedModelPusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        *,
        model: types.BaseChannel,
        push_directory: str | RuntimeParameter,
        model_blessing: types.BaseChannel | None = None,
        model_evaluation: types.BaseChannel | None = None,
        config: PushConfig | None = None,
        score_thresholds: bool = False,
        run_root: str | None = None,
        registration: Registration | None = None,
    ) -> None:
        """Wires the component.

        Args:
            model: channel of a `Model`.
            push_directory: folder that a model server watches.
            model_blessing: channel of a `ModelBlessing`; None: push every model.
            model_evaluation: channel of the model's `ModelEvaluation`, by `CocoEvaluator` with
                `config.sample_images` served images; None: no validation, no warm-up requests and no
                score thresholds.
            config: options of the push; default `PushConfig()`.  Its `directory` is not read here.
            score_thresholds: adds the score thresholds of the evaluation to the pushed model.
            run_root: folder of the run, with the history; None: nothing is recorded.
            registration: registers pushed versions with Vertex AI; None: does not.
        """
        config = config or PushConfig()
        super().__init__(
            SavedModelPusherSpec(
                model=model,
                model_blessing=model_blessing,
                model_evaluation=model_evaluation,
                push_directory=push_directory,
                run_root=run_root,
                config=config.model_dump_json(exclude={"directory", "vertex"}),
                score_thresholds=int(score_thresholds),
                **({} if registration is None else {REGISTRATION_KEY: registration.model_dump_json()}),
                pushed_model=types.Channel(type=standard_artifacts.PushedModel),
            )
        )
