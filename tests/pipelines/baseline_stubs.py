"""Trainer and evaluator that do nothing but what selecting a baseline needs."""

from typing import Any

from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.history.driver import Driver
from components.history.execution import recorded, resolved
from components.saved_model_pusher.component import SavedModelPusher
from components.selection import previous_blessed_model
from detection.storage.atomic import write_text
from detection.storage.paths import join
from schemas.config.config import PushConfig


def write_model(folder: str, content: str) -> None:
    """The files that every Model artifact of ours has."""
    for name in ("Format-Serving/variables/variables.index", "config.yaml", "Format-Serving/saved_model.pb"):
        write_text(join(folder, name), content)


class TrainerExecutor(base_executor.BaseExecutor):
    @recorded("DetectionTrainer")
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        [model] = output_dict["model"]
        write_model(model.uri, str(exec_properties["seed"]))
        model.set_string_custom_property("identity", f"seed {exec_properties['seed']}")


class TrainerSpec(ComponentSpec):
    PARAMETERS = {"seed": ExecutionParameter(type=int), "run_root": ExecutionParameter(type=str)}  # noqa: RUF012
    INPUTS: dict[str, ChannelParameter] = {}  # noqa: RUF012
    OUTPUTS = {"model": ChannelParameter(type=standard_artifacts.Model)}  # noqa: RUF012


class StubTrainer(base_component.BaseComponent):
    SPEC_CLASS = TrainerSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(TrainerExecutor)
    DRIVER_CLASS = Driver

    def __init__(self, *, seed: int, run_root: str) -> None:
        super().__init__(TrainerSpec(seed=seed, run_root=run_root, model=types.Channel(type=standard_artifacts.Model)))
        self.with_id("DetectionTrainer")


class EvaluatorExecutor(base_executor.BaseExecutor):
    @recorded("CocoEvaluator")
    def Do(self, input_dict: Any, output_dict: Any, exec_properties: Any) -> None:  # noqa: N802
        [blessing] = output_dict["blessing"]
        blessing.set_int_custom_property("blessed", exec_properties["blessed"])
        write_text(join(blessing.uri, "BLESSED" if exec_properties["blessed"] else "NOT_BLESSED"), "")
        baselines = ",".join(baseline.uri for baseline in resolved(input_dict["baseline_model"]))
        write_text(join(output_dict["evaluation"][0].uri, "baseline"), baselines)


class EvaluatorSpec(ComponentSpec):
    PARAMETERS = {"blessed": ExecutionParameter(type=int), "run_root": ExecutionParameter(type=str)}  # noqa: RUF012
    INPUTS = {  # noqa: RUF012
        "model": ChannelParameter(type=standard_artifacts.Model),
        "baseline_model": ChannelParameter(type=standard_artifacts.Model, optional=True),
    }
    OUTPUTS = {  # noqa: RUF012
        "blessing": ChannelParameter(type=standard_artifacts.ModelBlessing),
        "evaluation": ChannelParameter(type=standard_artifacts.ModelEvaluation),
    }


class StubEvaluator(base_component.BaseComponent):
    SPEC_CLASS = EvaluatorSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(EvaluatorExecutor)
    DRIVER_CLASS = Driver

    def __init__(
        self, *, model: types.BaseChannel, baseline_model: types.BaseChannel, blessed: int, run_root: str
    ) -> None:
        super().__init__(
            EvaluatorSpec(
                model=model,
                baseline_model=baseline_model,
                blessed=blessed,
                run_root=run_root,
                blessing=types.Channel(type=standard_artifacts.ModelBlessing),
                evaluation=types.Channel(type=standard_artifacts.ModelEvaluation),
            )
        )
        self.with_id("CocoEvaluator")


def make_nodes(root: str, *, seed: int, blessed: int, push: PushConfig | None = None) -> list[Any]:
    trainer = StubTrainer(seed=seed, run_root=root)
    model = trainer.outputs["model"]
    baseline = previous_blessed_model(model, run_root=root)
    evaluator = StubEvaluator(model=model, baseline_model=baseline.outputs["model"], blessed=blessed, run_root=root)
    pusher = SavedModelPusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        push_directory=join(root, "serving"),
        config=push,
        run_root=root,
    )
    return [trainer, baseline, evaluator, pusher]
