"""`submit` and `schedule` with the real client of Vertex AI, against a loopback service."""

import json
import re
import socket
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from pipelines.runners import submit as submit_module
from pipelines.runners import vertex as runner
from tests.pipelines.runners.small_pipeline import compiled, vertex_job
from tests.vertex_service.fixture import NAMED, PARENT, PROJECT, LoopbackVertex


@pytest.fixture(autouse=True)
def _compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit_module, "compile_pipeline", lambda config, target: compiled(target))


def _run(vertex: LoopbackVertex, *arguments: str, region: str = "us-central1") -> int:
    settings = {
        "run.root": f"{vertex.bucket.path}/run",
        "run.image": "image:1",
        "run.name": "digits",
        "data.root": "gs://bucket/data",
        "run.vertex.project": PROJECT,
        "run.vertex.region": region,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = 2 if arguments[0] == "schedule" else 1
    return pipeline_runner.main([*arguments[:command], "--runner", "vertex", *flags, *arguments[command:]])


def _sets(*assignments: str) -> list[str]:
    return [part for one in assignments for part in ("--set", one)]


def test_submit_creates_the_job(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    everything = _sets(
        "run.vertex.service_account=runner@my-project.iam.gserviceaccount.com",
        "run.vertex.network=projects/12345/global/networks/vpc",
        "run.vertex.reserved_ip_ranges=[range-1, range-2]",
        "run.vertex.encryption_key=projects/my-project/locations/us-central1/keyRings/ring/cryptoKeys/key",
        "run.vertex.labels={team: vision, cost-center: '12'}",
        "run.vertex.caching=false",
        "run.vertex.failure_policy=fast",
    )
    assert (
        _run(vertex, "submit", "--parameter", "train_steps=500", "--parameter", "data_span=2026-11-21", *everything)
        == 0
    )
    [request] = vertex.requests()
    assert (request["method"], request["path"]) == ("POST", f"/v1/{PARENT}/pipelineJobs")
    number = request["query"].pop("pipelineJobId")
    assert re.fullmatch(r"digits-\d{14}-[0-9a-f]{6}", number)
    assert request["query"] == {}
    wanted = vertex_job()
    wanted["pipelineSpec"]["root"]["dag"]["tasks"]["CocoExampleGen"]["cachingOptions"] = {"enableCache": False}
    wanted["pipelineSpec"]["root"]["dag"]["tasks"]["previous_blessed_model"]["cachingOptions"] = {"enableCache": False}
    assert request["body"] == {
        "displayName": "digits",
        "labels": {"tfx_version": "1-16-0", "team": "vision", "cost-center": "12"},
        "pipelineSpec": wanted["pipelineSpec"],
        "runtimeConfig": {
            "gcsOutputDirectory": "gs://bucket/run/artifacts",
            "parameters": {"data_span": {"stringValue": "2026-11-21"}, "train_steps": {"intValue": "500"}},
            "failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_FAST",
        },
        "serviceAccount": "runner@my-project.iam.gserviceaccount.com",
        "network": "projects/12345/global/networks/vpc",
        "reservedIpRanges": ["range-1", "range-2"],
        "encryptionSpec": {"kmsKeyName": "projects/my-project/locations/us-central1/keyRings/ring/cryptoKeys/key"},
    }
    told = capsys.readouterr()
    assert told.out == f"submitted: {NAMED}/pipelineJobs/{number}\n"
    page = f"https://console.cloud.google.com/vertex-ai/locations/us-central1/pipelines/runs/{number}?project={PROJECT}"
    assert page in told.err


def test_submit_sends_nothing_else_by_default(vertex: LoopbackVertex) -> None:
    assert _run(vertex, "run") == 0
    [request] = vertex.requests()
    assert request["body"] == vertex_job()


def test_a_private_service_connect_interface(vertex: LoopbackVertex) -> None:
    assert _run(vertex, "submit", *_sets("run.vertex.network_attachment=attachment")) == 0
    [request] = vertex.requests()
    assert request["body"] == vertex_job() | {"pscInterfaceConfig": {"networkAttachment": "attachment"}}


def test_a_persistent_resource_needs_the_beta_api(vertex: LoopbackVertex) -> None:
    resource = ("name=gpus", "max_wait_minutes=30", "on_timeout=on_demand")
    flags = _sets(*(f"run.vertex.persistent_resource.{one}" for one in resource))
    assert _run(vertex, "submit", *flags) == 0
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *", *flags) == 0
    job, schedule = vertex.requests("POST")
    assert job["path"] == f"/v1beta1/{PARENT}/pipelineJobs"
    assert schedule["path"] == f"/v1beta1/{PARENT}/schedules"
    detail = {
        "persistentResourceName": f"{PARENT}/persistentResources/gpus",
        "taskResourceUnavailableWaitTimeMs": "1800000",
        "taskResourceUnavailableTimeoutBehavior": "FALL_BACK_TO_ON_DEMAND",
    }
    for body in (job["body"], schedule["body"]["createPipelineJobRequest"]["pipelineJob"]):
        assert body["runtimeConfig"].pop("defaultRuntime") == {"persistentResourceRuntimeDetail": detail}
        assert body == vertex_job()


def test_wait_tells_how_the_job_ended(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[dict[str, Any]] = [{"state": "PIPELINE_STATE_RUNNING"}, {"state": "PIPELINE_STATE_SUCCEEDED"}]

    def end(seconds: float) -> None:
        assert seconds == submit_module.POLL_SECONDS
        [name] = [name for name, job in vertex.kept("/pipelineJobs/").items() if "SUCC" not in job["state"]]
        vertex.change(name, **ends.pop(0))

    monkeypatch.setattr(submit_module.time, "sleep", end)
    assert _run(vertex, "submit", "--wait") == 0
    assert len(vertex.requests("GET", "/pipelineJobs/")) == 3
    ends.append({"state": "PIPELINE_STATE_FAILED", "error": {"code": 9, "message": "The trainer failed."}})
    capsys.readouterr()
    assert _run(vertex, "submit", "--wait") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(
        rf"error: the run {NAMED}/pipelineJobs/digits-\S+ ended as FAILED: The trainer failed\.\. Its", error
    )


def test_schedule_create(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--name", "nightly", "--cron", "*/30 3 * * 1-5", "--time-zone", "Europe/Berlin", "--allow-queueing"]
    flags += ["--start", "2029-12-01T00:00", "--end", "2029-12-31T12:00Z", "--max-runs", "10"]
    flags += ["--max-concurrent-runs", "2", "--parameter", "train_steps=7"]
    assert _run(vertex, "schedule", "create", *flags, *_sets("run.vertex.labels={team: vision}")) == 0
    assert capsys.readouterr().out == f"scheduled: {NAMED}/schedules/1001\n"
    [request] = vertex.requests("POST")
    job = vertex_job()
    job["labels"]["team"] = "vision"
    job["runtimeConfig"]["parameters"]["train_steps"] = {"intValue": "7"}
    assert (request["path"], request["query"]) == (f"/v1/{PARENT}/schedules", {})
    assert request["body"] == {
        "displayName": "nightly",
        "cron": "TZ=Europe/Berlin */30 3 * * 1-5",
        "startTime": "2029-11-30T23:00:00Z",
        "endTime": "2029-12-31T12:00:00Z",
        "maxRunCount": "10",
        "maxConcurrentRunCount": "2",
        "maxConcurrentActiveRunCount": "2",
        "allowQueueing": True,
        "createPipelineJobRequest": {"parent": PARENT, "pipelineJob": job},
    }


def test_the_configuration_has_the_defaults_of_a_schedule(vertex: LoopbackVertex) -> None:
    flags = _sets("run.schedule.cron=0 3 * * *", "run.schedule.time_zone=Asia/Tokyo", "run.schedule.max_runs=3")
    assert _run(vertex, "schedule", "create", "--time-zone", "UTC", *flags) == 0
    [request] = vertex.requests("POST")
    body = request["body"]
    assert (body["displayName"], body["cron"], body["maxRunCount"]) == ("digits", "TZ=UTC 0 3 * * *", "3")
    assert (body["maxConcurrentRunCount"], "allowQueueing" in body) == ("1", False)


def test_a_name_is_taken_once(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *") == 0
    assert _run(vertex, "schedule", "create", "--cron", "0 4 * * *") == 1
    assert (
        f"error: a schedule is named digits already ({NAMED}/schedules/1001). Give another --name, or change it with "
        "--replace." in capsys.readouterr().err
    )
    vertex.requests()
    assert _run(vertex, "schedule", "create", "--cron", "0 4 * * *", "--max-runs", "5", "--replace") == 0
    [request] = vertex.requests("PATCH")
    assert request["path"] == f"/v1/{NAMED}/schedules/1001"
    mask = "cron,maxRunCount,maxConcurrentRunCount,maxConcurrentActiveRunCount,allowQueueing,createPipelineJobRequest"
    assert request["query"] == {"updateMask": mask}
    assert request["body"]["cron"] == "TZ=UTC 0 4 * * *"
    [kept] = vertex.kept("/schedules/").values()
    assert (kept["cron"], kept["maxRunCount"], kept["displayName"]) == ("TZ=UTC 0 4 * * *", "5", "digits")
    assert _run(vertex, "schedule", "create", "--cron", "0 4 * * *", "--replace") == 1
    assert "the schedule digits has max_run_count, which Vertex AI can change but not remove" in capsys.readouterr().err


def test_list_pause_resume_delete(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", 'two "2"', "three"):
        assert _run(vertex, "schedule", "create", "--name", name, "--cron", "0 3 * * *") == 0
    last = {"scheduledRunTime": "2026-11-22T03:00:00Z", "runResponse": "OK"}
    vertex.change(f"{NAMED}/schedules/1003", lastScheduledRunResponse=last)
    vertex.requests()
    assert _run(vertex, "schedule", "pause", 'two "2"') == 0
    found, paused = vertex.requests()
    assert found["query"]["filter"] == 'display_name="two \\"2\\""'
    assert (paused["path"], paused["body"]) == (f"/v1/{NAMED}/schedules/1002:pause", {})
    capsys.readouterr()
    assert _run(vertex, "schedule", "list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "one": "ACTIVE",
        'two "2"': "PAUSED",
        "three": "ACTIVE",
    }
    assert rows["three"] == {
        "name": "three",
        "id": f"{NAMED}/schedules/1003",
        "cron": "TZ=UTC 0 3 * * *",
        "state": "ACTIVE",
        "next_run": "2030-01-02T02:00:00+00:00",
        "last_run": "2026-11-22T03:00:00+00:00",
    }
    assert rows["one"]["last_run"] is None
    assert [one["query"] for one in vertex.requests()] == [
        {"filter": "create_pipeline_job_request:*"},
        {"filter": "create_pipeline_job_request:*", "pageToken": "2"},
    ]
    assert _run(vertex, "schedule", "pause", 'two "2"') == 1
    assert (
        'error: Vertex AI: cannot pause the schedule two "2": the service refuses the request: Schedule in state '
        "PAUSED "
        "cannot be paused." in capsys.readouterr().err
    )
    assert _run(vertex, "schedule", "resume", "1002") == 0  # its number
    assert _run(vertex, "schedule", "delete", f"{NAMED}/schedules/1001") == 0
    assert _run(vertex, "schedule", "list") == 0
    table = capsys.readouterr().out
    assert "three" in table
    assert "PAUSED" not in table
    assert " one " not in table
    next_run = datetime.fromisoformat("2030-01-02T02:00:00Z").astimezone()
    assert f"{next_run:%Y-%m-%d}" in table
    [paused, resumed, deleted] = [one for one in vertex.requests() if one["method"] != "GET"]
    assert (resumed["path"], resumed["body"]) == (f"/v1/{NAMED}/schedules/1002:resume", {})
    assert (deleted["method"], deleted["path"], deleted["query"]) == ("DELETE", f"/v1/{NAMED}/schedules/1001", {})


def test_a_schedule_that_is_not_one(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(vertex, "schedule", "pause", "nightly") == 1
    assert capsys.readouterr().err == "error: no schedule is named nightly. `schedule list` shows all.\n"
    assert _run(vertex, "schedule", "delete", "4711") == 1
    assert capsys.readouterr().err == "error: no schedule is named 4711. `schedule list` shows all.\n"
    assert _run(vertex, "schedule", "list") == 0
    assert capsys.readouterr().out == "no schedules\n"
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *") == 0
    assert _run(vertex, "schedule", "create", "--name", "other", "--cron", "0 3 * * *") == 0
    vertex.change(f"{NAMED}/schedules/1002", displayName="digits")
    capsys.readouterr()
    for action in (["pause", "digits"], ["create", "--cron", "0 4 * * *", "--replace"]):
        assert _run(vertex, "schedule", *action) == 1
        ids = f"{NAMED}/schedules/1001, {NAMED}/schedules/1002"
        assert f"2 schedules are named digits. Give the id of one instead: {ids}." in capsys.readouterr().err


SUBMIT = "error: Vertex AI: cannot submit the pipeline digits: "
FIELD = {"@type": "type.googleapis.com/google.rpc.BadRequest"}


REGION = "us-central1 is not a region of Vertex AI. Choose one of"


@pytest.mark.parametrize(
    ("status", "message", "info", "told"),
    [
        (
            403,
            "Vertex AI API has not been used in project 12345 before or it is disabled.",
            {"reason": "SERVICE_DISABLED", "metadata": {"service": "aiplatform.googleapis.com"}},
            "is disabled.*`gcloud services enable aiplatform.googleapis.com --project my-project`, wait a few minutes",
        ),
        (
            403,
            "Permission 'aiplatform.pipelineJobs.create' denied on resource.",
            {"reason": "IAM_PERMISSION_DENIED", "metadata": {"permission": "aiplatform.pipelineJobs.create"}},
            r"permission denied in project my-project \(aiplatform.pipelineJobs.create\).* add-iam-policy-binding my-p",
        ),
        (
            403,
            "You do not have permission to act as service_account: x@y.iam.gserviceaccount.com. (or it may not exist).",
            None,
            "Grant your account the role roles/iam.serviceAccountUser on run.vertex.service_account",
        ),
        (
            429,
            "Quota exceeded for pipeline jobs.",
            {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_metric": "aiplatform.googleapis.com/pipeline_jobs"}},
            r"quota of project my-project in us-central1 is used up \(aiplatform.googleapis.com/pipeline_jobs\): Quota",
        ),
        (
            401,
            "Request had invalid authentication credentials.",
            {"reason": "ACCESS_TOKEN_EXPIRED"},
            "refuses the credentials: Request had.* `gcloud auth application-default login`",
        ),
        (400, "Unsupported region for Vertex AI, select from [us-central1].", None, REGION),
        (403, "Location us-central1 is not found or access is unauthorized.", None, REGION),
        (
            404,
            "The network vpc is not found.",
            None,
            r"not found \(project my-project, region us-central1\). Check the",
        ),
        (418, "I'm a teapot.", None, r"the service refuses the request: I'm a teapot \(status 418\)\.$"),
        (
            500,
            "Internal error encountered.",
            None,
            r"failed: Internal.*look for the job (\S+) at \S+/\1\?project=my-project",
        ),
    ],
)
def test_a_refusal_is_one_message(
    *, vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str], status: int, message: str, info: Any, told: str
) -> None:
    times = 99 if status == 401 else 1  # the client logs in again on its own first
    vertex.refuse(status, message, info=info, path="/pipelineJobs", times=times)
    assert _run(vertex, "submit") == 1
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(SUBMIT)
    assert re.search(told, error), error
    assert vertex.kept("") == {}


def test_the_fields_that_the_service_refuses_are_named(
    vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]
) -> None:
    details = [{**FIELD, "fieldViolations": [{"field": "pipeline_job.network", "description": "must be peered"}]}]
    error = {"code": 400, "message": "Invalid value.", "status": "INVALID_ARGUMENT", "details": details}
    vertex.fail(400, {"error": error}, path="/pipelineJobs")
    assert _run(vertex, "submit") == 1
    told = "the service refuses the request: Invalid value; pipeline_job.network: must be peered."
    assert capsys.readouterr().err == f"{SUBMIT}{told}\n"


def test_a_conflict(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *") == 0
    vertex.refuse(409, "The schedule is being changed.", path=":pause")
    capsys.readouterr()
    assert _run(vertex, "schedule", "pause", "digits") == 1
    assert capsys.readouterr().err == (
        "error: Vertex AI: cannot pause the schedule digits: The schedule is being changed. Choose another name, or "
        "rerun the command if someone else changed it meanwhile.\n"
    )


@pytest.mark.parametrize("status", [503, 502, 504, 0])  # 0: the connection breaks
@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_reported(
    vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str], *, status: int, done: bool
) -> None:
    """Nothing is sent twice, and what the message names is there if the request was carried out."""
    vertex.refuse(status, "The service is unavailable.", path="/pipelineJobs", after=done)
    assert _run(vertex, "submit") == 1
    error = capsys.readouterr().err
    match = re.search(
        r"\. It may have been done: look for the job (\S+) at (\S+) before you rerun the command\.$", error
    )
    assert match is not None, error
    assert match[1] in match[2]
    assert list(vertex.kept("/pipelineJobs/")) == [f"{NAMED}/pipelineJobs/{match[1]}"] * done
    vertex.refuse(status, "The service is unavailable.", path="/schedules", after=done)
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *") == 1
    error = capsys.readouterr().err
    assert "It may have been done: look for a schedule named digits with `schedule list` before you rerun" in error
    assert [one["displayName"] for one in vertex.kept("/schedules/").values()] == ["digits"] * done


def test_what_may_be_repeated_is_not_looked_for(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    vertex.refuse(503, "The service is unavailable.", method="GET", path="/schedules")
    assert _run(vertex, "schedule", "list") == 1
    assert capsys.readouterr().err == (
        "error: Vertex AI: cannot list the schedules: the service failed: The service is unavailable (status 503). "
        "Rerun the command later; https://status.cloud.google.com lists outages.\n"
    )


def test_waiting_survives_an_unavailable_service(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(_: float) -> None:
        for job in vertex.kept("/pipelineJobs/"):
            vertex.change(job, state="PIPELINE_STATE_SUCCEEDED")

    monkeypatch.setattr(submit_module.time, "sleep", end)
    unavailable = partial(vertex.refuse, 503, "The service is unavailable.", method="GET", path="/pipelineJobs/")
    unavailable(times=9)
    assert _run(vertex, "submit", "--wait") == 0
    unavailable(times=10)
    assert _run(vertex, "submit", "--wait") == 1
    assert "cannot look at the job" in capsys.readouterr().err


def test_an_unknown_region(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Google's DNS knows the host of any region, and answers with a page; others do not know the host."""
    assert _run(vertex, "submit", region="mars-north1") == 1
    assert f"{SUBMIT}mars-north1 is not a region of Vertex AI. Choose one of" in capsys.readouterr().err
    resolve = socket.getaddrinfo

    def refuse(host: Any, *arguments: Any, **others: Any) -> Any:
        if "mars" in str(host):
            raise socket.gaierror(-2, "Name or service not known")
        return resolve(host, *arguments, **others)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("NO_PROXY", "mars-north1-aiplatform.googleapis.com,127.0.0.1")
    monkeypatch.setenv("no_proxy", "mars-north1-aiplatform.googleapis.com,127.0.0.1")
    assert _run(vertex, "submit", region="mars-north1") == 1
    assert capsys.readouterr().err == (
        f"{SUBMIT}the host mars-north1-aiplatform.googleapis.com is not known. Check that mars-north1 is a region of "
        "Vertex AI (--set run.vertex.region=REGION), and the network.\n"
    )


def test_no_way_to_the_service(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert _run(vertex, "schedule", "list") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: Vertex AI: cannot list the schedules: no connection: ")
    assert error.endswith("Check the network and proxy, and rerun the command.\n")


def test_no_credentials(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert _run(vertex, "submit") == 1
    assert capsys.readouterr().err == (
        "error: Vertex AI: cannot connect: no credentials for Google Cloud. Log in with `gcloud auth "
        "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file.\n"
    )


def test_credentials_that_ended(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vertex.bucket.emulator.fail("status", path="/token", status=400)
    assert _run(vertex, "schedule", "list") == 1
    vertex.bucket.emulator.clear()
    error = capsys.readouterr().err
    assert "cannot list the schedules: the credentials for Google Cloud are not valid any more: " in error
    assert error.endswith("Log in again with `gcloud auth application-default login`.\n")


def test_no_project(
    vertex: LoopbackVertex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.setenv("PATH", "/nowhere")  # gcloud would tell its own
    assert _run(vertex, "submit", *_sets("run.vertex.project=null")) == 1
    assert "the credentials name no project. Name one with --set run.vertex.project=PROJECT." in capsys.readouterr().err


def test_a_missing_bucket(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(vertex, "submit", *_sets("run.root=gs://nobodys/run")) == 1
    assert capsys.readouterr().err == (
        "error: run.root = gs://nobodys/run: there is no bucket nobodys. Create it with `gcloud storage buckets create "
        "gs://nobodys --project=my-project --location=us-central1`, or name another one.\n"
    )
    assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *", *_sets("push.directory=gs://nobodys/serving")) == 1
    assert "error: push.directory = gs://nobodys/serving: there is no bucket nobodys." in capsys.readouterr().err
    assert vertex.requests("POST") == []


def test_a_bucket_that_the_account_may_not_see_is_no_obstacle(vertex: LoopbackVertex) -> None:
    vertex.bucket.emulator.fail("status", path=f"/b/{vertex.bucket.name}", status=403)
    assert _run(vertex, "submit") == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--parameter", "train_stepz=5"], "The nearest is train_steps."),
        (["--parameter", "train_steps"], "expected NAME=VALUE"),
        (["--parameter", "train_steps=many"], "--parameter train_steps='many': a whole number is needed."),
        (["--parameter", "train_steps=-1"], "parameters of this run: train.steps = -1: Input should be greater than 0"),
        (_sets("run.vertex.labels={Team: x}"), "label 'Team': a key starts with a lower-case letter"),
        (_sets("run.vertex.labels={team: X y}"), "label team: 'X y': a value has at most 63"),
        (_sets("run.vertex.encryption_key=projects/p/locations/us/keyRings/r/cryptoKeys/k"), "region = us-central1"),
        (_sets("run.image=null"), "--runner vertex needs the image of the containers"),
        (_sets("run.name=Digits"), "run.name = Digits: a compiled pipeline is named with lower-case letters"),
        (_sets("run.vertex.reserved_ip_ranges=[a]"), "does nothing without network"),
        (_sets("run.vertex.persistent_resource.name=gpus", "run.vertex.project=null"), "set project"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(
    vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert _run(vertex, "submit", *arguments) == 2
    assert told in capsys.readouterr().err
    assert vertex.requests() == []


def test_a_schedule_needs_a_time(vertex: LoopbackVertex, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(vertex, "schedule", "create") == 2
    assert "schedule create needs a time: --cron '0 3 * * *'" in capsys.readouterr().err
    assert _run(vertex, "schedule", "create", "--cron", "0 25 * * *") == 2
    assert "run.schedule.cron: '0 25 * * *' is not a cron expression: Bad hour" in capsys.readouterr().err
    for name in ("", "x" * 129):
        assert _run(vertex, "schedule", "create", "--cron", "0 3 * * *", "--name", name) == 2
        assert "a schedule's name has 1 to 128 characters." in capsys.readouterr().err
    assert vertex.requests() == []


def test_ids_of_jobs() -> None:
    for name in ("digits", "2026-digits", "x" * 128):
        number = runner.job_id(name)
        assert re.fullmatch(r"[a-z][-a-z0-9]{0,126}", number)
        assert name[:100] in number
