"""The example gen, the window of spans, and a consumer that does nothing but be there."""

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_example_gen.component import CocoExampleGen
from components.history.driver import Driver
from components.history.execution import recorded, resolved
from components.selection import training_window
from schemas.config.config import DataConfig


class TrainerExecutor(base_executor.BaseExecutor):
    @recorded("DetectionTrainer")
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        [model] = output_dict["model"]
        spans = [artifact.get_int_custom_property("span") for artifact in resolved(input_dict["examples"])]
        model.set_string_custom_property("spans", ",".join(map(str, sorted(spans, reverse=True))))


class TrainerSpec(ComponentSpec):
    PARAMETERS = {"run_root": ExecutionParameter(type=str)}  # noqa: RUF012
    INPUTS = {"examples": ChannelParameter(type=standard_artifacts.Examples)}  # noqa: RUF012
    OUTPUTS = {"model": ChannelParameter(type=standard_artifacts.Model)}  # noqa: RUF012


class StubTrainer(base_component.BaseComponent):
    SPEC_CLASS = TrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TrainerExecutor)
    DRIVER_CLASS = Driver

    def __init__(self, *, examples: types.BaseChannel, run_root: str) -> None:
        model = types.Channel(type=standard_artifacts.Model)
        super().__init__(TrainerSpec(examples=examples, run_root=run_root, model=model))
        self.with_id("DetectionTrainer")


def make_nodes(run_root: str, *, window: int, **arguments: Any) -> list[Any]:
    example_gen = CocoExampleGen(DataConfig.model_validate(arguments), run_root=run_root)
    selected = training_window(example_gen.outputs["examples"], run_root=run_root, spans=window)
    trainer = StubTrainer(examples=selected.outputs["examples"], run_root=run_root)
    return [example_gen, selected, trainer]
