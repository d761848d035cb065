"""The Python of docs/python.md and docs/tfx.md runs as it stands, with a tiny detector in place of the large ones."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

import pipelines
from detection import coco
from detection.coco.io.results import write_results
from detection.datasets.demo_data import make_demo_data
from detection.models.registry import detector_from_config
from detection.weights.imported_model import ImportedModel, write_model
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import SMALL
from tests.pipelines.small_run import push_at_once

ROOT = Path(__file__).parents[1]
PUBLISHED = (
    "model.name=efficientdet-nano",
    "model.image_size=64",
    "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}, min_level: 4, max_level: 5}",
)
SETTINGS = (
    *SMALL,
    "train.steps=3",
    "train.batch_size=4",
    "train.validation.every=null",
    "evaluate.losses=false",
    "evaluate.thresholds={absolute: {AP: 0.0}}",
)


def _blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set, a photograph, and a cache of weights with one detector."""
    tiny_detector.register()
    make_demo_data(tmp_path / "my_coco", train_images=8, eval_images=3)
    categories = json.loads((tmp_path / "my_coco/annotations/instances_val.json").read_text())["categories"]
    Image.new("RGB", (64, 48), "gray").save(tmp_path / "photo.jpg")
    write_results(tmp_path / "detections.json", [])
    config = load_config(None, [*PUBLISHED])
    weights = {one.path: one.numpy() for one in detector_from_config(config.model, categories).variables}
    folder = tmp_path / "weights" / "efficientdet-d0"
    folder.mkdir(parents=True)
    write_model(ImportedModel("model", 0, config, categories, weights, {}, (), ()), folder)

    def load_small_config(name: str = "default", assignments: tuple[str, ...] = ()) -> Config:
        return read_config(name, [*assignments, *SETTINGS])

    read_config = pipelines.load_config
    monkeypatch.setattr(pipelines, "load_config", load_small_config)
    push_at_once(monkeypatch)
    monkeypatch.setenv("COCOFLOW_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_page_of_python(workplace: Path) -> None:
    names: dict[str, object] = {}
    for block in _blocks("docs/python.md"):
        exec(compile(block, "docs/python.md", "exec"), names)
    with Image.open(workplace / "drawn.jpg") as drawn:
        assert drawn.size == (64, 48)
    assert isinstance(names["metrics"], coco.CocoMetrics)
    assert (workplace / "out" / "saved_model" / "saved_model.pb").is_file()
    assert names["outputs"]


@pytest.mark.slow
@pytest.mark.e2e
def test_the_page_of_tfx(workplace: Path) -> None:
    [block] = _blocks("docs/tfx.md")
    assert block[block.index("def create") : block.index("\n\n\ntfx.")].count("\n") < 30
    for _ in range(2):  # the second time, TFX's cache and ours have everything
        exec(compile(block, "docs/tfx.md", "exec"), {"__name__": "__main__"})
        [version] = (workplace / "runs" / "mine" / "serving").iterdir()
        assert (version / "saved_model.pb").is_file()
