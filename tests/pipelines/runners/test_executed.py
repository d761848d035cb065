"""Two runs of one compiled pipeline, as days on which new data arrives; minutes, as each task imports TFX."""

import json
from pathlib import Path

import pytest

import pipeline_runner
from detection.datasets.demo_data import make_demo_data
from schemas.artifacts import BLESSING_JSON, INIT_REPORT_JSON, RESOLVED_JSON
from tests.pipelines.runners.compiled_pipeline import CompiledPipeline, TaskError

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.extended]

SETTINGS = (
    "run.image=image:1",
    "data.root=gs://bucket/data/{SPAN}",
    "data.window=2",
    "train.init.from_previous_model=true",
    "model.name=efficientdet-nano",
    "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}, max_level: 5}",
    "train.steps=2",
    "train.validation.every=null",
    "train.batch_size=4",
    "evaluate.thresholds={absolute: {AP: 0.0}, not_worse: []}",
)


def _compiled(folder: Path, programs: Path, *settings: str) -> CompiledPipeline:
    compiled = folder / "pipeline.yaml"
    flags = [part for key in (*SETTINGS, f"run.root={folder}/run", *settings) for part in ("--set", key)]
    assert pipeline_runner.main(["compile", "--runner", "kubeflow", "--output", str(compiled), *flags]) == 0
    return CompiledPipeline(
        compiled, programs=programs, root=f"{folder}/run/artifacts", scratch=folder / "scratch", runs_drivers=False
    )


def test_the_second_day_builds_on_the_first(installed_programs: Path, tmp_path: Path) -> None:
    pipeline = _compiled(tmp_path, installed_programs)
    data = f"{tmp_path}/data/{{SPAN}}"
    days = []
    for span in (1, 2):
        make_demo_data(tmp_path / "data" / str(span), train_images=6 + span, eval_images=4)
        days.append(pipeline.run(data_root=data))

    first, second = (
        {name: {key: one["uri"] for key, one in made.items()} for name, made in day.items()} for day in days
    )
    windows = [
        json.loads(Path(day["training_window"]["examples"], RESOLVED_JSON).read_text()) for day in (first, second)
    ]
    examples = [day["CocoExampleGen"]["examples"] for day in (first, second)]
    assert [[one["uri"] for one in window["artifacts"]] for window in windows] == [examples[:1], examples[::-1]]
    assert [one["properties"]["span"] for one in windows[1]["artifacts"]] == [2, 1]
    model = first["DetectionTrainer"]["model"]
    for node in ("model_to_start_from", "previous_blessed_model"):
        resolved = [json.loads(Path(day[node]["model"], RESOLVED_JSON).read_text()) for day in (first, second)]
        assert [[one["uri"] for one in listed["artifacts"]] for listed in resolved] == [[], [model]]
    assert not Path(model, INIT_REPORT_JSON).exists()
    assert Path(second["DetectionTrainer"]["model"], INIT_REPORT_JSON).is_file()
    baselines = [
        json.loads(Path(day["CocoEvaluator"]["evaluation"], BLESSING_JSON).read_text()) for day in (first, second)
    ]
    assert baselines[0]["baseline"] is None
    assert "AP" in baselines[1]["baseline"]

    with pytest.raises(TaskError, match=r"parameters of this run: data\.span = 'someday'") as failed:
        pipeline.run(data_root=data, data_span="someday")
    assert str(failed.value).startswith("CocoExampleGen ended")


def test_a_trainer_that_was_given_a_gpu_does_not_train_without_it(installed_programs: Path, tmp_path: Path) -> None:
    make_demo_data(tmp_path / "data", train_images=6, eval_images=4)
    asked = "run.resources.DetectionTrainer.accelerator=nvidia.com/gpu"
    data = f"data.root={tmp_path}/data"
    pipeline = _compiled(
        tmp_path, installed_programs, "data.window=1", "train.init.from_previous_model=false", data, asked
    )
    with pytest.raises(TaskError, match=r"was given nvidia\.com/gpu .*, but TensorFlow sees no GPU") as failed:
        pipeline.run()
    assert str(failed.value).startswith("DetectionTrainer ended")
