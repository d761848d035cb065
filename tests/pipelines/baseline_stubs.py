"""Trainer and evaluator that do nothing but what resolving a baseline needs."""

from pathlib import Path
from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.orchestration import metadata, pipeline
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.saved_model_pusher.component import SavedModelPusher
from detection.storage.atomic import write_text
from detection.storage.paths import join
from pipelines.resolvers.baseline import previous_blessed_model
from schemas.config.config import PushConfig


def write_model(folder: str, content: str) -> None:
    """The files that every Model artifact of ours has."""
    for name in ("Format-Serving/variables/variables.index", "config.yaml", "Format-Serving/saved_model.pb"):
        write_text(join(folder, name), content)


class TrainerExecutor(base_executor.BaseExecutor):
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        write_model(output_dict["model"][0].uri, str(exec_properties["seed"]))


class TrainerSpec(ComponentSpec):
    PARAMETERS = {"seed": ExecutionParameter(type=int)}  # noqa: RUF012
    INPUTS: dict[str, ChannelParameter] = {}  # noqa: RUF012
    OUTPUTS = {"model": ChannelParameter(type=standard_artifacts.Model)}  # noqa: RUF012


class StubTrainer(base_component.BaseComponent):
    SPEC_CLASS = TrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TrainerExecutor)

    def __init__(self, *, seed: int) -> None:
        super().__init__(TrainerSpec(seed=seed, model=types.Channel(type=standard_artifacts.Model)))


class EvaluatorExecutor(base_executor.BaseExecutor):
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        [blessing] = output_dict["blessing"]
        [model] = input_dict["model"]
        blessing.set_int_custom_property("blessed", exec_properties["blessed"])
        blessing.set_int_custom_property("current_model_id", model.id)
        write_text(join(blessing.uri, "BLESSED" if exec_properties["blessed"] else "NOT_BLESSED"), "")
        baselines = input_dict.get("baseline_model", [])
        for baseline in baselines:
            blessing.set_int_custom_property("baseline_model_id", baseline.id)


class EvaluatorSpec(ComponentSpec):
    PARAMETERS = {"blessed": ExecutionParameter(type=int)}  # noqa: RUF012
    INPUTS = {  # noqa: RUF012
        "model": ChannelParameter(type=standard_artifacts.Model),
        "baseline_model": ChannelParameter(type=standard_artifacts.Model, optional=True),
    }
    OUTPUTS = {"blessing": ChannelParameter(type=standard_artifacts.ModelBlessing)}  # noqa: RUF012


class StubEvaluator(base_component.BaseComponent):
    SPEC_CLASS = EvaluatorSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(EvaluatorExecutor)

    def __init__(self, *, model: types.BaseChannel, baseline_model: types.BaseChannel, blessed: int) -> None:
        super().__init__(
            EvaluatorSpec(
                model=model,
                baseline_model=baseline_model,
                blessed=blessed,
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
            )
        )


def create_pipeline(
    root: str | Path, *, seed: int, blessed: int, database: Path | None = None, push: PushConfig | None = None
) -> pipeline.Pipeline:
    trainer = StubTrainer(seed=seed)
    baseline = previous_blessed_model(trainer.outputs["model"])
    evaluator = StubEvaluator(model=trainer.outputs["model"], baseline_model=baseline.outputs["model"], blessed=blessed)
    pusher = SavedModelPusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_directory=join(root, "serving"),
        config=push,
    )
    return pipeline.Pipeline(
        pipeline_name="baseline",
        pipeline_root=join(root, "artifacts"),
        components=[trainer, baseline, evaluator, pusher],
        enable_cache=True,
        metadata_connection_config=metadata.sqlite_metadata_connection_config(
            str(database or join(root, "metadata.sqlite"))
        ),
    )
