"""The pipeline as it is compiled, submitted to the loopback services; TFX takes 20 s to import."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline_runner
from components.history.queries import History
from tests.kubeflow_service import running_kubeflow
from tests.vertex_service.fixture import PROJECT, LoopbackVertex

pytestmark = pytest.mark.slow


def _run(*arguments: str, **settings: str) -> int:
    given = {"run.image": "image:1", "run.name": "digits", "data.root": "gs://bucket/data", **settings}
    flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return pipeline_runner.main([*arguments, *flags])


def test_vertex_takes_what_is_compiled(vertex: LoopbackVertex, tmp_path: Path) -> None:
    settings = {
        "run.root": f"{vertex.bucket.path}/run",
        "run.vertex.project": PROJECT,
        "push.vertex.model_registry": "true",  # its settings travel in the pipeline
        "run.resources.DetectionTrainer": "{cpu: 8, accelerator: NVIDIA_L4, retries: 3}",
    }
    path = tmp_path / "pipeline.json"
    assert _run("compile", "--runner", "vertex", "--output", str(path), **settings) == 0
    assert _run("run", "--runner", "vertex", **settings) == 0
    assert _run("submit", "--runner", "vertex", "--parameter", "train_steps=7", **settings) == 0
    run, submitted = (one["body"] for one in vertex.requests("POST"))
    compiled = json.loads(path.read_text())
    assert run == compiled
    pusher = compiled["pipelineSpec"]["root"]["dag"]["tasks"]["SavedModelPusher"]["inputs"]["parameters"]
    registration = json.loads(pusher["registration"]["runtimeValue"]["constantValue"]["stringValue"])
    assert (registration["project"], registration["display_name"]) == (PROJECT, "digits")
    compiled["runtimeConfig"]["parameters"]["train_steps"] = {"intValue": "7"}
    assert submitted == compiled
    records = History(settings["run.root"]).runs()
    assert [(record.state, record.runner, record.trigger) for record in records] == [
        ("submitted", "vertex", "submit")
    ] * 2
    assert {record.id for record in records} <= {name.rpartition("/")[2] for name in vertex.kept("/pipelineJobs/")}


def test_kubeflow_takes_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kfp.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    nodes = "{node_selector: {pool: spot}, cpu: 2}"
    settings = {"run.root": "/mnt/run", "run.resources.DetectionTrainer": nodes}
    path = tmp_path / "pipeline.yaml"
    assert _run("compile", "--runner", "kubeflow", "--output", str(path), **settings) == 0
    with running_kubeflow() as kubeflow:
        settings["run.kubeflow.host"] = kubeflow.host
        assert _run("submit", "--runner", "kubeflow", **settings) == 0
        assert _run("schedule", "create", "--cron", "0 3 * * *", "--runner", "kubeflow", **settings) == 0
        bodies = [body for _, _, body in kubeflow.taken("POST")]
    assert capsys.readouterr().out.splitlines()[1:] == ["submitted: run-2", "scheduled: recurring_run-3"]
    spec, platform = yaml.safe_load_all(path.read_text())
    # Kubernetes' part of a pipeline lies beside it in the same field.
    wanted: dict[str, Any] = {"pipeline_spec": spec, "platform_spec": platform}
    assert [body["pipeline_spec"] for body in bodies if "pipeline_spec" in body] == [wanted, wanted]


def test_without_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("submit", "--runner", "vertex", **{"run.image": "null", "run.root": "gs://bucket/run"}) == 2
    assert "needs the image of the containers" in capsys.readouterr().err
