"""`run --runner vertex|kubeflow`, with stand-ins for the clients; TFX takes 20 s to import."""

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
