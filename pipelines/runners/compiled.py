"""Compiles the pipeline for the platforms in `TARGETS`."""

import re
from collections.abc import Mapping
from typing import Any

from pipelines.runners.kubeflow import Kubeflow
from pipelines.runners.resources import add_resources, require_resources
from pipelines.runners.target import Target
from pipelines.runners.vertex import Vertex
from schemas.config.config import Config
from schemas.errors import ConfigError

TARGETS: Mapping[str, type[Target]] = {"kubeflow": Kubeflow, "vertex": Vertex}  # by value of --runner

_NAME = re.compile("[a-z0-9][a-z0-9-]{0,127}")
_EXAMPLE_GEN, _TRAINER = "CocoExampleGen", "DetectionTrainer"
_DRIVER = ["python", "-m", "components.coco_example_gen.spans.kubeflow_driver"]
# They read the history of the pipeline, which a cache does not see.
_READ_HISTORY = ("training_window", "model_to_start_from", "previous_blessed_model", "RunReport")


def compile_pipeline(config: Config, target: str) -> str:
    """Compiles the pipeline; nothing but the configuration and the files of `evaluate.eval_config` is read.

    Args:
        config: complete configuration; its paths are those of the containers.
        target: key of `TARGETS`.

    Returns:
        Text of the file to submit, the same for the same configuration.

    Raises:
        ConfigError: no image, no data set, or a name, path or resource that the target does not take.
    """
    require_compilable(config, target)
    platform = TARGETS[target]
    job, defaults = _compile(config, str(config.run.image), platform)
    spec = job["pipelineSpec"]
    executors = spec["deploymentSpec"]["executors"]
    executors[f"{_EXAMPLE_GEN}_executor"]["container"]["lifecycle"]["preCacheCheck"]["command"] = _DRIVER
    _leave_uncached(spec["root"]["dag"]["tasks"], config, platform)
    return platform.write(job, defaults, add_resources(job, config.run))


def require_compilable(config: Config, target: str) -> None:
    """Checks all that can be checked before the 20-second import of TFX.

    Raises:
        ConfigError: no image, or a name or resource that the target does not take.
    """
    if config.run.image is None:
        raise ConfigError(
            f"--runner {target} needs the image of the containers: --set run.image=REGISTRY/cocoflow:TAG "
            "(an image with this installation)."
        )
    if not _NAME.fullmatch(config.run.name):
        raise ConfigError(
            f"run.name = {config.run.name}: a compiled pipeline is named with lower-case letters, digits and "
            "hyphens, at most 128, and no hyphen first. Choose another name."
        )
    require_resources(config.run, target, TARGETS[target])


def require_ending(path: str, target: str) -> None:
    """Requires the file ending by which clients of the target recognize the format.

    Raises:
        ConfigError: another ending.
    """
    suffix = TARGETS[target].suffix
    if not path.endswith(suffix):
        raise ConfigError(f"--output {path}: a pipeline for {target} is a {suffix} file. Name it so.")


def _compile(config: Config, image: str, platform: type[Target]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns TFX's job and the defaults of its parameters."""
    from tfx.orchestration.data_types import RuntimeParameter
    from tfx.orchestration.kubeflow.v2.kubeflow_v2_dag_runner import KubeflowV2DagRunner, KubeflowV2DagRunnerConfig

    from pipelines.pipeline import create_pipeline

    pipeline = create_pipeline(config, compiled=True, custom_jobs=platform.runs_custom_jobs)
    defaults = {
        value.name: value.default
        for node in pipeline.components
        for value in node.exec_properties.values()
        if isinstance(value, RuntimeParameter)
    }
    settings = KubeflowV2DagRunnerConfig(default_image=image, use_pipeline_spec_2_1=platform.schema_2_1)
    return KubeflowV2DagRunner(settings).run(pipeline, parameter_values=defaults, write_out=False), defaults


def _leave_uncached(tasks: Mapping[str, dict[str, Any]], config: Config, platform: type[Target]) -> None:
    """Removes the caching of tasks that read more than their inputs and parameters."""
    from detection.pretrained.choice import configured_weights

    names = set(_READ_HISTORY)
    if not platform.runs_drivers:
        names.add(_EXAMPLE_GEN)  # only its driver sees changed data
    if any(configured_weights(config)):
        names.add(_TRAINER)
    for name in names & tasks.keys():
        tasks[name].pop("cachingOptions", None)
