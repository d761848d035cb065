"""`submit` and `schedule` with the real client of Kubeflow Pipelines, against a loopback service."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from pipelines.runners import kubeflow as runner
from pipelines.runners import kubeflow_connection
from pipelines.runners import submit as submit_module
from tests.kubeflow_service import KubeflowService, running_kubeflow
from tests.pipelines.runners.small_pipeline import compiled, kubeflow_spec
from tests.storage_emulator.fixture import Bucket


@pytest.fixture
def kubeflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeflowService]:
    """An empty service; the client finds no other, and no settings of this machine."""
    monkeypatch.setattr(submit_module, "compile_pipeline", lambda config, target: compiled(target))
    monkeypatch.setattr("kfp.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with running_kubeflow() as service:
        yield service


def _run(kubeflow: KubeflowService, *arguments: str) -> int:
    settings = {
        "run.root": "/mnt/run",
        "run.image": "image:1",
        "run.name": "digits",
        "data.root": "/mnt/data",
        "run.kubeflow.host": kubeflow.host,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = 2 if arguments[0] == "schedule" else 1
    return pipeline_runner.main([*arguments[:command], "--runner", "kubeflow", *flags, *arguments[command:]])


def _sets(*assignments: str) -> list[str]:
    return [part for one in assignments for part in ("--set", one)]


def test_submit_starts_a_run(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("experiment=nightly", "service_account=runner", "caching=false")
    flags = _sets(*(f"run.kubeflow.{one}" for one in settings))
    assert _run(kubeflow, "submit", "--parameter", "train_steps=500", *flags) == 0
    told = capsys.readouterr()
    assert told.out == "submitted: run-2\n"
    assert f"{kubeflow.host}/#/runs/details/run-2" in told.err
    experiment, run = kubeflow.taken("POST")
    assert experiment == ("/apis/v2beta1/experiments", {}, {"display_name": "nightly", "namespace": ""})
    assert run[0] == "/apis/v2beta1/runs"
    body = run[2]
    assert re.fullmatch(r"digits \d{4}-\d\d-\d\d \d\d-\d\d-\d\d [0-9a-f]{6}", body.pop("display_name"))
    spec = kubeflow_spec()
    for task in spec["root"]["dag"]["tasks"].values():
        task["cachingOptions"] = {}  # no enableCache: false
    assert body == {
        "experiment_id": "experiment-1",
        "pipeline_spec": spec,
        "runtime_config": {"parameters": {"train_steps": 500}},
        "service_account": "runner",
    }


def test_run_does_the_same_and_sends_nothing_else_by_default(kubeflow: KubeflowService) -> None:
    assert _run(kubeflow, "run") == 0
    (_, _, experiment), (_, _, run) = kubeflow.taken("POST")
    assert experiment == {"display_name": "digits", "namespace": ""}
    del run["display_name"]
    spec = kubeflow_spec()
    assert run == {"experiment_id": "experiment-1", "pipeline_spec": spec, "runtime_config": {"parameters": {}}}


def test_namespaces(kubeflow: KubeflowService) -> None:
    kubeflow.multi_user = True
    space = _sets("run.kubeflow.namespace=team")
    assert _run(kubeflow, "submit", *space) == 0
    assert kubeflow.taken("POST")[0][2] == {"display_name": "digits", "namespace": "team"}
    assert _run(kubeflow, "schedule", "list", *space) == 0
    assert kubeflow.taken("GET") == [("/apis/v2beta1/recurringruns", {"page_size": "100", "namespace": "team"}, None)]


def test_wait_tells_how_the_run_ended(
    kubeflow: KubeflowService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[dict[str, Any]] = [{"state": "RUNNING"}, {"state": "SUCCEEDED"}]

    def end(seconds: float) -> None:
        assert seconds == submit_module.POLL_SECONDS
        kubeflow.kept[max(key for key in kubeflow.kept if key.startswith("run-"))].update(ends.pop(0))

    monkeypatch.setattr(submit_module.time, "sleep", end)
    assert _run(kubeflow, "submit", "--wait") == 0
    ends.append({"state": "FAILED", "error": {"code": 9, "message": "The trainer failed."}})
    capsys.readouterr()
    assert _run(kubeflow, "submit", "--wait") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: the run run-3 ended as FAILED: The trainer failed.. Its log is at ")


def test_schedule_create(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--name",
        "nightly",
        "--cron",
        "*/30 3 * * 5-7",
        "--start",
        "2029-12-01T00:00",
        "--end",
        "2029-12-31T12:00",
    ]
    flags += ["--max-concurrent-runs", "2", "--parameter", "train_steps=7"]
    assert _run(kubeflow, "schedule", "create", *flags, *_sets("run.kubeflow.service_account=runner")) == 0
    assert capsys.readouterr().out == "scheduled: recurring_run-2\n"
    _, (path, query, body) = kubeflow.taken("POST")
    assert (path, query) == ("/apis/v2beta1/recurringruns", {})
    times = {"start_time": "2029-12-01T00:00:00Z", "end_time": "2029-12-31T12:00:00Z"}
    assert body == {
        "display_name": "nightly",
        "experiment_id": "experiment-1",
        "max_concurrency": 2,
        "mode": "ENABLE",
        "no_catchup": True,
        "pipeline_spec": kubeflow_spec(),
        "runtime_config": {"parameters": {"train_steps": 7}},
        "service_account": "runner",
        "trigger": {"cron_schedule": {"cron": "0 */30 3 * * 0,5,6", **times}},
    }


def test_a_name_is_taken_once(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(kubeflow, "schedule", "create", "--cron", "0 3 * * *") == 0
    assert _run(kubeflow, "schedule", "create", "--cron", "0 4 * * *") == 1
    assert "error: a schedule is named digits already (recurring_run-2). Give another --name" in capsys.readouterr().err
    kubeflow.taken("")
    assert _run(kubeflow, "schedule", "create", "--cron", "0 4 * * *", "--replace") == 0
    changes = [(method, path) for method, path, _, _ in kubeflow.requests if method != "GET"]
    assert changes == [
        ("POST", "/apis/v2beta1/recurringruns"),
        ("DELETE", "/apis/v2beta1/recurringruns/recurring_run-2"),
    ]
    [kept] = [one for one in kubeflow.kept.values() if "recurring_run_id" in one]
    assert kept["trigger"] == {"cron_schedule": {"cron": "0 0 4 * * *"}}


def test_list_pause_resume_delete(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        assert _run(kubeflow, "schedule", "create", "--name", name, "--cron", "0 3 * * *") == 0
    run = {"run_id": "run-9", "recurring_run_id": "recurring_run-4", "experiment_id": "experiment-1"}
    kubeflow.kept["run-9"] = run | {"created_at": "2026-11-22T03:00:00Z"}
    kubeflow.taken("")
    assert _run(kubeflow, "schedule", "pause", "two") == 0
    assert kubeflow.taken("POST") == [("/apis/v2beta1/recurringruns/recurring_run-3:disable", {}, None)]
    capsys.readouterr()
    assert _run(kubeflow, "schedule", "list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["state"] for name, row in rows.items()} == {"one": "ACTIVE", "two": "PAUSED", "three": "ACTIVE"}
    assert rows["three"] == {
        "name": "three",
        "id": "recurring_run-4",
        "cron": "0 0 3 * * *",
        "state": "ACTIVE",
        "next_run": None,
        "last_run": "2026-11-22T03:00:00+00:00",
    }
    assert _run(kubeflow, "schedule", "resume", "recurring_run-3") == 0  # its id
    assert kubeflow.taken("POST") == [("/apis/v2beta1/recurringruns/recurring_run-3:enable", {}, None)]
    assert _run(kubeflow, "schedule", "delete", "one") == 0
    assert kubeflow.taken("DELETE") == [("/apis/v2beta1/recurringruns/recurring_run-2", {}, None)]
    assert _run(kubeflow, "schedule", "delete", "one") == 1
    assert "error: no schedule is named one. `schedule list` shows all.\n" in capsys.readouterr().err


def test_tokens(
    kubeflow: KubeflowService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeflow.token = "secret"
    monkeypatch.delenv(kubeflow_connection.TOKEN_VARIABLE, raising=False)
    token = _sets("run.kubeflow.credentials=token")
    assert _run(kubeflow, "schedule", "list", *token) == 2
    assert "the environment variable KUBEFLOW_TOKEN is empty" in capsys.readouterr().err
    monkeypatch.setenv(kubeflow_connection.TOKEN_VARIABLE, "secret")
    assert _run(kubeflow, "schedule", "list", *token) == 0
    account = _sets("run.kubeflow.credentials=service_account")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    assert _run(kubeflow, "schedule", "list", *account) == 1
    assert f"no token of a service account at {tmp_path / 'token'}. Run inside of a pod" in capsys.readouterr().err
    (tmp_path / "token").write_text("secret")
    assert _run(kubeflow, "schedule", "list", *account) == 0
    monkeypatch.setenv(kubeflow_connection.TOKEN_VARIABLE, "wrong")
    capsys.readouterr()
    assert _run(kubeflow, "submit", *token) == 1
    assert capsys.readouterr().err == (
        f"error: Kubeflow Pipelines: cannot connect: {kubeflow.host} refuses access: Request header error: there is no "
        "user identity header (status 401). Check run.kubeflow.credentials and the token, and the rights of its "
        "account in run.kubeflow.namespace.\n"
    )


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            403,
            {"error": "x", "code": 7, "message": "User is not authorized to create runs."},
            "refuses access: User is not authorized to create runs (status 403). Check run.kubeflow.credentials",
        ),
        (
            404,
            "page not found",
            "does not find it: page not found. Check the name, and that run.kubeflow.host is Kubeflow",
        ),
        (429, {"message": "Too many runs."}, "has too many requests or runs: Too many runs. Rerun the command later."),
        (400, {"message": "The spec is invalid."}, "refuses the request: The spec is invalid (status 400)."),
        (
            500,
            {"message": "Internal error."},
            "failed: Internal error (status 500). It may have been done: look for the run 'digits ",
        ),
    ],
)
def test_a_refusal_is_one_message(
    kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str], status: int, body: Any, told: str
) -> None:
    kubeflow.faults.append(("POST", "/runs", status, body, False))
    assert _run(kubeflow, "submit") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: Kubeflow Pipelines: cannot submit the pipeline digits: {kubeflow.host} {told}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("status", "told"), [(503, r"failed: no backend \(status 503\)"), (0, "gave no response: .*")])
@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_reported(
    kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str], *, status: int, told: str, done: bool
) -> None:
    """Nothing is sent twice, and what the message names is there if the request was carried out."""
    kubeflow.faults.append(("POST", "/runs", status, "no backend", done))
    assert _run(kubeflow, "submit") == 1
    error = capsys.readouterr().err
    end = rf"look for the run '(digits [^']+)' at {kubeflow.host}/#/runs before you rerun the command\.$"
    match = re.search(rf"{kubeflow.host} {told}\. It may have been done: {end}", error)
    assert match is not None, error
    assert [one["display_name"] for one in kubeflow.kept.values() if "run_id" in one] == [match[1]] * done
    kubeflow.faults.append(("POST", "/recurringruns", status, "no backend", done))
    assert _run(kubeflow, "schedule", "create", "--cron", "0 3 * * *") == 1
    error = capsys.readouterr().err
    assert "It may have been done: look for a schedule named digits with `schedule list` before you rerun" in error
    assert [one["display_name"] for one in kubeflow.kept.values() if "recurring_run_id" in one] == ["digits"] * done


def test_what_may_be_repeated_is_not_looked_for(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    kubeflow.faults.append(("GET", "/recurringruns", 503, "no backend", False))
    assert _run(kubeflow, "schedule", "list") == 1
    told = "failed: no backend (status 503). Look at the pod ml-pipeline, and rerun the command.\n"
    assert capsys.readouterr().err.endswith(told)


def test_no_way_to_the_service(kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        kubeflow.host = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert _run(kubeflow, "schedule", "list") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: Kubeflow Pipelines: cannot connect: no connection to {kubeflow.host}: ")
    assert error.endswith("Check run.kubeflow.host, the network and, for a forwarded port, `kubectl port-forward`.\n")
    kubeflow.host = "null"
    assert _run(kubeflow, "schedule", "list") == 1
    error = capsys.readouterr().err
    assert "run.kubeflow.host is not set, and this machine has no Kubeflow Pipelines of its own (Failed to" in error
    assert error.endswith("Name the address: --set run.kubeflow.host=https://HOST/pipeline.\n")
    assert "HTTPConnection" not in error


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--time-zone", "Europe/Berlin"], "Kubeflow has one time zone for all recurring runs, UTC unless"),
        (["--max-runs", "3"], "run.schedule.max_runs: Kubeflow does not have it; only Vertex AI does. Remove it."),
        (["--allow-queueing"], "run.schedule.allow_queueing: Kubeflow does not have it"),
        (["--max-concurrent-runs", "11"], "run.schedule.max_concurrent_runs = 11: Kubeflow takes at most 10."),
    ],
)
def test_what_kubeflow_lacks_is_refused(
    kubeflow: KubeflowService, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    assert _run(kubeflow, "schedule", "create", "--cron", "0 3 * * *", *flags) == 2
    assert told in capsys.readouterr().err
    assert kubeflow.requests == []


def test_a_missing_bucket(kubeflow: KubeflowService, gcs: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(kubeflow, "submit", *_sets(f"run.root={gcs.path}/run")) == 0
    assert _run(kubeflow, "submit", *_sets("run.root=gs://nobodys/run")) == 1
    told = (
        "there is no bucket nobodys. Create it with `gcloud storage buckets create gs://nobodys`, or name another one."
    )
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("five", "six"),
    [
        ("0 3 * * *", "0 0 3 * * *"),
        ("*/5 1-3 1 jan mon", "0 */5 1-3 1 jan mon"),
        ("0 3 * * 7", "0 0 3 * * 0"),
        ("0 3 * * 1,6-7", "0 0 3 * * 0,1,6"),
    ],
)
def test_six_fields(five: str, six: str) -> None:
    assert runner.to_six_fields(five) == six
