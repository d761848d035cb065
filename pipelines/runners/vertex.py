"""Submits to Vertex AI Pipelines: jobs, and schedules that create jobs."""

import copy
import importlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from components.vertex_service import TIMEOUT, Connection, Version
from pipelines.runners.schedules import Recurring, only
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig
from schemas.config.run import VertexConfig
from schemas.errors import CocoflowError

POLL_SECONDS = 30.0  # between looks at a running job
_ID_CHARACTERS = 100  # of at most 128, as a time follows
_OPERATION_MINUTES = 5.0  # for a deletion
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
_UPDATABLE = ("cron", "start_time", "end_time", "max_run_count")


class Vertex:
    """Vertex AI Pipelines of one project and region.

    Args:
        config: whole configuration.

    Raises:
        CocoflowError: no credentials, or no project.
    """

    def __init__(self, config: Config) -> None:
        self._name = config.run.name
        self._config = config.run.vertex
        self._connection = Connection(self._config.project, self._config.region)
        self._place = self._connection.place
        # Only v1beta1's jobs have a default runtime.
        self._version: Version = "v1" if self._config.persistent_resource.name is None else "v1beta1"

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Creates a pipeline job, and returns its resource name.

        Args:
            compiled: text of the compiled pipeline.
            parameters: values of this run.

        Raises:
            CocoflowError: the service refused it, or cannot be reached.
        """
        client = self._connection.client("pipeline_service", self._version)
        parent, job, number = self._place.parent, self._job(compiled, parameters), job_id(self._name)
        request = {"parent": parent, "pipeline_job": job, "pipeline_job_id": number}
        submitted = self._connection.created(
            lambda: client.create_pipeline_job(request=request, retry=None, timeout=TIMEOUT),
            lambda: client.get_pipeline_job(name=f"{parent}/pipelineJobs/{number}", retry=None, timeout=TIMEOUT),
            f"submit the pipeline {self._name}",
        )
        return str(submitted.name)

    def address(self, run: str) -> str:
        """Returns the address of a job's page in the console."""
        place = self._place
        return (
            f"https://console.cloud.google.com/vertex-ai/locations/{place.region}/pipelines/runs/"
            f"{run.rpartition('/')[2]}?project={place.project}"
        )

    def wait(self, run: str) -> None:
        """Waits for the end of a job.

        Raises:
            CocoflowError: it did not succeed.
        """
        client = self._connection.client("pipeline_service")
        while True:
            job = self._connection.call(client.get_pipeline_job, f"look at the job {run}", name=run)
            state = job.state.name.removeprefix("PIPELINE_STATE_")
            if state in _ENDED:
                break
            time.sleep(POLL_SECONDS)
        if state != "SUCCEEDED":
            reason = f": {job.error.message}" if job.error.message else ""
            raise CocoflowError(f"the job {run} ended as {state}{reason}. Its log is at {self.address(run)}.")

    def create_schedule(
        self, name: str, compiled: str, parameters: Mapping[str, str | int], schedule: ScheduleConfig, *, replace: bool
    ) -> Recurring:
        """Creates a schedule, or replaces the one of this name.

        Args:
            name: of the schedule.
            compiled: text of the compiled pipeline.
            parameters: values of its runs.
            schedule: when it runs.
            replace: change a schedule of this name, if there is one.

        Raises:
            CocoflowError: a schedule of this name exists, or the service refused it.
        """
        wanted = self._schedule(name, self._job(compiled, parameters), schedule)
        existing = self._named(name)
        if existing and not replace:
            raise CocoflowError(
                f"a schedule is named {name} already ({existing[0].name}). Give another --name, or change it with "
                "--replace."
            )
        if existing:
            only([_recurring(one) for one in existing], name)
            return self._update(existing[0], wanted)
        client = self._connection.client("schedule_service", self._version)

        def create() -> Any:
            # An earlier attempt may have created it although its answer was lost.
            lost = self._named(name)
            if lost:
                return lost[0]
            return client.create_schedule(parent=self._place.parent, schedule=wanted, retry=None, timeout=TIMEOUT)

        return _recurring(self._connection.repeated(create, f"create the schedule {name}"))

    def schedules(self) -> list[Recurring]:
        """Returns all schedules of pipelines in the project and region."""
        return [_recurring(one) for one in self._list("create_pipeline_job_request:*", "list the schedules")]

    def pause_schedule(self, name: str) -> None:
        """Ends new runs until the schedule is resumed; those that began go on.

        Raises:
            CocoflowError: no such schedule, several, or the service refused it.
        """
        client = self._connection.client("schedule_service")
        self._connection.call(client.pause_schedule, f"pause the schedule {name}", name=self._id_of(name))

    def resume_schedule(self, name: str) -> None:
        """Continues a paused schedule; the runs in between are left out.

        Raises:
            CocoflowError: see `pause_schedule`.
        """
        client = self._connection.client("schedule_service")
        self._connection.call(client.resume_schedule, f"resume the schedule {name}", name=self._id_of(name))

    def delete_schedule(self, name: str) -> None:
        """Removes a schedule; its runs stay.

        Raises:
            CocoflowError: see `pause_schedule`.
        """
        client, what = self._connection.client("schedule_service"), f"delete the schedule {name}"
        operation = self._connection.call(client.delete_schedule, what, name=self._id_of(name))
        self._connection.finished(operation, what, minutes=_OPERATION_MINUTES)

    def _job(self, compiled: str, parameters: Mapping[str, str | int]) -> Any:
        module = self._types()
        message = module.PipelineJob()
        _parse(pipeline_job(json.loads(compiled), self._config, parameters, project=self._place.project), message)
        return message

    def _schedule(self, name: str, job: Any, schedule: ScheduleConfig) -> Any:
        types = self._types()
        message = types.Schedule(
            display_name=name,
            cron=f"TZ={schedule.time_zone} {schedule.cron}",
            # The first limits the starts of jobs, the second the jobs that have not ended.
            max_concurrent_run_count=schedule.max_concurrent_runs,
            max_concurrent_active_run_count=schedule.max_concurrent_runs,
            allow_queueing=schedule.allow_queueing,
            create_pipeline_job_request=types.CreatePipelineJobRequest(parent=self._place.parent, pipeline_job=job),
        )
        if schedule.start_time is not None:
            message.start_time = schedule.start_time
        if schedule.end_time is not None:
            message.end_time = schedule.end_time
        if schedule.max_runs is not None:
            message.max_run_count = schedule.max_runs
        return message

    def _update(self, existing: Any, wanted: Any) -> Recurring:
        from google.protobuf.field_mask_pb2 import FieldMask

        name = wanted.display_name
        fixed = [key for key in _UPDATABLE if getattr(existing, key) and not getattr(wanted, key)]
        fixed = [key for key in fixed if key != "start_time"]  # it is the time of creation unless it was given
        if fixed:
            raise CocoflowError(
                f"the schedule {name} has {' and '.join(fixed)}, which Vertex AI can change but not remove. Give a new "
                "value, or delete the schedule and create it again."
            )
        paths = [key for key in _UPDATABLE if getattr(wanted, key)]
        paths += ["max_concurrent_run_count", "max_concurrent_active_run_count", "allow_queueing"]
        paths.append("create_pipeline_job_request")
        wanted.name = existing.name
        client = self._connection.client("schedule_service", self._version)
        updated = self._connection.call(
            client.update_schedule,
            f"update the schedule {name}",
            schedule=wanted,
            update_mask=FieldMask(paths=paths),
        )
        return _recurring(updated)

    def _named(self, name: str) -> list[Any]:
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return self._list(f'display_name="{escaped}"', f"find the schedule {name}")

    def _list(self, expression: str, what: str) -> list[Any]:
        client = self._connection.client("schedule_service")
        return self._connection.listed(client.list_schedules, what, parent=self._place.parent, filter=expression)

    def _id_of(self, name: str) -> str:
        """Returns the resource name of a schedule, which the user may give by name, number or resource name."""
        found = [_recurring(one) for one in self._named(name)]
        if not found and (name.isdecimal() or name.startswith("projects/")):
            return name if "/" in name else f"{self._place.parent}/schedules/{name}"
        return only(found, name).id

    def _types(self) -> Any:
        return importlib.import_module(f"google.cloud.aiplatform_{self._version}.types")


def pipeline_job(
    compiled: Mapping[str, Any], vertex: VertexConfig, parameters: Mapping[str, str | int], *, project: str
) -> dict[str, Any]:
    """Returns a PipelineJob as JSON: the compiled pipeline with the settings of its submission.

    Args:
        compiled: content of the compiled pipeline.
        vertex: settings.
        parameters: values of this run.
        project: of the job.
    """
    job: dict[str, Any] = copy.deepcopy(dict(compiled))
    runtime = job["runtimeConfig"]
    runtime["parameters"] = {**runtime.get("parameters", {}), **{key: _value(one) for key, one in parameters.items()}}
    if vertex.failure_policy == "fast":
        runtime["failurePolicy"] = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    if vertex.persistent_resource.name is not None:
        detail = persistent_resource_detail(vertex, project)
        runtime["defaultRuntime"] = {"persistentResourceRuntimeDetail": detail}
    if not vertex.caching:
        for task in job["pipelineSpec"]["root"]["dag"]["tasks"].values():
            task["cachingOptions"] = {"enableCache": False}
    job["labels"] = {**job.get("labels", {}), **vertex.labels}
    given = {
        "serviceAccount": vertex.service_account,
        "network": vertex.network,
        "reservedIpRanges": list(vertex.reserved_ip_ranges),
        "encryptionSpec": vertex.encryption_key and {"kmsKeyName": vertex.encryption_key},
        "pscInterfaceConfig": vertex.network_attachment and {"networkAttachment": vertex.network_attachment},
    }
    return job | {key: value for key, value in given.items() if value}


def persistent_resource_detail(vertex: VertexConfig, project: str) -> dict[str, Any]:
    """Returns the JSON of v1beta1's `PersistentResourceRuntimeDetail`."""
    resource = vertex.persistent_resource
    name = str(resource.name)
    if "/" not in name:
        name = f"projects/{project}/locations/{vertex.region}/persistentResources/{name}"
    return {
        "persistentResourceName": name,
        "taskResourceUnavailableWaitTimeMs": round(resource.max_wait_minutes * 60_000),
        "taskResourceUnavailableTimeoutBehavior": "FAIL" if resource.on_timeout == "fail" else "FALL_BACK_TO_ON_DEMAND",
    }


def job_id(name: str) -> str:
    """Returns an id that no other job has: the pipeline's name, the time, and random digits."""
    letter = "" if name[0].isalpha() else "run-"
    return f"{letter}{name[:_ID_CHARACTERS]}-{time.strftime('%Y%m%d%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _value(value: str | int) -> dict[str, str]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def _parse(tree: Mapping[str, Any], message: Any) -> None:
    from google.protobuf import json_format

    json_format.ParseDict(tree, message._pb)


def _recurring(schedule: Any) -> Recurring:
    return Recurring(
        name=schedule.display_name,
        id=schedule.name,
        cron=schedule.cron,
        state=schedule.state.name,
        next_run=schedule.next_run_time or None,
        last_run=schedule.last_scheduled_run_response.scheduled_run_time or None,
    )
