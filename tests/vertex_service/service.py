"""Requests in, answers out, and what the service keeps between them."""

import importlib
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format

from tests.storage_emulator.api import Answer, Request
from tests.storage_emulator.store import Store
from tests.vertex_service import rules
from tests.vertex_service.rules import RefusedError

REGIONS = ("us-central1", "europe-west4")
HOST = re.compile(r"([a-z0-9-]+)-aiplatform\.googleapis\.com(:443)?")
_NO_HOST = (
    "<!DOCTYPE html><html lang=en><title>Error 404 (Not Found)!!1</title><p>The requested URL was not found.</html>"
)
_PLACE = r"/(v1|v1beta1|ui)/projects/([^/]+)/locations/([^/]+)"
PROJECT_NUMBERS = {"my-project": "12345"}  # resource names in answers have the number
_PAGE = 2  # small, so that lists have several pages
_TYPE = "type.googleapis.com/google.cloud.aiplatform"


class VertexService:
    """All projects and regions.

    Args:
        store: of Cloud Storage, where uploaded models must lie.
    """

    def __init__(self, store: Store) -> None:
        self._lock = threading.RLock()
        self._store = store
        self._routes: list[tuple[str, re.Pattern[str], Callable[..., Any]]] = [
            (method, re.compile(_PLACE + path), work)
            for method, path, work in (
                ("POST", "/pipelineJobs", self._create_job),
                ("GET", "(/pipelineJobs/[^/]+)", self._get),
                ("POST", "/schedules", self._create_schedule),
                ("GET", "(/schedules)", self._list),
                ("GET", "(/schedules/[^/:]+)", self._get),
                ("PATCH", "(/schedules/[^/:]+)", self._update_schedule),
                ("DELETE", "(/schedules/[^/:]+)", self._delete),
                ("POST", "(/schedules/[^/]+):(pause|resume)", self._switch_schedule),
                ("POST", "/models:upload", self._upload),
                ("GET", "(/models)", self._list),
                ("GET", "(/models/[^/:]+):listVersions", self._list_versions),
                ("GET", "(/models/[^/:]+)", self._get),
                ("GET", "((?:/models/[^/]+)?/operations/[^/:]+)", self._operation),
            )
        ]
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._numbers = itertools.count(1001)
            self._kept: dict[str, dict[str, Any]] = {}  # by resource name, as JSON
            self._operations: dict[str, dict[str, Any]] = {}
            self._versions: dict[str, int] = {}  # number of uploads by model
            self._log: list[dict[str, Any]] = []
            self._faults: list[dict[str, Any]] = []

    def control(self, command: str, value: Any) -> Any:
        """Carries a test's order out."""
        with self._lock:
            if command == "reset":
                self.reset()
            elif command == "fail":
                # method, path (pattern), status, body, times, after (the work is done all the same)
                self._faults.append({"times": 1, "after": False, **value})
            elif command == "log":
                log, self._log = self._log, []
                return log
            elif command == "change":
                self._kept[value["name"]].update(value["fields"])
            elif command == "kept":
                return self._kept
        return None

    def answer(self, request: Request) -> Answer:
        """Carries a request out."""
        region = HOST.fullmatch(request.headers["host"])
        assert region is not None
        if region[1] not in REGIONS:
            return Answer(404, _NO_HOST.encode(), {"Content-Type": "text/html; charset=UTF-8"})
        with self._lock:
            fault = self._fault(request)
            if fault is not None and not fault["after"]:
                return _answer(fault["status"], fault["body"])
            try:
                result = self._route(request, region[1])
            except RefusedError as error:
                return _answer(error.status, error.body)
            return _answer(200, result) if fault is None else _answer(fault["status"], fault["body"])

    def _fault(self, request: Request) -> dict[str, Any] | None:
        for fault in self._faults:
            if fault["times"] and fault["method"] == request.method and re.search(fault["path"], request.path):
                fault["times"] -= 1
                return fault
        return None

    def _route(self, request: Request, region: str) -> Any:
        if not request.headers.get("authorization", "").startswith("Bearer "):
            raise RefusedError(401, "Request is missing required authentication credential.")
        path = urllib.parse.unquote(request.path)
        for method, pattern, work in self._routes:
            match = pattern.fullmatch(path)
            if match is not None and method == request.method:
                version, project, location, *names = match.groups()
                if location != region:
                    raise RefusedError(400, f"The request for {location} came to the endpoint of {region}.")
                if version == "ui":  # the clients ask there for operations, over REST
                    version = "v1"
                types = importlib.import_module(f"google.cloud.aiplatform_{version}.types")
                call = _Call(request, types, _numbered(f"projects/{project}/locations/{location}"), version)
                self._log.append({"method": method, "path": path, "query": call.query, "body": None})
                return work(call, *names)
        raise RefusedError(404, f"The service has no {request.method} {path}.")

    def _parsed(self, call: "_Call", kind: str) -> tuple[dict[str, Any], Any]:
        """Returns the body as JSON and as the published message; notes it."""
        message = getattr(call.types, kind)()
        try:
            json_format.Parse(call.request.body, message._pb)
        except json_format.ParseError as error:
            raise RefusedError(400, f"Invalid JSON payload received. {error}") from None
        body = json_format.MessageToDict(message._pb)
        self._log[-1]["body"] = body
        return body, message

    def _create_job(self, call: "_Call") -> Any:
        body, _ = self._parsed(call, "PipelineJob")
        number = call.query.get("pipelineJobId") or f"job-{next(self._numbers)}"
        rules.check_job(body, number)
        name = f"{call.parent}/pipelineJobs/{number}"
        if name in self._kept:
            raise RefusedError(409, f"PipelineJob {number} already exists.", status_name="ALREADY_EXISTS")
        return self._keep(body | {"name": name, "state": "PIPELINE_STATE_PENDING", "createTime": _now()})

    def _create_schedule(self, call: "_Call") -> Any:
        body, _ = self._parsed(call, "Schedule")
        rules.check_schedule(body, call.parent)
        name = f"{call.parent}/schedules/{next(self._numbers)}"
        times = {"createTime": _now(), "startTime": _now(), "nextRunTime": "2030-01-02T02:00:00Z"}
        return self._keep(times | body | {"name": name, "state": "ACTIVE"})

    def _update_schedule(self, call: "_Call", path: str) -> Any:
        kept = self._found(call.parent + path)
        body, _ = self._parsed(call, "Schedule")
        fields = call.query["updateMask"].split(",")
        known = {field.camelcase_name for field in call.types.Schedule.pb().DESCRIPTOR.fields}
        if unknown := set(fields) - known:
            raise RefusedError(400, f"Unknown fields in the mask: {sorted(unknown)}.")
        if emptied := [field for field in fields if kept.get(field) and field not in body and field != "allowQueueing"]:
            raise RefusedError(400, f"Non-empty fields cannot be unset: {emptied}.")
        if kept["state"] == "COMPLETED":
            raise RefusedError(400, "A completed schedule cannot be updated.", status_name="FAILED_PRECONDITION")
        changed = {key: value for key, value in kept.items() if key not in fields} | {
            field: body[field] for field in fields if field in body
        }
        rules.check_schedule({key: value for key, value in changed.items() if key in body}, call.parent)
        return self._keep(changed | {"updateTime": _now()})

    def _switch_schedule(self, call: "_Call", path: str, action: str) -> Any:
        kept = self._found(call.parent + path)
        self._parsed(call, f"{action.capitalize()}ScheduleRequest")
        needed, reached = ("ACTIVE", "PAUSED") if action == "pause" else ("PAUSED", "ACTIVE")
        if kept["state"] != needed:
            raise RefusedError(
                400, f"Schedule in state {kept['state']} cannot be {action}d.", status_name="FAILED_PRECONDITION"
            )
        kept["state"] = reached
        return {}

    def _upload(self, call: "_Call") -> Any:
        body, _ = self._parsed(call, "UploadModelRequest")
        rules.check_upload(body, self._store)
        parent = body.get("parentModel")
        name = _numbered(parent or f"{call.parent}/models/{next(self._numbers)}")
        if parent is not None:
            self._found(parent)
        self._versions[name] = self._versions.get(name, 0) + 1
        version = str(self._versions[name])
        aliases = {*body["model"].get("versionAliases", []), *(["default"] if version == "1" else [])}
        kept = body["model"] | {
            "name": name,
            "versionId": version,
            "versionAliases": sorted(aliases),
            "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES"],
        }

        def done() -> None:
            for key in [key for key in self._kept if key.startswith(f"{name}@")]:
                # An alias moves to the newest version that asks for it.
                self._kept[key]["versionAliases"] = sorted(set(self._kept[key]["versionAliases"]) - aliases)
            self._kept[f"{name}@{version}"] = kept | {"createTime": _now()}
            if "default" in aliases:
                self._kept[name] = kept

        return self._begin(call, "UploadModel", name, {"model": name, "modelVersionId": version}, done=done)

    def _list_versions(self, call: "_Call", path: str) -> Any:
        self._found(call.parent + path)
        found = [kept for key, kept in self._kept.items() if key.startswith(f"{call.parent}{path}@")]
        return self._page(call, "models", found)

    def _begin(
        self,
        call: "_Call",
        method: str,
        resource: str,
        result: dict[str, Any],
        *,
        kind: str | None = None,
        done: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Begins an operation, which is done when it or lists are asked for, or fails if a test wants it."""
        name = f"{resource}/operations/{next(self._numbers)}"
        package = f"{_TYPE}.{call.version}"
        begun = {"name": name, "metadata": {"@type": f"{package}.{method}OperationMetadata"}}
        error = next((one for one in self._faults if one["times"] and one.get("operation") == method), None)
        if error is not None:
            error["times"] -= 1
            # An empty error: it never ends.
            self._operations[name] = begun | ({"done": True, "error": error["body"]} if error["body"] else {})
        else:
            response = {"@type": f"{package}.{kind or method + 'Response'}", **result}
            self._operations[name] = begun | {"done": True, "response": response, "work": done}
        return begun

    def _operation(self, call: "_Call", path: str) -> Any:
        name = call.parent + path
        if name not in self._operations:
            raise RefusedError(404, f"No operation {name}.")
        return _finished(self._operations[name])

    def _delete(self, call: "_Call", path: str) -> Any:
        self._found(call.parent + path)
        del self._kept[call.parent + path]
        name = f"{call.parent}/operations/{next(self._numbers)}"
        return {"name": name, "done": True, "response": {"@type": "type.googleapis.com/google.protobuf.Empty"}}

    def _get(self, call: "_Call", path: str) -> Any:
        return self._found(call.parent + path)

    def _list(self, call: "_Call", path: str) -> Any:
        start = f"{call.parent}{path}/"
        found = [kept for key, kept in self._kept.items() if key.startswith(start) and "@" not in key]
        return self._page(call, path.strip("/"), [one for one in found if rules.matches(one, call.query.get("filter"))])

    def _page(self, call: "_Call", kind: str, found: list[dict[str, Any]]) -> Any:
        for operation in self._operations.values():
            _finished(operation)
        first = int(call.query.get("pageToken") or 0)
        page: dict[str, Any] = {kind: found[first : first + _PAGE]}
        if len(found) > first + _PAGE:
            page["nextPageToken"] = str(first + _PAGE)
        return page

    def _found(self, name: str) -> dict[str, Any]:
        if _numbered(name) not in self._kept:
            raise RefusedError(404, f"{name} is not found.", status_name="NOT_FOUND")
        return self._kept[_numbered(name)]

    def _keep(self, resource: dict[str, Any]) -> dict[str, Any]:
        self._kept[resource["name"]] = resource
        return resource


class _Call:
    """A routed request."""

    def __init__(self, request: Request, types: Any, parent: str, version: str) -> None:
        self.request = request
        self.types = types
        self.parent = parent
        self.version = version
        self.query = {key: value for key, value in request.query.items() if key != "$alt"}


def _finished(operation: dict[str, Any]) -> dict[str, Any]:
    """Does an operation's work, once; returns what is told of it."""
    operation.pop("work", lambda: None)()
    return operation


def _numbered(name: str) -> str:
    project = name.split("/")[1]
    return name.replace(f"projects/{project}/", f"projects/{PROJECT_NUMBERS.get(project, project)}/", 1)


def _answer(status: int, body: Any) -> Answer:
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
