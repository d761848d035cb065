"""The documented rules of requests; a broken one is answered as the service answers it."""

import re
import zoneinfo
from datetime import datetime
from typing import Any

from tests.storage_emulator.store import RefusedError as StorageRefusedError
from tests.storage_emulator.store import Store

_STATUS_NAMES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 409: "ABORTED"}
_FIELD_OF_CRON = r"[0-9A-Za-z*,/-]+"
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")


class RefusedError(Exception):
    """A request that the service refuses; `body` is its answer."""

    def __init__(self, status: int, message: str, *, status_name: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        error: dict[str, Any] = {"code": status, "message": message, "status": status_name or _STATUS_NAMES[status]}
        if field is not None:
            violation = {"field": field, "description": message}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
        self.body = {"error": error}


def require(holds: bool, field: str, what: str) -> None:
    """Refuses a request whose field breaks a rule."""
    if not holds:
        raise RefusedError(400, f"{field} {what}.", field=field)


def check_job(job: dict[str, Any], number: str | None = None) -> None:
    """Checks a PipelineJob that is to be created."""
    for key in ("name", "createTime", "state", "jobDetail", "error", "scheduleName"):
        require(key not in job, f"pipeline_job.{key}", "is output only")
    require(
        number is None or re.fullmatch(r"[a-z][-a-z0-9]{0,127}", number) is not None, "pipeline_job_id", "is invalid"
    )
    runtime, spec = job.get("runtimeConfig", {}), job.get("pipelineSpec", {})
    require(
        runtime.get("gcsOutputDirectory", "").startswith("gs://"), "runtime_config.gcs_output_directory", "is required"
    )
    require(bool(spec), "pipeline_job.pipeline_spec", "is required")
    require(
        spec["schemaVersion"] == "2.0.0" and "parameterValues" not in runtime, "runtime_config", "is of another schema"
    )
    declared = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    for name, value in runtime.get("parameters", {}).items():
        require(name in declared, f"runtime_config.parameters.{name}", "is not declared")
        wanted = {"STRING": "stringValue", "INT": "intValue"}[declared[name]["type"]]
        require(list(value) == [wanted], f"runtime_config.parameters.{name}", f"is not a {wanted}")
    for key, value in job.get("labels", {}).items():
        require(bool(_LABEL.fullmatch(key) and _LABEL.fullmatch(value)), f"labels.{key}", "is invalid")


def check_schedule(schedule: dict[str, Any], parent: str) -> None:
    """Checks a Schedule that is to be created."""
    for key in ("state", "createTime", "nextRunTime", "startedRunCount", "catchUp", "lastScheduledRunResponse"):
        require(key not in schedule, f"schedule.{key}", "is output only")
    require(0 < len(schedule.get("displayName", "")) <= 128, "schedule.display_name", "is required")
    _check_cron(schedule.get("cron", ""))
    require(int(schedule.get("maxConcurrentRunCount", 0)) >= 1, "schedule.max_concurrent_run_count", "must be positive")
    if "startTime" in schedule and "endTime" in schedule:
        start, end = (datetime.fromisoformat(schedule[key]) for key in ("startTime", "endTime"))
        require(start < end, "schedule.end_time", "must be after start_time")
    request = schedule.get("createPipelineJobRequest", {})
    location = "/".join(parent.split("/")[2:])
    given = re.fullmatch(rf"projects/[^/]+/{location}", request.get("parent", "")) is not None
    require(given, "schedule.create_pipeline_job_request.parent", "is another location")
    check_job(request.get("pipelineJob", {}))


def _check_cron(text: str) -> None:
    match = re.fullmatch(rf"(?:(?:CRON_)?TZ=(?P<zone>\S+) )?{_FIELD_OF_CRON}( {_FIELD_OF_CRON}){{4}}", text)
    require(match is not None, "schedule.cron", f"is not a cron schedule: {text}")
    assert match is not None
    zone = match["zone"] or "UTC"
    require(zone in zoneinfo.available_timezones(), "schedule.cron", f"has the unknown time zone {zone}")


def check_upload(request: dict[str, Any], store: Store) -> None:
    """Checks an UploadModelRequest; the model's files must lie in the bucket."""
    model = request["model"]
    for key in ("name", "versionId", "createTime", "deployedModels"):
        require(key not in model, f"model.{key}", "is output only")
    require(0 < len(model.get("displayName", "")) <= 128, "model.display_name", "is required")
    container = model.get("containerSpec", {})
    require(bool(container.get("imageUri")), "model.container_spec.image_uri", "is required")
    for alias in model.get("versionAliases", []):
        valid = re.fullmatch(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]", alias) is not None
        require(valid, "model.version_aliases", f"has the invalid alias {alias}")
    for key, value in model.get("labels", {}).items():
        require(bool(_LABEL.fullmatch(key) and _LABEL.fullmatch(value)), f"model.labels.{key}", "is invalid")
    bucket, _, folder = model.get("artifactUri", "").removeprefix("gs://").partition("/")
    try:
        store.get(bucket, f"{folder}/saved_model.pb", {})
    except StorageRefusedError:
        raise RefusedError(400, f"No SavedModel in {model.get('artifactUri')}.", field="model.artifact_uri") from None


def matches(resource: dict[str, Any], expression: str | None) -> bool:
    """Returns whether a resource matches a filter of the kinds that lists document: `a="b"`, `a.b=c`, `a:*`."""
    if not expression:
        return True
    match = re.fullmatch(r'(?P<field>[\w.-]+)(?:="(?P<value>(?:[^"\\]|\\.)*)"|:\*)', expression)
    if match is None:
        raise RefusedError(400, f"The filter {expression} cannot be read.", field="filter")
    value: Any = resource
    for part in match["field"].split("."):
        first, *others = part.split("_")
        value = (value or {}).get(part, (value or {}).get(first + "".join(word.capitalize() for word in others)))
    if match["value"] is None:
        return value is not None
    return bool(value == re.sub(r"\\(.)", r"\1", match["value"]))
