"""Writes `run.resources` into a compiled pipeline, as its target takes them."""

import difflib
from collections.abc import Mapping
from typing import Any

from pipelines.runners.target import Target
from schemas.config.run import ACCELERATOR_VARIABLE, ResourcesConfig, RunConfig
from schemas.errors import ConfigError


def require_resources(run: RunConfig, name: str, target: Target) -> None:
    """Requires resources that the target has, by its own names.

    Args:
        run: its `resources`.
        name: value of `--runner`, for messages.
        target: where the pipeline will run.

    Raises:
        ConfigError: nodes on Vertex, or an accelerator with a name of the other target.
    """
    for component, resources in sorted(run.resources.items()):
        for key in ("node_selector", "tolerations"):
            if getattr(resources, key) and not target.has_nodes:
                raise ConfigError(
                    f"run.resources.{component}.{key}: {name.capitalize()} has no nodes to choose from. Remove it."
                )
        accelerator = resources.accelerator
        if accelerator is not None and not target.accelerators.fullmatch(accelerator):
            raise ConfigError(
                f"run.resources.{component}.accelerator = {accelerator}: --runner {name} has no accelerator of that "
                f"name. Set it to one such as {target.accelerator_examples}."
            )


def add_resources(job: dict[str, Any], run: RunConfig) -> dict[str, Any] | None:
    """Adds resources and retries to the tasks of a compiled pipeline.

    Args:
        job: compiled `PipelineJob` as JSON; changed here.
        run: its `resources`, see `require_resources`.

    Returns:
        Second document of a Kubeflow pipeline: what its containers need of Kubernetes alone.
        None: nothing.

    Raises:
        ConfigError: an unknown component.
    """
    tasks = job["pipelineSpec"]["root"]["dag"]["tasks"]
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    kubernetes: dict[str, Any] = {}
    for name, resources in sorted(run.resources.items()):
        if name not in tasks:
            [nearest] = difflib.get_close_matches(name, sorted(tasks), 1, 0.0)
            raise ConfigError(f"run.resources.{name}: no such component. The nearest is {nearest}.")
        label = job["pipelineSpec"]["components"][tasks[name]["componentRef"]["name"]]["executorLabel"]
        specified = _container_resources(resources)
        if specified:
            executors[label]["container"]["resources"] = specified
        if resources.accelerator is not None:
            variable = {"name": ACCELERATOR_VARIABLE, "value": resources.accelerator}
            executors[label]["container"]["env"] = [variable]
        if resources.retries:
            tasks[name]["retryPolicy"] = _retry_policy(resources)
        if placement := _placement(resources):
            kubernetes[label] = placement
    if not kubernetes:
        return None
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": kubernetes}}}}


def _container_resources(resources: ResourcesConfig) -> dict[str, Any]:
    specified: dict[str, Any] = {}
    if resources.cpu is not None:
        specified["cpuLimit"] = resources.cpu
    if resources.memory_gb is not None:
        specified["memoryLimit"] = resources.memory_gb
    if resources.accelerator is not None:
        specified["accelerator"] = {"type": resources.accelerator, "count": str(resources.accelerator_count)}
    return specified


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
