"""A `run.root` of an earlier version is read."""

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from components.history.read import read_examples, read_records
from detection.datasets.demo_data import make_demo_data
from tests.forked_calls import forked_calls
from tests.pipelines import old_root, stubbed_run
from tests.pipelines.old_root import OldRoot, write_old_root


@pytest.fixture
def old(tmp_path: Path) -> OldRoot:
    return write_old_root(tmp_path)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert pipeline_runner.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_lists_its_runs_and_artifacts(old: OldRoot, capsys: pytest.CaptureFixture[str]) -> None:
    status = _json(capsys, "status", "--artifacts", "--root", old.root)
    assert [(run["id"], run["state"], run["data"]["span"], run["dead"]) for run in status["runs"]] == [
        (old.runs[1], "done", 2, False),
        (old.runs[0], "done", 1, False),
    ]
    assert [run["pushed_path"] for run in status["runs"]] == old.pushed[::-1]
    folders = [one["folder"] for one in status["artifacts"]]
    assert {*old.examples, *old.models, *old.pushed} <= {*folders}
    assert {one["state"] for one in status["artifacts"]} == {"live"}


def test_lineage_leads_to_both_spans_and_the_base_model(old: OldRoot, capsys: pytest.CaptureFixture[str]) -> None:
    lineage = _json(capsys, "lineage", old.root)
    assert (lineage["saved_model"], lineage["pushed_by"], lineage["unknown"]) == (old.pushed[1], old.runs[1], [])
    assert [(one["model"], one["run"]) for one in lineage["chain"]] == [*zip(old.models, old.runs, strict=True)][::-1]
    assert [[data["span"] for data in one["data"]] for one in lineage["chain"]] == [[2, 1], [1]]
    assert [Path(one["config_path"]).is_file() for one in lineage["chain"]] == [True, True]
    assert (lineage["evaluated"]["blessed"], lineage["evaluated"]["metrics"]) == (True, {"AP": 0.5})


def test_rollback_publishes_the_first_model_again(old: OldRoot) -> None:
    assert pipeline_runner.main(["rollback", "--directory", f"{old.root}/serving"]) == 0
    newest = max(Path(old.root, "serving").iterdir())
    first = Path(old.pushed[0])
    assert newest.name not in (first.name, Path(old.pushed[1]).name)
    assert (newest / "saved_model.pb").read_text() == (first / "saved_model.pb").read_text()


@pytest.mark.slow
def test_run_goes_on_from_its_last_model(old: OldRoot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_demo_data(tmp_path / "data/3", train_images=3, eval_images=1)
    log, arguments = tmp_path / "log", (old.root, str(tmp_path / "data/{SPAN}"), str(tmp_path / "log"))
    with forked_calls(*stubbed_run.MODULES) as call:
        assert call(f"{old_root.__name__}:run", *arguments) == 0
        told = stubbed_run.lines(log)
        assert "CocoEvaluator end" in told
        assert call(f"{old_root.__name__}:run", *arguments) == 0
        assert stubbed_run.lines(log) == told, "everything is reused"
    last = [read_records(old.root, node)[-1] for node in ("DetectionTrainer", "CocoEvaluator")]
    assert [last[0].inputs["base_model"], last[1].inputs["baseline_model"]] == [[old.models[1]], [old.models[1]]]
    status = _json(capsys, "status", "--root", old.root)
    assert [run["state"] for run in status["runs"]] == ["done"] * 4
    lineage = _json(capsys, "lineage", old.root)
    assert [one["model"] for one in lineage["chain"]] == [last[0].output("model").uri, *old.models[::-1]]
    assert len(read_examples(old.root)) == 3
