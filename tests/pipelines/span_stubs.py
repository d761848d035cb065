"""The example gen, the window of spans, and a consumer that does nothing but be there."""

from pathlib import Path
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.orchestration import metadata, pipeline
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec

from components.coco_example_gen.component import CocoExampleGen
from pipelines.resolvers.span_window import spans_to_train_on


class TrainerExecutor(base_executor.BaseExecutor):
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        [model] = output_dict["model"]
        spans = [artifact.get_int_custom_property("span") for artifact in input_dict["examples"]]
        model.set_string_custom_property("spans", ",".join(map(str, sorted(spans, reverse=True))))


class TrainerSpec(ComponentSpec):
    PARAMETERS = {}  # type: ignore[var-annotated]  # noqa: RUF012
    INPUTS = {"examples": ChannelParameter(type=standard_artifacts.Examples)}  # noqa: RUF012
    OUTPUTS = {"model": ChannelParameter(type=standard_artifacts.Model)}  # noqa: RUF012


class StubTrainer(base_component.BaseComponent):
    SPEC_CLASS = TrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TrainerExecutor)

    def __init__(self, *, examples: types.BaseChannel) -> None:
        super().__init__(TrainerSpec(examples=examples, model=types.Channel(type=standard_artifacts.Model)))


def create_pipeline(root: Path, *, window: int, **arguments: Any) -> pipeline.Pipeline:
    example_gen = CocoExampleGen(**arguments)
    resolver = spans_to_train_on(example_gen.outputs["examples"], spans=window)
    trainer = StubTrainer(examples=resolver.outputs["examples"])
    return pipeline.Pipeline(
        pipeline_name="spans",
        pipeline_root=str(root / "artifacts"),
        components=[example_gen, resolver, trainer],
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(str(root / "metadata.sqlite")),
    )
