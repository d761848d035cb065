"""Writes `run.resources` into a compiled pipeline, as its target takes them."""

import difflib
from typing import Any

from pipelines.runners.target import Target
from schemas.config.run import ACCELERATOR_VARIABLE, RunConfig
from schemas.errors import ConfigError


def require_resources(run: RunConfig, name: str, target: type[Target]) -> None:
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
        container = executors[label]["container"]
        limits: dict[str, Any] = {"cpuLimit": resources.cpu, "memoryLimit": resources.memory_gb}
        if resources.accelerator is not None:
            limits["accelerator"] = {"type": resources.accelerator, "count": str(resources.accelerator_count)}
            container["env"] = [{"name": ACCELERATOR_VARIABLE, "value": resources.accelerator}]
        if specified := {key: limit for key, limit in limits.items() if limit is not None}:
            container["resources"] = specified
        if resources.retries:
            tasks[name]["retryPolicy"] = {
                "maxRetryCount": resources.retries,
                "backoffDuration": f"{resources.retry_seconds}s",
                "backoffFactor": 2.0,
            }
        placement: dict[str, Any] = {}
        if resources.node_selector:
            placement["nodeSelector"] = {"labels": dict(resources.node_selector)}
        if resources.tolerations:
            placement["tolerations"] = [dict(one) for one in resources.tolerations]
        if placement:
            kubernetes[label] = placement
    if not kubernetes:
        return None
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": kubernetes}}}}
