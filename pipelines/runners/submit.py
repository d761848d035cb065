"""Compiles the pipeline and submits it with the client of its target."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detection.storage.atomic import write_text
from detection.storage.json_files import read_json
from pipelines.console import quiet_run
from pipelines.folders import scratch_folder
from pipelines.runners.compiled import TARGETS, Target, compile_pipeline
from schemas.config.config import Config
from schemas.config.run import VertexConfig
from schemas.errors import CocoflowError


def compile_and_submit(config: Config, target: Target, *, verbose: bool = False) -> str:
    """Compiles the pipeline and submits it; does not wait for its end.

    Args:
        config: whole configuration; its paths are those of the containers.
        target: where the pipeline runs.
        verbose: send the libraries' logs to the terminal.

    Returns:
        Name or address of the run.

    Raises:
        ConfigError: see `compile_pipeline`.
        CocoflowError: the client has no credentials, or the service refused the pipeline.
    """
    with scratch_folder() as folder, quiet_run(None, verbose=verbose):
        path = folder / f"{config.run.name}{TARGETS[target]}"
        write_text(path, compile_pipeline(config, target))
        try:
            return _CLIENTS[target](config, path)
        except CocoflowError:
            raise
        except Exception as error:  # of three libraries, with no common class
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise CocoflowError(
                f"--runner {target}: the pipeline was compiled, but could not be submitted: {reason}. {_ADVICE[target]}"
            ) from error


def _submit_to_vertex(config: Config, path: Path) -> str:
    from google.cloud import aiplatform

    place = config.run.vertex
    if place.persistent_resource.name is not None:
        return _submit_to_persistent_resource(config, path)
    job = aiplatform.PipelineJob(
        display_name=config.run.name, template_path=str(path), project=place.project, location=place.region
    )
    job.submit(service_account=place.service_account)
    return str(job.resource_name)


def _submit_to_persistent_resource(config: Config, path: Path) -> str:
    """Submits with the v1beta1 API: only its pipelines have a default runtime."""
    from google.cloud import aiplatform_v1beta1
    from google.protobuf import json_format

    vertex = config.run.vertex
    detail = persistent_resource_detail(vertex)
    project = vertex.project or detail["persistentResourceName"].split("/")[1]
    job = read_json(path)
    job["displayName"] = config.run.name
    job["runtimeConfig"]["defaultRuntime"] = {"persistentResourceRuntimeDetail": detail}
    if vertex.service_account is not None:
        job["serviceAccount"] = vertex.service_account
    message = aiplatform_v1beta1.PipelineJob()
    json_format.ParseDict(job, message._pb)
    client = aiplatform_v1beta1.PipelineServiceClient(
        client_options={"api_endpoint": f"{vertex.region}-aiplatform.googleapis.com"}
    )
    created = client.create_pipeline_job(
        parent=f"projects/{project}/locations/{vertex.region}",
        pipeline_job=message,
        pipeline_job_id=f"{job['pipelineSpec']['pipelineInfo']['name']}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}",
    )
    return str(created.name)


def persistent_resource_detail(vertex: VertexConfig) -> dict[str, Any]:
    """Returns the JSON of v1beta1's `PersistentResourceRuntimeDetail`."""
    resource = vertex.persistent_resource
    name = str(resource.name)
    if "/" not in name:
        name = f"projects/{vertex.project}/locations/{vertex.region}/persistentResources/{name}"
    return {
        "persistentResourceName": name,
        "taskResourceUnavailableWaitTimeMs": round(resource.max_wait_minutes * 60_000),
        "taskResourceUnavailableTimeoutBehavior": "FAIL" if resource.on_timeout == "fail" else "FALL_BACK_TO_ON_DEMAND",
    }


def _submit_to_kubeflow(config: Config, path: Path) -> str:
    import kfp

    place = config.run.kubeflow
    client = kfp.Client(host=place.host, namespace=place.namespace or "kubeflow")
    result = client.create_run_from_pipeline_package(
        str(path), run_name=config.run.name, experiment_name=config.run.name, namespace=place.namespace
    )
    return str(result.run_id)


_CLIENTS: Mapping[Target, Callable[[Config, Path], str]] = {
    "vertex": _submit_to_vertex,
    "kubeflow": _submit_to_kubeflow,
}
_ADVICE: Mapping[Target, str] = {
    "vertex": "Log in with `gcloud auth application-default login`, and check run.vertex.project and "
    "run.vertex.region; or submit the file of `compile` elsewhere.",
    "kubeflow": "Check run.kubeflow.host and the login to it; or upload the file of `compile` elsewhere.",
}
