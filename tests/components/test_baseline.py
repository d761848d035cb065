"""Whole little pipelines on both runners; TFX takes 20 s to import: imported inside."""

from pathlib import Path

import pytest

from components.history.queries import History
from components.history.store import read_executions
from schemas.errors import RefusedModelError

pytestmark = pytest.mark.slow


class Runs:
    """Runs the stub pipeline again and again below one folder, and tells what each run did."""

    def __init__(self, root: Path, runner: str) -> None:
        self.root = root
        self.runner = runner

    def __call__(self, *, seed: int, blessed: int = 1) -> dict[str, str]:
        """Returns the state of each node."""
        from tests.pipelines.baseline_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        return run_nodes(make_nodes(str(self.root), seed=seed, blessed=blessed), self.root, runner=self.runner)

    def baselines(self) -> list[tuple[int, int]]:
        """(candidate, baseline) of each evaluation that ran, as positions among the models, from 1; 0: none."""
        models = ["", *(model.uri for model in History(str(self.root)).models.values())]
        evaluated = read_executions(str(self.root), "CocoEvaluator")
        told = [Path(one.output("evaluation").uri, "baseline").read_text() for one in evaluated]
        candidates = [one.inputs["model"][0] for one in evaluated]
        assert [one.inputs["baseline_model"] for one in evaluated] == [[uri] if uri else [] for uri in told]
        return [(models.index(one), models.index(other)) for one, other in zip(candidates, told, strict=True)]

    def pushes(self) -> list[str]:
        folders = sorted((self.root / "serving").iterdir(), key=lambda folder: int(folder.name))
        return [(folder / "saved_model.pb").read_text() for folder in folders]


NODES = ("DetectionTrainer", "previous_blessed_model", "CocoEvaluator", "SavedModelPusher")
FRESH = dict.fromkeys(NODES, "done")
REUSED = dict.fromkeys(NODES, "reused") | {"previous_blessed_model": "done"}


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_each_model_meets_the_last_one_blessed_before_it(tmp_path: Path, runner: str) -> None:
    runs = Runs(tmp_path, runner)

    assert runs(seed=1) == FRESH
    assert runs.baselines() == [(1, 0)]
    assert runs(seed=1) == REUSED
    assert runs.baselines() == [(1, 0)]

    assert runs(seed=2) == FRESH
    assert runs.baselines() == [(1, 0), (2, 1)]
    assert runs(seed=2) == REUSED

    if runner == "local":
        assert runs(seed=3, blessed=0) == FRESH
        assert runs(seed=4) == FRESH
        assert runs.baselines() == [(1, 0), (2, 1), (3, 2), (4, 2)], "model 3 was not blessed"
        assert runs(seed=4) == REUSED
        assert runs(seed=1) == REUSED, "an earlier configuration finds its own earlier results"
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
    with caplog.at_level("INFO", "cocoflow.history"):
        assert runs(seed=3)["SavedModelPusher"] == "done"
    assert runs.baselines() == [(1, 0), (2, 1), (3, 1)]
    assert caplog.text.count("blessed, but its push was refused") == 1
    with pytest.raises(Exception, match="its detections differ"):
        runs(seed=2)
    refused.clear()
    assert runs(seed=2) == REUSED | {"SavedModelPusher": "done"}, "its evaluation is not done again"
    assert runs(seed=3)["CocoEvaluator"] == "done"
    assert runs.baselines() == [(1, 0), (2, 1), (3, 1), (3, 2)]
    assert runs.pushes() == ["1", "3", "2", "3"]


def test_a_model_that_was_rolled_back_is_no_baseline_until_it_is_published_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from components.saved_model_pusher.rollback import roll_back

    runs = Runs(tmp_path, "local")
    runs(seed=1)
    runs(seed=2)
    rolled_back = roll_back(tmp_path / "serving")
    assert rolled_back.files_of < rolled_back.replaced
    with caplog.at_level("INFO", "cocoflow.history"):
        runs(seed=3)
    assert "blessed, but it was rolled back, so an earlier model takes its place" in caplog.text
    assert runs.baselines() == [(1, 0), (2, 1), (3, 1)]
    second = int(sorted((tmp_path / "serving").iterdir())[1].name)
    roll_back(tmp_path / "serving", to=second)
    runs(seed=4)
    # Model 3 is the newest, and was replaced by this rollback.
    assert runs.baselines()[-1] == (4, 2)
