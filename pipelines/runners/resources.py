"""Writes `run.resources` into a compiled pipeline, as its target takes them."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from schemas.config.run import ResourcesConfig, RunConfig
from schemas.errors import ConfigError

_VERTEX_ACCELERATORS = "NVIDIA_L4, NVIDIA_TESLA_A100"  # examples for a message


def add_resources(job: dict[str, Any], run: RunConfig, target: Literal["kubeflow", "vertex"]) -> dict[str, Any] | None:
    """Adds resources and retries to the tasks of a compiled pipeline.

    Args:
        job: compiled `PipelineJob` as JSON; changed here.
        run: its `resources`.
        target: where the pipeline will run.

    Returns:
        Second document of a Kubeflow pipeline: what its containers need of Kubernetes alone.
        None: nothing.

    Raises:
        ConfigError: an unknown component, or a resource that the target does not have.
    """
    tasks = job["pipelineSpec"]["root"]["dag"]["tasks"]
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    kubernetes: dict[str, Any] = {}
    for name, resources in sorted(run.resources.items()):
        if name not in tasks:
            [nearest] = difflib.get_close_matches(name, sorted(tasks), 1, 0.0)
            raise ConfigError(f"run.resources.{name}: no such component. The nearest is {nearest}.")
        label = job["pipelineSpec"]["components"][tasks[name]["componentRef"]["name"]]["executorLabel"]
        specified = _container_resources(name, resources, target)
        if specified:
            executors[label]["container"]["resources"] = specified
        if resources.retries:
            tasks[name]["retryPolicy"] = _retry_policy(resources)
        if placement := _placement(resources):
            kubernetes[label] = placement
    if not kubernetes:
        return None
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": kubernetes}}}}


def _container_resources(name: str, resources: ResourcesConfig, target: str) -> dict[str, Any]:
    specified: dict[str, Any] = {}
    if resources.cpu is not None:
        specified["cpuLimit"] = resources.cpu
    if resources.memory_gb is not None:
        specified["memoryLimit"] = resources.memory_gb
    if resources.accelerator is not None:
        specified["accelerator"] = {"type": resources.accelerator, "count": str(resources.accelerator_count)}
    if target == "vertex":
        _require_vertex(name, resources)
    return specified


def _require_vertex(name: str, resources: ResourcesConfig) -> None:
    for key in ("node_selector", "tolerations"):
        if getattr(resources, key):
            raise ConfigError(f"run.resources.{name}.{key}: Vertex has no nodes to choose from. Remove it.")
    accelerator = resources.accelerator
    if accelerator is not None and not accelerator.replace("_", "").isupper():
        raise ConfigError(
            f"run.resources.{name}.accelerator = {accelerator}: not one of Vertex, which are named as in "
            f"{_VERTEX_ACCELERATORS}."
        )


def _retry_policy(resources: ResourcesConfig) -> dict[str, Any]:
    return {
        "maxRetryCount": resources.retries,
        "backoffDuration": f"{resources.retry_seconds}s",
        "backoffFactor": 2.0,
    }


def _placement(resources: ResourcesConfig) -> Mapping[str, Any]:
    placement: dict[str, Any] = {}
    if resources.node_selector:
        placement["nodeSelector"] = {"labels": dict(resources.node_selector)}
    if resources.tolerations:
        placement["tolerations"] = [dict(one) for one in resources.tolerations]
    return placement
