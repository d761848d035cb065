"""The notebooks run, cell by cell, on a small data set and a model that knows nothing."""

import json
from pathlib import Path

import matplotlib as mpl
import pytest

from pipelines.demo_data import make_demo_data
from tests.detection.fake_detector import save_fake_detector

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_demo_data(tmp_path / "runs" / "demo-data", train_images=1, eval_images=3)
    (tmp_path / "runs" / "demo" / "serving").mkdir(parents=True)
    save_fake_detector(tmp_path / "runs" / "demo" / "serving" / "12", category_ids=(1, 2, 3))
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    namespace: dict[str, object] = {}
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{path.name} cell {number}", "exec"), namespace)
    assert len(namespace["results"]) == 3  # type: ignore[arg-type]
    assert set(namespace["metrics"].by_name) >= {"AP", "AR100"}  # type: ignore[attr-defined]
