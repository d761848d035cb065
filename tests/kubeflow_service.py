"""A loopback Kubeflow Pipelines: the v2beta1 surface of experiments, runs and recurring runs.

Bodies are held against the models of `kfp_server_api`, the published API; an unknown field is refused.
"""

import contextlib
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PAGE = 2  # small, so that lists have several pages
_NOW = "2026-11-23T04:00:00Z"


class RefusedError(Exception):
    """A request that the service refuses."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KubeflowService:
    """The service; its state is read and changed by tests.

    Attributes:
        host: its address.
        token: bearer token that requests need; None: none.
        multi_user: whether it has namespaces.
        requests: method, path, query and body of the requests that it understood.
        kept: resources by id.
        faults: answers to come instead: (method, path pattern, status, body, whether the work is done all the same).
            Status 0 breaks the connection.
    """

    def __init__(self) -> None:
        self.host = ""
        self.token: str | None = None
        self.multi_user = False
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.faults: list[tuple[str, str, int, Any, bool]] = []
        self._numbers = itertools.count(1)

    def taken(self, method: str) -> list[tuple[str, dict[str, str], Any]]:
        """Path, query and body of the requests with a method since the last call."""
        taken = [(path, query, body) for one, path, query, body in self.requests if one == method]
        self.requests.clear()
        return taken

    def answer(self, method: str, target: str, token: str | None, content: bytes) -> tuple[int, Any]:
        """Carries a request out; returns status and JSON."""
        url = urllib.parse.urlsplit(target)
        fault = next((one for one in self.faults if one[0] == method and re.search(one[1], url.path)), None)
        if fault is not None:
            self.faults.remove(fault)
            if not fault[4]:
                return fault[2], fault[3]
        try:
            if self.token is not None and token != f"Bearer {self.token}":
                raise RefusedError(401, "Request header error: there is no user identity header.")
            body = json.loads(content) if content else None
            query = dict(urllib.parse.parse_qsl(url.query))
            result = self._route(method, urllib.parse.unquote(url.path), query, body)
            self.requests.append((method, url.path, query, body))
        except RefusedError as error:
            return error.status, {"error": str(error), "code": 3, "message": str(error), "details": []}
        return (200, result) if fault is None else (fault[2], fault[3])

    def _route(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:  # noqa: PLR0911 (a table)
        match method, path.removeprefix("/apis/v2beta1/").replace(":", "/").split("/"):
            case "GET", ["healthz"]:
                return {"multi_user": self.multi_user}
            case "GET", ["experiments" | "runs" | "recurringruns" as kind]:
                return self._list(kind, query)
            case "POST", ["experiments"]:
                _check(body, "V2beta1Experiment")
                return self._keep("experiment", body | {"created_at": _NOW})
            case "POST", ["runs"]:
                self._check_run(body, "V2beta1Run")
                return self._keep("run", body | {"state": "PENDING", "created_at": _NOW})
            case "POST", ["recurringruns"]:
                self._check_recurring(body)
                status = {"ENABLE": "ENABLED", "DISABLE": "DISABLED"}[body["mode"]]
                return self._keep("recurring_run", body | {"status": status, "created_at": _NOW})
            case "GET", ["runs" | "recurringruns", number]:
                return self._found(number)
            case "POST", ["recurringruns", number, "enable" | "disable" as action]:
                self._found(number)["status"] = f"{action.upper()}D"
                return {}
            case "DELETE", ["recurringruns", number]:
                self._found(number)
                del self.kept[number]
                return {}
        raise RefusedError(404, f"The service has no {method} {path}.")

    def _check_run(self, body: dict[str, Any], model: str) -> None:
        _check(body, model)
        self._found(body["experiment_id"])
        spec = body["pipeline_spec"].get("pipeline_spec", body["pipeline_spec"])
        if spec["schemaVersion"] != "2.1.0":
            raise RefusedError(400, "Only pipeline specs of schema 2.1.0 are supported.")
        declared = spec["root"]["inputDefinitions"]["parameters"]
        for name in body["runtime_config"].get("parameters", {}):
            if name not in declared:
                raise RefusedError(400, f"The parameter {name} is not declared.")

    def _check_recurring(self, body: dict[str, Any]) -> None:
        self._check_run(body, "V2beta1RecurringRun")
        if not 1 <= int(body.get("max_concurrency", 0)) <= 10:
            raise RefusedError(400, "The max concurrency of the job must be in range [1, 10].")
        schedule = body["trigger"]["cron_schedule"]
        # Its parser takes a cron expression of five fields for one that begins with seconds.
        if not re.fullmatch(r"0( [0-9A-Za-z*,/-]+){4} [0-6A-Za-z*,/-]+", schedule["cron"]):
            raise RefusedError(400, f"Schedule cron is not supported: {schedule['cron']}")
        for key in ("start_time", "end_time"):
            if key in schedule and datetime.fromisoformat(schedule[key]).tzinfo is None:
                raise RefusedError(400, f"{key} is not RFC 3339.")

    def _list(self, kind: str, query: dict[str, str]) -> Any:
        if unknown := set(query) - {"page_token", "page_size", "sort_by", "namespace", "filter", "experiment_id"}:
            raise RefusedError(400, f"Unknown query {unknown}.")
        if self.multi_user and "namespace" not in query and "experiment_id" not in query:
            raise RefusedError(400, "In multi-user mode, namespace must be specified.")
        key = {"experiments": "experiment_id", "runs": "run_id", "recurringruns": "recurring_run_id"}[kind]
        found = [one for one in self.kept.values() if next(iter(one)) == key]
        if "experiment_id" in query:
            found = [one for one in found if one["experiment_id"] == query["experiment_id"]]
        for predicate in json.loads(query.get("filter") or "{}").get("predicates", []):
            assert predicate["operation"] == 1, predicate  # EQUALS
            found = [one for one in found if one.get(predicate["key"]) == predicate["stringValue"]]
        first, name = int(query.get("page_token") or 0), {"recurringruns": "recurringRuns"}.get(kind, kind)
        page: dict[str, Any] = {name: found[first : first + _PAGE], "total_size": len(found)}
        if len(found) > first + _PAGE:
            page["next_page_token"] = str(first + _PAGE)
        return page

    def _found(self, number: str) -> dict[str, Any]:
        if number not in self.kept:
            raise RefusedError(404, f"{number} not found.")
        return self.kept[number]

    def _keep(self, kind: str, resource: dict[str, Any]) -> dict[str, Any]:
        number = f"{kind}-{next(self._numbers)}"
        self.kept[number] = {f"{kind}_id": number, **resource}
        return self.kept[number]


def _check(body: Any, model: str) -> None:
    """Refuses what the published model does not have."""
    import kfp_server_api

    described = getattr(kfp_server_api, model)
    types = {described.attribute_map[name]: kind for name, kind in described.openapi_types.items()}
    for key, value in body.items():
        if key not in types:
            raise RefusedError(400, f"unknown field {key!r} in {model}")
        kind = types[key]
        if hasattr(getattr(kfp_server_api, kind, None), "openapi_types") and isinstance(value, dict):
            _check(value, kind)


@contextlib.contextmanager
def running_kubeflow() -> Iterator[KubeflowService]:
    """Yields a service that listens on this machine."""
    service = KubeflowService()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = service.answer(self.command, self.path, self.headers.get("authorization"), content)
            if not status:
                self.close_connection = True
                return
            text = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.host = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield service
        finally:
            server.shutdown()
