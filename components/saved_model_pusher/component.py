"""Component spec of the pusher."""

from tfx import types
from tfx.dsl.components.base import base_component, executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.saved_model_pusher.executor import PUSH_DIRECTORY_KEY, REGISTRATION_KEY, Executor
from components.saved_model_pusher.model_registry import Registration


class SavedModelPusherSpec(ComponentSpec):
    """Model and its blessing in, PushedModel out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        PUSH_DIRECTORY_KEY: ExecutionParameter(type=str),
        REGISTRATION_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS = {  # noqa: RUF012
        keys.MODEL_KEY: ChannelParameter(type=standard_artifacts.Model),
        keys.MODEL_BLESSING_KEY: ChannelParameter(type=standard_artifacts.ModelBlessing, optional=True),
    }
    OUTPUTS = {keys.PUSHED_MODEL_KEY: ChannelParameter(type=standard_artifacts.PushedModel)}  # noqa: RUF012


class SavedModelPusher(base_component.BaseComponent):
    """Pushes a blessed SavedModel to `push_directory/<version>`, atomically.

    With TFX's caching, the same model and blessing are pushed once.
    """

    SPEC_CLASS = SavedModelPusherSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(Executor)

    def __init__(
        self,
        *,
        model: types.BaseChannel,
        push_directory: str | RuntimeParameter,
        model_blessing: types.BaseChannel | None = None,
        registration: Registration | None = None,
    ) -> None:
        """Wires the component.

        Args:
            model: channel of a `Model`.
            push_directory: folder that a model server watches.
            model_blessing: channel of a `ModelBlessing`; None: push every model.
            registration: registers pushed versions with Vertex AI; None: does not.
        """
        super().__init__(
            SavedModelPusherSpec(
                model=model,
                model_blessing=model_blessing,
                push_directory=push_directory,
                **({} if registration is None else {REGISTRATION_KEY: registration.model_dump_json()}),
                pushed_model=types.Channel(type=standard_artifacts.PushedModel),
            )
        )
