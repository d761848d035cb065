"""Whole little pipelines on both runners; TFX takes 20 s to import: imported inside."""

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import RefusedModelError

pytestmark = pytest.mark.slow


class Runs:
    """Runs the stub pipeline again and again over one metadata store, and tells what each run did."""

    def __init__(self, root: Path, runner: str) -> None:
        self.root = root
        self.runner = runner
        self.seen = 0

    def __call__(self, *, seed: int, blessed: int = 1) -> dict[str, str]:
        """Returns the state of each node's new execution: COMPLETE or CACHED."""
        from tests.pipelines.baseline_stubs import create_pipeline

        self.make_runner().run(create_pipeline(self.root, seed=seed, blessed=blessed))
        store = self.store()
        types = {kind.id: kind.name.rsplit(".", 1)[-1] for kind in store.get_execution_types()}
        new = [execution for execution in store.get_executions() if execution.id > self.seen]
        self.seen = max(execution.id for execution in new)
        names = {execution.id: execution.State.Name(execution.last_known_state) for execution in new}
        return {types[execution.type_id]: names[execution.id] for execution in new}

    def make_runner(self) -> Any:
        if self.runner == "beam":
            from tfx.orchestration.beam.beam_dag_runner import BeamDagRunner

            return BeamDagRunner()
        from tfx.orchestration.local.local_dag_runner import LocalDagRunner

        return LocalDagRunner()

    def store(self) -> Any:
        import ml_metadata
        from tfx.orchestration import metadata

        config = metadata.sqlite_metadata_connection_config(str(self.root / "metadata.sqlite"))
        return ml_metadata.MetadataStore(config)

    def baselines(self) -> list[tuple[int, int]]:
        """(candidate, baseline) of each evaluation that ran, as positions among the models, from 1; 0: none."""
        models = [0, *sorted(model.id for model in self.store().get_artifacts_by_type("Model"))]
        blessings = sorted(self.store().get_artifacts_by_type("ModelBlessing"), key=lambda blessing: blessing.id)
        ids = [
            [blessing.custom_properties[key].int_value for key in ("current_model_id", "baseline_model_id")]
            for blessing in blessings
        ]
        return [(models.index(candidate), models.index(baseline)) for candidate, baseline in ids]

    def pushes(self) -> list[str]:
        folders = sorted((self.root / "serving").iterdir(), key=lambda folder: int(folder.name))
        return [(folder / "saved_model.pb").read_text() for folder in folders]


FRESH = {"StubTrainer": "COMPLETE", "Resolver": "COMPLETE", "StubEvaluator": "COMPLETE", "SavedModelPusher": "COMPLETE"}
CACHED = {"StubTrainer": "CACHED", "Resolver": "COMPLETE", "StubEvaluator": "CACHED", "SavedModelPusher": "CACHED"}


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_each_model_meets_the_last_one_blessed_before_it(tmp_path: Path, runner: str) -> None:
    runs = Runs(tmp_path, runner)

    assert runs(seed=1) == FRESH
    assert runs.baselines() == [(1, 0)]
    assert runs(seed=1) == CACHED
    assert runs.baselines() == [(1, 0)]

    assert runs(seed=2) == FRESH
    assert runs.baselines() == [(1, 0), (2, 1)]
    assert runs(seed=2) == CACHED

    if runner == "local":
        assert runs(seed=3, blessed=0) == FRESH
        assert runs(seed=4) == FRESH
        assert runs.baselines() == [(1, 0), (2, 1), (3, 2), (4, 2)], "model 3 was not blessed"
        assert runs(seed=4) == CACHED
        assert runs(seed=1) == CACHED, "an earlier configuration finds its own earlier results"
        assert runs.pushes() == ["1", "2", "4"]
    else:
        assert runs.pushes() == ["1", "2"]


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_a_refused_model_is_no_baseline_until_it_is_pushed(
    tmp_path: Path, runner: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from components.saved_model_pusher import executor
    from components.saved_model_pusher.push import Pushed, PushRequest

    push, refused = executor.push, {"2"}

    def validated(request: PushRequest) -> Pushed:
        if Path(request.saved_model, "saved_model.pb").read_text() in refused:
            raise RefusedModelError("its detections differ")
        return push(request)

    monkeypatch.setattr(executor, "push", validated)
    runs = Runs(tmp_path, runner)
    assert runs(seed=1) == FRESH
    with pytest.raises(Exception, match="its detections differ"):
        runs(seed=2)
    with caplog.at_level("INFO", "cocoflow.baseline"):
        assert runs(seed=3)["SavedModelPusher"] == "COMPLETE"
    assert runs.baselines() == [(1, 0), (2, 1), (3, 1)]
    assert caplog.text.count("blessed, but its push was refused") == 1
    with pytest.raises(Exception, match="its detections differ"):
        runs(seed=2)
    refused.clear()
    assert runs(seed=2) == CACHED | {"SavedModelPusher": "COMPLETE"}, "its evaluation is not done again"
    assert runs(seed=3)["StubEvaluator"] == "COMPLETE"
    assert runs.baselines() == [(1, 0), (2, 1), (3, 1), (3, 2)]
    assert runs.pushes() == ["1", "3", "2", "3"]


def artifacts(kind: Any, **properties: list[int]) -> list[Any]:
    """Artifacts with the given ids and integer custom properties."""
    made = []
    for position, number in enumerate(properties.pop("id")):
        artifact = kind()
        artifact.id = number
        for key, values in properties.items():
            artifact.set_int_custom_property(key, values[position])
        made.append(artifact)
    return made


@pytest.mark.parametrize(
    ("candidates", "blessed", "expected"),
    [
        ([30], [1, 1, 1, 1], [20]),  # neither itself nor the younger 40
        ([30], [1, 0, 1, 1], [10]),
        ([10], [1, 1, 1, 1], []),
        ([40], [0, 0, 0, 1], []),
        ([10, 40, 20], [1, 1, 1, 1], [30]),  # an interactive run: every model of the trainer
        ([], [1, 1, 1, 1], []),
    ],
)
def test_the_strategy_alone(candidates: list[int], blessed: list[int], expected: list[int]) -> None:
    from tfx.types import standard_artifacts

    from pipelines.resolvers.baseline import PreviousBlessedModelStrategy

    resolved = PreviousBlessedModelStrategy().resolve_artifacts(
        None,
        {
            "candidate": artifacts(standard_artifacts.Model, id=candidates),
            "model": artifacts(standard_artifacts.Model, id=[20, 40, 10, 30]),
            "model_blessing": artifacts(
                standard_artifacts.ModelBlessing, id=[5, 6, 7, 8], blessed=blessed, current_model_id=[10, 20, 30, 40]
            ),
        },
    )
    assert [model.id for model in resolved["model"]] == expected
    assert [b.get_int_custom_property("current_model_id") for b in resolved["model_blessing"]] == expected
    assert resolved["candidate"] == []
