"""Which model is the baseline, and which one a training starts from; TFX takes 20 s to import: imported inside."""

from pathlib import Path

import pytest

from components.history.queries import History
from components.history.store import read_executions
from schemas.config.config_io import load_config
from schemas.errors import RefusedModelError
from tests.components.coco_example_gen.data_set import write_data_set

pytestmark = pytest.mark.slow


class Runs:
    """Runs the stub pipeline again and again below one folder, and tells what each run did."""

    def __init__(self, root: Path, runner: str = "local") -> None:
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


def test_a_refused_model_is_no_baseline_until_it_is_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from components.saved_model_pusher import executor
    from components.saved_model_pusher.push import Pushed, PushRequest

    push, refused = executor.push, {"2"}

    def validated(request: PushRequest) -> Pushed:
        if Path(request.saved_model, "saved_model.pb").read_text() in refused:
            raise RefusedModelError("its detections differ")
        return push(request)

    monkeypatch.setattr(executor, "push", validated)
    runs = Runs(tmp_path)
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

    runs = Runs(tmp_path)
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


WARM = "train.init.from_previous_model=true"


class WarmRuns:
    """A pipeline that is run again and again on one store, and what its runs left there."""

    def __init__(self, root: Path, *assignments: str) -> None:
        self.root = root
        self.assignments = assignments

    def __call__(self, *assignments: str, blessed: int = 1) -> tuple[str, str]:
        """Runs it; the states of trainer and evaluator."""
        from tests.pipelines.base_model_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        config = load_config(None, [*self.assignments, WARM, *assignments])
        states = run_nodes(make_nodes(str(self.root), config, blessed=blessed), self.root)
        return states["DetectionTrainer"], states["CocoEvaluator"]

    def bases(self) -> list[int]:
        """Of each model the one that its training started from, as positions among the models, from 1; 0: none."""
        models = History(str(self.root)).models.values()
        folders = ["None", *(str(Path(model.uri, "Format-Serving")) for model in models)]
        told = [folders.index(Path(folder, "saved_model.pb").read_text()) for folder in folders[1:]]
        uris = [None, *(model.uri for model in models)]
        assert [uris.index(model.base_model) for model in models] == told
        return told


@pytest.fixture
def _nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from components.detection_trainer import executor
    from tests.pipelines import base_model_stubs

    monkeypatch.setattr(executor, "train", base_model_stubs.train)


NEW, SAME = ("done", "done"), ("reused", "reused")


@pytest.mark.usefixtures("_nothing_is_trained")
def test_each_training_starts_from_the_last_one_blessed_and_is_reused_when_nothing_changed(tmp_path: Path) -> None:
    runs = WarmRuns(tmp_path, f"data.root={tmp_path}/data")
    write_data_set(tmp_path / "data")

    assert runs() == NEW
    assert runs.bases() == [0]
    assert runs() == SAME
    assert runs("train.seed=2") == NEW
    assert runs("train.seed=2") == SAME
    assert runs.bases() == [0, 1]
    assert runs() == SAME, "an earlier configuration finds its own earlier result"
    assert runs("train.seed=3", blessed=0) == NEW
    assert runs("train.seed=3", blessed=1) == ("reused", "done"), "now it is blessed, and still itself"
    assert runs("train.seed=4", blessed=0) == NEW
    assert runs("train.seed=5") == NEW
    assert runs.bases() == [0, 1, 2, 3, 3], "model 4 was not blessed"


@pytest.mark.usefixtures("_nothing_is_trained")
def test_new_data_trains_on_from_the_last_model(tmp_path: Path) -> None:
    runs = WarmRuns(tmp_path, f"data.root={tmp_path}/data/{{SPAN}}", "data.window=2")
    write_data_set(tmp_path / "data/1", images=1)
    assert runs() == NEW
    write_data_set(tmp_path / "data/2", images=2)
    assert runs() == NEW
    assert runs() == SAME
    assert runs.bases() == [0, 1]


@pytest.mark.usefixtures("_nothing_is_trained")
def test_other_initial_weights_train_anew(tmp_path: Path) -> None:
    import tensorflow as tf

    def write(value: float) -> str:
        return str(tf.train.Checkpoint(model={"w": tf.Variable(value)}).write(str(tmp_path / "ckpt-1")))

    runs = WarmRuns(tmp_path, f"data.root={tmp_path}/data", f"train.init.checkpoint={write(1.0)}")
    write_data_set(tmp_path / "data")
    assert runs() == NEW
    write(1.0)
    assert runs() == SAME
    write(2.0)
    assert runs()[0] == "done"
    assert runs.bases() == [0, 1]


@pytest.mark.usefixtures("_nothing_is_trained")
def test_the_pipeline_has_the_node_only_where_it_is_asked_for(tmp_path: Path) -> None:
    from pipelines.pipeline import create_pipeline

    write_data_set(tmp_path / "data")

    def trainer_inputs(*assignments: str) -> dict[str, str]:
        config = load_config(None, [f"data.root={tmp_path}/data", f"run.root={tmp_path}/run", *assignments])
        [trainer] = [node for node in create_pipeline(config).components if node.id == "DetectionTrainer"]
        return {key: channel.producer_component_id for key, channel in trainer.inputs.items()}

    assert trainer_inputs() == {"examples": "CocoExampleGen"}
    assert trainer_inputs(WARM) == {"examples": "CocoExampleGen", "base_model": "model_to_start_from"}
