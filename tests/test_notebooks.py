"""The notebooks run in IPython on a small data set, and are stored without outputs."""

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib import pyplot

from detection.datasets.demo_data import make_demo_data
from tests.detection.fake_detector import save_fake_detector
from tests.detection.mask_keypoint_data import save_model, write_data
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import SMALL
from tests.pipelines.small_run import push_at_once

PROJECT = Path(__file__).parents[1]
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))

# Assignments in place of those of the cell tagged `parameters`; paths are below {tmp}, the test's folder.
PARAMETERS: dict[str, dict[str, Any]] = {
    "data": {"DATA": "{tmp}/data", "REPORT": "{tmp}/report.html"},
    "pipeline": {
        "CONFIG": "demo",
        "SETTINGS": [
            *SMALL,
            "train.steps=3",
            "train.log_every=1",
            "evaluate.thresholds={absolute: {AP: 0.0}}",
            "evaluate.losses=false",
        ],
        "DATA": "{tmp}/data",
        "ROOT": "{tmp}/run",
    },
    "results": {
        "SERVING": "{tmp}/serving",
        "TRUTH": "{tmp}/data/annotations/instances_val.json",
        "IMAGES": "{tmp}/data/val",
    },
}
MASKS = {"SERVING": "{tmp}/masks", "TRUTH": "{tmp}/shapes/instances_val.json", "IMAGES": "{tmp}/shapes/val"}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # not the user's profile and history
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def executed(
    request: pytest.FixtureRequest, shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Any]]:
    """What the cells of a notebook display, by MIME type; executed in the notebook's folder, where Jupyter starts."""
    name, assignments = request.param
    tiny_detector.register()
    push_at_once(monkeypatch)
    make_demo_data(tmp_path / "data", train_images=4, eval_images=3)
    save_fake_detector(tmp_path / "serving" / "12", category_ids=(1, 2, 3))
    if assignments is MASKS:
        save_model(tmp_path / "masks" / "3")
        write_data(tmp_path / "shapes", 6)
    cells = _code(name)
    [parameters] = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert {line.partition(" = ")[0] for line in parameters.source.splitlines()} == PARAMETERS[name].keys()
    # As those of the notebooks, the paths are relative to the project's folder.
    folder = os.path.relpath(tmp_path, PROJECT)
    lines = [f"{key} = {value!r}".replace("{tmp}", folder) for key, value in assignments.items()]
    parameters.source = "\n".join(lines)
    monkeypatch.chdir(PROJECT / "notebooks")
    shown: dict[str, list[Any]] = defaultdict(list)
    for cell in cells:
        with capture_output() as captured:
            result = shell.run_cell(cell.source)
            result.raise_error()
        outputs = [output.data for output in captured.outputs]
        if result.result is not None:
            outputs.append(shell.display_formatter.format(result.result)[0])
        for kind, content in (item for output in outputs for item in output.items()):
            shown[kind].append(content)
        # Jupyter displays what a cell has drawn.
        shown["image/png"] += pyplot.get_fignums()
        pyplot.close("all")
    return shown


def _code(name: str) -> list[Any]:
    import nbformat  # four seconds, which collecting the tests should not take

    notebook = nbformat.read(PROJECT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("executed", [("data", PARAMETERS["data"])], indirect=True)
def test_the_notebook_of_data_shows_splits_issues_and_pictures(executed: dict[str, list[Any]], tmp_path: Path) -> None:
    assert "instances_train.json" in executed["text/plain"][0]
    assert len(executed["image/png"]) == 3
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("executed", [("results", MASKS)], indirect=True)
def test_the_notebook_of_results_shows_both_aps_of_a_model_with_masks(executed: dict[str, list[Any]]) -> None:
    [text] = [text for text in executed["text/plain"] if "'AR100'" in text]
    assert text.count("'AP50'") == 2
    assert text.index("'bbox'") < text.index("'segm'")
    assert len(executed["image/png"]) == 4


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("executed", [("pipeline", PARAMETERS["pipeline"])], indirect=True)
def test_the_notebook_of_the_pipeline_runs_every_node(executed: dict[str, list[Any]], tmp_path: Path) -> None:
    texts = executed["text/plain"]
    assert any("'image/encoded': 'bytes_list'" in text for text in texts)
    assert any("'AP50'" in text for text in texts)
    assert len(executed["image/png"]) == 1
    [version] = (tmp_path / "run" / "serving").iterdir()
    assert (version / "saved_model.pb").is_file()
    assert version.name in texts[-1]
    [page] = [text for text in executed["text/html"] if "<iframe" in text]
    assert "&lt;title&gt;" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_are_executed_here(path: Path) -> None:
    assert path.stem in PARAMETERS
    code = _code(path.stem)
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
