"""Which model a training starts from, in whole little pipelines; TFX takes 20 s to import: imported inside."""

from pathlib import Path

import pytest

from components.history.queries import History
from schemas.config.config_io import load_config
from tests.components.coco_example_gen.data_set import write_data_set

pytestmark = pytest.mark.slow

WARM = "train.init.from_previous_model=true"


class Runs:
    """A pipeline that is run again and again on one store, and what its runs left there."""

    def __init__(self, root: Path, runner: str, *assignments: str) -> None:
        self.root = root
        self.runner = runner
        self.assignments = assignments

    def __call__(self, *assignments: str, blessed: int = 1) -> tuple[str, str]:
        """Runs it; the states of trainer and evaluator."""
        from tests.pipelines.base_model_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        config = load_config(None, [*self.assignments, WARM, *assignments])
        states = run_nodes(make_nodes(str(self.root), config, blessed=blessed), self.root, runner=self.runner)
        return states["DetectionTrainer"], states["CocoEvaluator"]

    def bases(self) -> list[int]:
        """Of each model the one that its training started from, as positions among the models, from 1; 0: none."""
        models = History(str(self.root)).models.values()
        folders = ["None", *(str(Path(model.uri, "Format-Serving")) for model in models)]
        told = [folders.index(Path(folder, "saved_model.pb").read_text()) for folder in folders[1:]]
        uris = [None, *(model.uri for model in models)]
        assert [uris.index(model.base_model) for model in models] == told
        return told


@pytest.fixture(autouse=True)
def _nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from components.detection_trainer import executor
    from tests.pipelines import base_model_stubs

    monkeypatch.setattr(executor, "train", base_model_stubs.train)


NEW, SAME = ("done", "done"), ("reused", "reused")


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_each_training_starts_from_the_last_one_blessed_and_is_reused_when_nothing_changed(
    tmp_path: Path, runner: str
) -> None:
    runs = Runs(tmp_path, runner, f"data.root={tmp_path}/data")
    write_data_set(tmp_path / "data")

    assert runs() == NEW
    assert runs.bases() == [0]
    assert runs() == SAME
    assert runs("train.seed=2") == NEW
    assert runs("train.seed=2") == SAME
    assert runs.bases() == [0, 1]
    if runner == "local":
        assert runs() == SAME, "an earlier configuration finds its own earlier result"
        assert runs("train.seed=3", blessed=0) == NEW
        assert runs("train.seed=3", blessed=1) == ("reused", "done"), "now it is blessed, and still itself"
        assert runs("train.seed=4", blessed=0) == NEW
        assert runs("train.seed=5") == NEW
        assert runs.bases() == [0, 1, 2, 3, 3], "model 4 was not blessed"


def test_new_data_trains_on_from_the_last_model(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "local", f"data.root={tmp_path}/data/{{SPAN}}", "data.window=2")
    write_data_set(tmp_path / "data/1", images=1)
    assert runs() == NEW
    write_data_set(tmp_path / "data/2", images=2)
    assert runs() == NEW
    assert runs() == SAME
    assert runs.bases() == [0, 1]


def test_other_initial_weights_train_anew(tmp_path: Path) -> None:
    import tensorflow as tf

    def write(value: float) -> str:
        return str(tf.train.Checkpoint(model={"w": tf.Variable(value)}).write(str(tmp_path / "ckpt-1")))

    runs = Runs(tmp_path, "local", f"data.root={tmp_path}/data", f"train.init.checkpoint={write(1.0)}")
    write_data_set(tmp_path / "data")
    assert runs() == NEW
    write(1.0)
    assert runs() == SAME
    write(2.0)
    assert runs()[0] == "done"
    assert runs.bases() == [0, 1]


def test_the_pipeline_has_the_node_only_where_it_is_asked_for(tmp_path: Path) -> None:
    from pipelines.pipeline import create_pipeline

    write_data_set(tmp_path / "data")

    def trainer_inputs(*assignments: str) -> dict[str, str]:
        config = load_config(None, [f"data.root={tmp_path}/data", f"run.root={tmp_path}/run", *assignments])
        [trainer] = [node for node in create_pipeline(config).components if node.id == "DetectionTrainer"]
        return {key: channel.producer_component_id for key, channel in trainer.inputs.items()}

    assert trainer_inputs() == {"examples": "CocoExampleGen"}
    assert trainer_inputs(WARM) == {"examples": "CocoExampleGen", "base_model": "model_to_start_from"}
