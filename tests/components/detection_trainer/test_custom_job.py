"""The trainer as a Vertex custom job, with a stand-in for the service; TFX takes 20 s to import: imported inside."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import ServiceUnavailable

from detection.storage.atomic import write_json, write_text
from schemas.artifacts import CONFIG_YAML, DATASET_JSON, TRAIN_SPLIT, split_dir
from schemas.config.config_io import load_config
from schemas.config.run import ACCELERATOR_VARIABLE, TrainerJobConfig
from schemas.errors import CocoflowError, ConfigError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.tiny_run import CATEGORIES, tiny_config

pytestmark = pytest.mark.slow

NETWORK = "projects/12345/global/networks/vpc"
KEY = "projects/mine/locations/us-central1/keyRings/ring/cryptoKeys/key"
GPUS = {
    "chief": {"machine_type": "g2-standard-24", "accelerator": "NVIDIA_L4", "accelerator_count": 2},
    "workers": {"machine_type": "g2-standard-24", "accelerator": "NVIDIA_L4", "accelerator_count": 2, "replicas": 3},
    "strategy": "spot",
    "max_wait_hours": 2,
}
SUBMISSION = ("run.vertex.labels={team: vision}", f"run.vertex.network={NETWORK}", f"run.vertex.encryption_key={KEY}")
TPU = {"chief": {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "2x2"}, "persistent_resource": "mine"}


@pytest.mark.parametrize("settings", [GPUS, TPU])
def test_the_pools_are_vertex_own(settings: dict[str, Any]) -> None:
    from google.cloud import aiplatform

    from components.detection_trainer.custom_job import worker_pool_specs

    job = TrainerJobConfig.model_validate(settings)
    pools = [aiplatform.gapic.WorkerPoolSpec(one) for one in worker_pool_specs(job, image="i:1", folder="gs://b/r")]
    assert [pool.replica_count for pool in pools] == ([1, 3] if settings is GPUS else [1])
    for pool in pools:
        assert pool.container_spec.image_uri == "i:1"
        assert [*pool.container_spec.command, *pool.container_spec.args] == [
            "python",
            "-m",
            "components.detection_trainer.custom_job",
            "gs://b/r",
        ]
        given = "NVIDIA_L4" if settings is GPUS else "ct5lp-hightpu-4t"
        assert [(one.name, one.value) for one in pool.container_spec.env] == [(ACCELERATOR_VARIABLE, given)]
    machine = pools[0].machine_spec
    if settings is GPUS:
        assert machine.accelerator_type == aiplatform.gapic.AcceleratorType.NVIDIA_L4
        assert (machine.machine_type, machine.accelerator_count) == ("g2-standard-24", 2)
    else:
        assert (machine.machine_type, machine.tpu_topology) == ("ct5lp-hightpu-4t", "2x2")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("{workers: {machine_type: a}}", "workers without a chief"),
        ("{strategy: spot}", "strategy = spot does nothing without chief"),
        ("{chief: {machine_type: a, replicas: 2}}", "one machine leads"),
        ("{chief: {accelerator: NVIDIA_L4}}", "accelerator = NVIDIA_L4 does nothing without machine_type"),
    ],
)
def test_a_job_that_cannot_be_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"run.vertex.trainer_job={assignment}"])


class Vertex:
    """Runs the chief of each job, and the workers, in this process."""

    jobs: list[dict[str, Any]]

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments

    def run(self, **arguments: Any) -> None:
        from components.detection_trainer.custom_job import main

        Vertex.jobs.append({**self._arguments, **arguments})
        main(self._arguments["worker_pool_specs"][0]["container_spec"]["args"])


def _artifacts(folder: Path) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    from tfx.types import artifact_utils, standard_artifacts

    examples = standard_artifacts.Examples()
    examples.uri, examples.id = str(folder / "examples"), 5
    examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT])
    shards = Path(examples.uri, split_dir(TRAIN_SPLIT))
    shards.mkdir(parents=True)
    write_shards(shards, rectangles(3))
    write_json(Path(examples.uri, DATASET_JSON), {"categories": CATEGORIES})
    outputs = {"model": [standard_artifacts.Model()], "model_run": [standard_artifacts.ModelRun()]}
    for key, [artifact] in outputs.items():
        artifact.uri = str(folder / key)
    return {"examples": [examples]}, outputs


def _properties(folder: Path) -> dict[str, Any]:
    from components.detection_trainer.identity import trainer_properties

    config = tiny_config(f"run.vertex.trainer_job={json.dumps(GPUS)}", "run.vertex.project=mine", *SUBMISSION)
    job = {"image": "image:1", "vertex": config.run.vertex.model_dump(mode="json")}
    return {**trainer_properties(config, TRAIN_SPLIT), "run_root": str(folder / "run"), "custom_job": json.dumps(job)}


def test_the_component_takes_over_what_the_job_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud import aiplatform

    from components.detection_trainer import custom_job, executor
    from components.history.queries import History

    monkeypatch.setattr(executor, "train", lambda config, **arguments: None)
    monkeypatch.setattr(
        executor, "_publish", lambda working, model, *_: write_text(Path(model, CONFIG_YAML), "train: {}")
    )
    monkeypatch.setattr(aiplatform, "CustomJob", Vertex)
    monkeypatch.setattr(Vertex, "jobs", [], raising=False)
    inputs, outputs = _artifacts(tmp_path)
    custom_job.Executor().Do(inputs, outputs, _properties(tmp_path))
    [job] = Vertex.jobs
    assert (job["project"], job["location"], job["max_wait_duration"]) == ("mine", "us-central1", 7200)
    assert job["scheduling_strategy"] == aiplatform.gapic.Scheduling.Strategy.SPOT
    assert [pool["replica_count"] for pool in job["worker_pool_specs"]] == [1, 3]
    assert (job["labels"], job["network"], job["encryption_spec_key_name"]) == ({"team": "vision"}, NETWORK, KEY)
    [model] = outputs["model"]
    [record] = History(str(tmp_path / "run")).models.values()
    assert model.uri == record.uri == str(tmp_path / "model")
    assert model.get_string_custom_property("training") == record.training


def test_a_worker_neither_publishes_nor_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components.detection_trainer import custom_job, executor
    from components.history.queries import History

    seen: list[Path] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments["output"]))
    monkeypatch.setattr(executor, "_publish", lambda *arguments: pytest.fail("a worker published"))
    cluster = {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}
    task = {"type": "workerpool1", "index": 0}
    monkeypatch.setenv("CLUSTER_SPEC", json.dumps({"cluster": cluster, "task": task}))
    inputs, outputs = _artifacts(tmp_path)
    request = tmp_path / "model_run.job/request.json"
    from tfx.types import artifact_utils

    write_json(
        request,
        {
            "inputs": artifact_utils.jsonify_artifact_dict(inputs),
            "outputs": artifact_utils.jsonify_artifact_dict(outputs),
            "properties": _properties(tmp_path),
        },
    )
    custom_job.main([str(request.parent)])
    assert seen[0].parent == tmp_path / "run/training"
    assert [path.name for path in request.parent.iterdir()] == ["request.json"]
    assert History(str(tmp_path / "run")).models == {}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("Job failed with: out of memory"), "that trains has failed: Job failed with: out of memory"),
        (
            ServiceUnavailable("Busy."),
            r"cannot train in a custom job: the service failed: Busy \(status 503\)\. It may have been done: look for "
            "a job named detection-trainer that still trains before you rerun the command.",
        ),
    ],
)
def test_a_job_that_failed_or_is_out_of_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    from google.cloud import aiplatform

    from components.detection_trainer import custom_job

    def fail(self: Any, **arguments: Any) -> None:
        raise error

    monkeypatch.setattr(aiplatform, "CustomJob", Vertex)
    monkeypatch.setattr(Vertex, "run", fail)
    inputs, outputs = _artifacts(tmp_path)
    with pytest.raises(CocoflowError, match=message):
        custom_job.Executor().Do(inputs, outputs, _properties(tmp_path))
