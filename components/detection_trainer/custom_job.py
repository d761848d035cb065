"""Trains in a Vertex custom job: several machines with GPUs, TPUs, spot capacity.

The component's container writes the execution as a request, submits the job and waits; each machine
of the job runs `python -m components.detection_trainer.custom_job FOLDER`, which trains as the
component itself would.  The chief writes the properties of the outputs as the answer.
"""

import argparse
import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.detection_trainer.executor import train_component
from components.detection_trainer.identity import REUSE_RULE
from components.history.execution import Artifacts, recorded
from components.vertex_errors import VertexLocation, translate_errors
from detection.storage.atomic import write_json
from detection.storage.json_files import read_json
from detection.storage.paths import join
from detection.training.distributed.cluster import cluster_from_environment
from schemas.config.run import ACCELERATOR_VARIABLE, TrainerJobConfig, VertexConfig, WorkerPoolConfig
from schemas.errors import CocoflowError

JOB_KEY = "custom_job"  # execution parameter, JSON: {"image", "vertex": VertexConfig}
_REQUEST, _ANSWER = "request.json", "answer.json"
_NAME = "detection-trainer"
_PROGRAM = ["python", "-m", "components.detection_trainer.custom_job"]

_LOGGER = logging.getLogger("cocoflow.trainer")


class Executor(base_executor.BaseExecutor):
    """Submits the training as a custom job, and takes over its results."""

    @recorded("DetectionTrainer", REUSE_RULE)
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            CocoflowError: the job failed, or ended without an answer.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        settings = json.loads(exec_properties[JOB_KEY])
        folder = artifact_utils.get_single_uri(output_dict[keys.MODEL_RUN_KEY]).rstrip("/") + ".job"
        write_json(
            join(folder, _REQUEST),
            {
                "inputs": artifact_utils.jsonify_artifact_dict(input_dict),
                "outputs": artifact_utils.jsonify_artifact_dict(output_dict),
                "properties": {key: value for key, value in exec_properties.items() if key != JOB_KEY},
            },
        )
        _run_job(VertexConfig.model_validate(settings["vertex"]), settings["image"], folder)
        trained = artifact_utils.parse_artifact_dict(read_json(join(folder, _ANSWER)))
        for key, [artifact] in output_dict.items():
            artifact.set_mlmd_artifact(trained[key][0].mlmd_artifact)


def worker_pool_specs(job: TrainerJobConfig, *, image: str, folder: str) -> list[dict[str, Any]]:
    """Returns the worker pools as Vertex's CustomJob takes them, the chief's first.

    Args:
        job: machines of the job.
        image: container image with this installation.
        folder: URI of the folder with the request.
    """
    pools = [job.chief, *([job.workers] if job.workers.machine_type else [])]
    return [
        {
            "machine_spec": {
                "machine_type": pool.machine_type,
                "accelerator_type": pool.accelerator,
                "accelerator_count": pool.accelerator and pool.accelerator_count,
                "tpu_topology": pool.tpu_topology,
            },
            "replica_count": pool.replicas,
            "container_spec": {"image_uri": image, "command": _PROGRAM, "args": [folder], "env": _environment(pool)},
        }
        for pool in pools
    ]


def _environment(pool: WorkerPoolConfig) -> list[dict[str, str]]:
    accelerator = pool.accelerator or (pool.tpu_topology and pool.machine_type)
    return [{"name": ACCELERATOR_VARIABLE, "value": accelerator}] if accelerator else []


def _run_job(vertex: VertexConfig, image: str, folder: str) -> None:
    """Submits the job and waits for its end."""
    job, place = vertex.trainer_job, VertexLocation(vertex.project or "", vertex.region)
    look_for = f"a job named {_NAME} that still trains"
    with translate_errors("train in a custom job", place, look_for=look_for):
        from google.cloud import aiplatform  # takes some seconds

        custom_job = aiplatform.CustomJob(
            display_name=_NAME,
            worker_pool_specs=worker_pool_specs(job, image=image, folder=folder),
            project=vertex.project,
            location=vertex.region,
            staging_bucket=folder,
            labels=dict(vertex.labels),
            encryption_spec_key_name=vertex.encryption_key,
        )
        try:
            custom_job.run(
                service_account=vertex.service_account,
                network=vertex.network,
                restart_job_on_worker_restart=True,
                scheduling_strategy=getattr(aiplatform.gapic.Scheduling.Strategy, job.strategy.upper()),
                max_wait_duration=None if job.max_wait_hours is None else int(job.max_wait_hours * 3600),
                persistent_resource_id=job.persistent_resource,
            )
        except RuntimeError as error:  # the client's, when the job has failed
            raise CocoflowError(
                f"the custom job that trains has failed: {error}. Its own log has the reason; started again, the "
                "training resumes from its newest checkpoint."
            ) from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one machine of a custom job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="URI of the folder with the request")
    folder = parser.parse_args(arguments).folder
    request = read_json(join(folder, _REQUEST))
    outputs = artifact_utils.parse_artifact_dict(request["outputs"])
    inputs = artifact_utils.parse_artifact_dict(request["inputs"])
    train_component(inputs, outputs, request["properties"])
    cluster = cluster_from_environment(os.environ)
    if cluster is None or cluster.is_chief:
        write_json(join(folder, _ANSWER), artifact_utils.jsonify_artifact_dict(outputs))
        _LOGGER.info("the chief has answered")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
