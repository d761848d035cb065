"""Submits to Vertex AI Pipelines: jobs, and schedules that create jobs.

The clients are the generated ones.  The SDK's `PipelineJob` and `PipelineJobSchedule` lack network attachments and
persistent resources, and take twice as long to import.  Over REST, unlike gRPC, they obey HTTPS_PROXY and
REQUESTS_CA_BUNDLE as Cloud Storage's client does.
"""

import contextlib
import importlib
import json
import re
import secrets
import time
import warnings
from collections.abc import Mapping
from typing import Any

from components.vertex_errors import VertexLocation, translate_errors
from detection.storage.gcs.client import require_credentials_file
from pipelines.runners.schedules import Recurring
from pipelines.runners.target import Target
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig
from schemas.config.run import VertexConfig
from schemas.errors import CocoflowError

_TIMEOUT = 120.0  # seconds without a response
_ID_CHARACTERS = 100  # Vertex allows 128, and a time follows
_ON_TIMEOUT = {"fail": "FAIL", "on_demand": "FALL_BACK_TO_ON_DEMAND"}
_UPDATABLE = ("cron", "start_time", "end_time", "max_run_count")


class Vertex(Target):
    """Vertex AI Pipelines of one project and region.

    Args:
        config: complete configuration.

    Raises:
        CocoflowError: no credentials, or no project.
    """

    suffix = ".json"
    schema_2_1 = False
    accelerators = re.compile(r"[A-Z0-9_]+")
    accelerator_examples = "NVIDIA_L4 or NVIDIA_TESLA_A100"
    has_nodes = False
    runs_drivers = True
    runs_custom_jobs = True

    def __init__(self, config: Config) -> None:
        self._name = config.run.name
        self._config = config.run.vertex
        self._place = VertexLocation(self._config.project or "", self._config.region)
        # Only v1beta1's jobs have a default runtime.
        version = "v1" if self._config.persistent_resource.name is None else "v1beta1"
        # The libraries warn of a user's own credentials and of their own future; neither fits a command line.
        with self._errors("connect"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import google.auth

            require_credentials_file()
            credentials, found = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
            api: Any = importlib.import_module(f"google.cloud.aiplatform_{version}")
            options = {"api_endpoint": self._place.host}
            arguments = {"credentials": credentials, "transport": "rest", "client_options": options}
            self._pipelines = api.PipelineServiceClient(**arguments)
            self._schedules = api.ScheduleServiceClient(**arguments)
            self._types = api.types
        if not (self._place.project or found):
            raise CocoflowError(
                "Vertex AI: the credentials name no project. Name one with --set run.vertex.project=PROJECT."
            )
        self._place = VertexLocation(self._place.project or str(found), self._place.region)

    @staticmethod
    def write(job: dict[str, Any], defaults: Mapping[str, Any], platform: Mapping[str, Any] | None) -> str:
        """Returns a compiled pipeline as JSON: the job, which has the values of parameters, and no platform."""
        return json.dumps(job, sort_keys=True, indent=2) + "\n"

    @staticmethod
    def check_schedule(schedule: ScheduleConfig) -> None:
        """Accepts every schedule."""

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Creates a pipeline job and returns its resource name."""
        number = job_id(self._name)
        request = {
            "parent": self._place.parent,
            "pipeline_job": self._job(compiled, parameters),
            "pipeline_job_id": number,
        }
        with self._errors(f"submit the pipeline {self._name}", f"the job {number} at {self.address(number)}"):
            return str(self._pipelines.create_pipeline_job(request, timeout=_TIMEOUT).name)

    def address(self, run: str) -> str:
        """Returns the address of a job's page in the console."""
        place = self._place
        return (
            f"https://console.cloud.google.com/vertex-ai/locations/{place.region}/pipelines/runs/"
            f"{run.rpartition('/')[2]}?project={place.project}"
        )

    def state(self, run: str) -> tuple[str, str]:
        """Returns the state of a job, and the error message."""
        with self._errors(f"look at the job {run}"):
            job = self._pipelines.get_pipeline_job(name=run, timeout=_TIMEOUT)
        return job.state.name.removeprefix("PIPELINE_STATE_"), job.error.message

    def create_schedule(
        self,
        name: str,
        compiled: str,
        parameters: Mapping[str, str | int],
        schedule: ScheduleConfig,
        replaced: Recurring | None,
    ) -> Recurring:
        """Creates a schedule, or updates the one that it replaces.

        Raises:
            CocoflowError: the old schedule has what the new one lacks and Vertex AI cannot remove; or see `Target`.
        """
        new = self._types.Schedule(
            display_name=name,
            cron=f"TZ={schedule.time_zone} {schedule.cron}",
            start_time=schedule.start_time,
            end_time=schedule.end_time,
            max_run_count=schedule.max_runs,
            # The first limits the starts of jobs, the second the jobs that have not ended.
            max_concurrent_run_count=schedule.max_concurrent_runs,
            max_concurrent_active_run_count=schedule.max_concurrent_runs,
            allow_queueing=schedule.allow_queueing,
            create_pipeline_job_request={"parent": self._place.parent, "pipeline_job": self._job(compiled, parameters)},
        )
        if replaced is not None:
            return self._update(replaced, new)
        request = {"parent": self._place.parent, "schedule": new}
        with self._errors(f"create the schedule {name}", f"a schedule named {name} with `schedule list`"):
            return _recurring(self._schedules.create_schedule(request, timeout=_TIMEOUT))

    def schedules(self, name: str | None = None) -> list[Recurring]:
        """Returns the schedules of pipelines in the project and region."""
        escaped = (name or "").replace("\\", "\\\\").replace('"', '\\"')
        wanted = "create_pipeline_job_request:*" if name is None else f'display_name="{escaped}"'
        request = {"parent": self._place.parent, "filter": wanted}
        with self._errors("list the schedules"):
            return [_recurring(one) for one in self._schedules.list_schedules(request, timeout=_TIMEOUT)]

    def change_schedule(self, action: str, schedule: Recurring) -> None:
        """Pauses, resumes or deletes a schedule."""
        with self._errors(f"{action} the schedule {schedule.name}"):
            getattr(self._schedules, f"{action}_schedule")(name=schedule.id, timeout=_TIMEOUT)

    def _errors(self, what: str, look_for: str | None = None) -> contextlib.AbstractContextManager[None]:
        return translate_errors(what, self._place, look_for=look_for)

    def _job(self, compiled: str, parameters: Mapping[str, str | int]) -> Any:
        job = pipeline_job(json.loads(compiled), self._config, parameters, project=self._place.project)
        return self._types.PipelineJob.from_json(json.dumps(job))

    def _update(self, replaced: Recurring, new: Any) -> Recurring:
        with self._errors(f"update the schedule {new.display_name}"):
            existing = self._schedules.get_schedule(name=replaced.id, timeout=_TIMEOUT)
            fixed = [key for key in ("end_time", "max_run_count") if getattr(existing, key) and not getattr(new, key)]
            if fixed:
                raise CocoflowError(
                    f"the schedule {new.display_name} has {' and '.join(fixed)}, which Vertex AI can change but not "
                    "remove. Give a new value, or delete the schedule and create it again."
                )
            new.name = replaced.id
            paths = [key for key in _UPDATABLE if getattr(new, key)]
            paths += ["max_concurrent_run_count", "max_concurrent_active_run_count", "allow_queueing"]
            paths.append("create_pipeline_job_request")
            request = {"schedule": new, "update_mask": {"paths": paths}}
            return _recurring(self._schedules.update_schedule(request, timeout=_TIMEOUT))


def pipeline_job(
    job: dict[str, Any], vertex: VertexConfig, parameters: Mapping[str, str | int], *, project: str
) -> dict[str, Any]:
    """Returns a PipelineJob as JSON: the compiled pipeline with the settings of its submission.

    Args:
        job: content of the compiled pipeline; changed here.
        vertex: settings.
        parameters: values of this run.
        project: of the job.
    """
    runtime = job["runtimeConfig"]
    runtime["parameters"] |= {
        key: {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
        for key, value in parameters.items()
    }
    if vertex.failure_policy == "fast":
        runtime["failurePolicy"] = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    resource = vertex.persistent_resource
    if resource.name is not None:
        parent = f"projects/{project}/locations/{vertex.region}/persistentResources"
        runtime["defaultRuntime"] = {
            "persistentResourceRuntimeDetail": {
                "persistentResourceName": resource.name if "/" in resource.name else f"{parent}/{resource.name}",
                "taskResourceUnavailableWaitTimeMs": round(resource.max_wait_minutes * 60_000),
                "taskResourceUnavailableTimeoutBehavior": _ON_TIMEOUT[resource.on_timeout],
            }
        }
    if not vertex.caching:
        for task in job["pipelineSpec"]["root"]["dag"]["tasks"].values():
            task["cachingOptions"] = {"enableCache": False}
    return job | {
        "labels": {**job.get("labels", {}), **vertex.labels},
        "serviceAccount": vertex.service_account,
        "network": vertex.network,
        "reservedIpRanges": vertex.reserved_ip_ranges,
        "encryptionSpec": vertex.encryption_key and {"kmsKeyName": vertex.encryption_key},
        "pscInterfaceConfig": vertex.network_attachment and {"networkAttachment": vertex.network_attachment},
    }


def job_id(name: str) -> str:
    """Returns an id that no other job has: the pipeline's name, the time, and random digits."""
    letter = "" if name[0].isalpha() else "run-"
    return f"{letter}{name[:_ID_CHARACTERS]}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _recurring(schedule: Any) -> Recurring:
    return Recurring(
        name=schedule.display_name,
        id=schedule.name,
        cron=schedule.cron,
        state=schedule.state.name,
        next_run=schedule.next_run_time or None,
        last_run=schedule.last_scheduled_run_response.scheduled_run_time or None,
    )
