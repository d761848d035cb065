"""`run --runner vertex|kubeflow`, with stand-ins for the clients; TFX takes 20 s to import."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pipeline_runner

pytestmark = pytest.mark.slow

SETTINGS = ("run.root=gs://bucket/run", "run.image=image:1", "run.name=digits", "data.root=gs://bucket/data")


def _run(target: str, *settings: str) -> int:
    flags = [part for assignment in (*SETTINGS, *settings) for part in ("--set", assignment)]
    return pipeline_runner.main(["run", "--runner", target, *flags])


def _replace(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    if "." in name:
        parent, _, child = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], child, module, raising=False)


def test_vertex(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import google.cloud  # noqa: F401 (its module is replaced in)

    seen: dict[str, Any] = {}

    class PipelineJob:
        resource_name = "projects/1/pipelineJobs/digits"

        def __init__(self, *, template_path: str, **arguments: Any) -> None:
            seen.update(arguments, text=Path(template_path).read_text())

        def submit(self, *, service_account: str | None) -> None:
            seen["account"] = service_account

    _replace(monkeypatch, "google.cloud.aiplatform", PipelineJob=PipelineJob)
    assert _run("vertex", "run.vertex.project=mine", "run.vertex.service_account=me@mine") == 0
    assert capsys.readouterr().out == "submitted: projects/1/pipelineJobs/digits\n"
    assert '"schemaVersion": "2.0.0"' in seen.pop("text")
    assert seen == {"display_name": "digits", "project": "mine", "location": "us-central1", "account": "me@mine"}


def test_vertex_on_a_persistent_resource(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from google.cloud import aiplatform_v1beta1

    seen: dict[str, Any] = {}

    class Client:
        def __init__(self, *, client_options: dict[str, str]) -> None:
            seen.update(client_options)

        def create_pipeline_job(self, **arguments: Any) -> Any:
            seen.update(arguments)
            return SimpleNamespace(name="projects/1/pipelineJobs/digits-1")

    monkeypatch.setattr(aiplatform_v1beta1, "PipelineServiceClient", Client)
    place = ("run.vertex.project=mine", "run.vertex.region=europe-west4", "run.vertex.service_account=me@mine")
    wait = ("run.vertex.persistent_resource.max_wait_minutes=30", "run.vertex.persistent_resource.on_timeout=on_demand")
    assert _run("vertex", *place, "run.vertex.persistent_resource.name=gpus", *wait) == 0
    assert capsys.readouterr().out == "submitted: projects/1/pipelineJobs/digits-1\n"
    assert seen["api_endpoint"] == "europe-west4-aiplatform.googleapis.com"
    assert seen["parent"] == "projects/mine/locations/europe-west4"
    # https://cloud.google.com/vertex-ai/docs/reference/rest/v1beta1/projects.locations.pipelineJobs: what an id may be.
    assert re.fullmatch(r"[a-z][-a-z0-9]{0,127}", seen["pipeline_job_id"])
    job = seen["pipeline_job"]
    assert (job.display_name, job.service_account) == ("digits", "me@mine")
    assert job.pipeline_spec["schemaVersion"] == "2.0.0"
    assert job.runtime_config.gcs_output_directory.startswith("gs://bucket/run")
    detail = job.runtime_config.default_runtime.persistent_resource_runtime_detail
    assert detail.persistent_resource_name == "projects/mine/locations/europe-west4/persistentResources/gpus"
    assert detail.task_resource_unavailable_wait_time_ms == 30 * 60 * 1000
    assert detail.task_resource_unavailable_timeout_behavior.name == "FALL_BACK_TO_ON_DEMAND"


def test_an_id_of_a_persistent_resource_needs_its_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("vertex", "run.vertex.persistent_resource.name=gpus") == 2
    assert "set project" in capsys.readouterr().err


def test_kubeflow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, Any] = {}

    class Client:
        def __init__(self, **arguments: Any) -> None:
            seen.update(arguments)

        def create_run_from_pipeline_package(self, path: str, **arguments: Any) -> Any:
            seen.update(arguments, text=Path(path).read_text())
            return SimpleNamespace(run_id="4711")

    import kfp

    monkeypatch.setattr(kfp, "Client", Client)
    assert _run("kubeflow", "run.kubeflow.host=https://host") == 0
    assert capsys.readouterr().out == "submitted: 4711\n"
    assert "schemaVersion: 2.1.0" in seen.pop("text")
    assert (seen["host"], seen["run_name"]) == ("https://host", "digits")


def test_a_refusal_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import google.cloud  # noqa: F401

    def refuse(**arguments: Any) -> None:
        raise RuntimeError("Your default credentials\nwere not found.")

    _replace(monkeypatch, "google.cloud.aiplatform", PipelineJob=refuse)
    assert _run("vertex") == 1
    error = capsys.readouterr().err
    assert (
        "error: --runner vertex: the pipeline was compiled, but could not be submitted: Your default credentials"
        in error
    )
    assert "gcloud auth application-default login" in error
    assert "Traceback" not in error
    assert _run("vertex", "run.image=null") == 2
    assert "needs the image of the containers" in capsys.readouterr().err
