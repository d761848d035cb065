"""`lineage`: from a pushed model back to its data, by the records and by what the SavedModel itself holds."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from components.history.store import digest_of_text, write_run
from schemas.artifacts import EXPORTED_FROM_JSON, EXTRA_FILES, INIT_REPORT_JSON, ORIGIN_JSON, POINTER_JSON
from tests.pipelines.recorded_root import SOURCE, local_root, publish_rollback, record_day, run_of, write_saved_model
from tests.storage_emulator.fixture import Bucket


def _lineage(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert pipeline_runner.main(["lineage", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


ORIGIN = {"name": "efficientnet-lite0", "weights": "imagenet", "origin": "package p 0.1.0", "licence": "Apache-2.0"}


def test_published_weights_are_named_with_their_licence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    report = Path(root, "artifacts/model/1", INIT_REPORT_JSON)
    report.write_text(json.dumps({"published": ORIGIN, "fresh": []}))
    model, base = _lineage(capsys, root)["chain"]
    assert (model["published"], base["published"]) == (None, ORIGIN)
    assert pipeline_runner.main(["lineage", f"{root}/serving/1001"]) == 0
    line = "initial weights: efficientnet-lite0 (imagenet), package p 0.1.0, licence Apache-2.0"
    assert line in capsys.readouterr().out
    # A pushed model that was copied elsewhere tells it by itself.
    alone = shutil.copytree(f"{root}/serving/1001", tmp_path / "alone")
    (alone / EXTRA_FILES / ORIGIN_JSON).write_text(json.dumps(ORIGIN))
    shutil.rmtree(root)
    assert _lineage(capsys, str(alone))["chain"][0]["published"] == ORIGIN


@pytest.mark.parametrize("named", ["", "serving", "serving/1002"])
def test_a_pushed_model_leads_to_its_data_and_base_model(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = local_root(tmp_path)
    lineage = _lineage(capsys, str(Path(root, named)))
    assert lineage["saved_model"] == f"{root}/serving/1002"
    assert lineage["pushed_by"] == "run-2"
    assert lineage["push"]["time"] == "2026-01-02T03:00:00+00:00"
    assert lineage["exported"] == {"step": 20, "weights": "ema"}
    assert lineage["unknown"] == []
    model, base = lineage["chain"]
    assert (model["model"], base["model"]) == (f"{root}/artifacts/model/2", f"{root}/artifacts/model/1")
    assert [(one["source"], one["span"], one["version"], one["identity"]) for one in model["data"]] == [
        (SOURCE, 2, 2, "data of 2"),
        (SOURCE, 1, 2, "data of 1"),
    ]
    assert (model["run"], base["run"]) == ("run-2", "run-1")
    text = Path(model["config_path"]).read_text()
    assert "seed: 2" in text
    assert model["config"] == digest_of_text(text)
    assert lineage["evaluated"] == {
        "evaluation": f"{root}/artifacts/evaluation/2",
        "blessed": True,
        "metrics": {"AP": 0.2, "AP50": 0.5},
        "reasons": ["AP is 2"],
        "baseline": None,
        "run": "run-2",
    }


def test_the_tree_says_the_same_in_whole_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    assert pipeline_runner.main(["lineage", f"{root}/serving/1001"]) == 0
    lines = [line.lstrip("│├└─ ") for line in capsys.readouterr().out.splitlines()]
    digest = digest_of_text(f"run:\n  root: {root}\ntrain:\n  seed: 1\n")
    assert lines == [
        f"{root}/serving/1001",
        "exported: step 10, ema weights",
        "pushed: 2026-01-01T03:00:00+00:00 by the run run-1",
        f"model: {root}/artifacts/model/1",
        "trained: by the run run-1",
        f"config: {digest}, {root}/history/configs/{digest}.yaml",
        f"data: {SOURCE}, span 1, version 2",
        f"examples: {root}/artifacts/examples/1, identity data of 1",
        f"evaluation: {root}/artifacts/evaluation/1, by the run run-1",
        "metrics: AP 0.1000, AP50 0.5000",
        "blessed: yes",
        "AP is 1",
    ]


def test_on_cloud_storage_the_records_of_a_compiled_pipeline_are_enough(
    gcs: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"{gcs.path}/run"
    day = record_day(root, 1, with_run=False)
    lineage = _lineage(capsys, day.pushed)
    assert lineage["chain"][0]["data"][0]["span"] == 1
    assert lineage["evaluated"]["metrics"]["AP"] == 0.1
    assert lineage["pushed_by"] == "run-1"
    assert lineage["unknown"] == []


@pytest.mark.parametrize("recognised", ["by its own file", "by its content"])
def test_a_moved_version_is_recognised(recognised: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    moved = tmp_path / "elsewhere" / "best"
    shutil.move(f"{root}/serving/1001", moved)
    if recognised == "by its own file":
        (moved / EXTRA_FILES / "config.yaml").unlink()
        origin = {"root": root, "model": "./artifacts/model/1", "run": "run-1"}
        (moved / EXTRA_FILES / POINTER_JSON).write_text(json.dumps(origin))
        shutil.rmtree(f"{root}/artifacts/model")
    for flags in ([], ["--root", root]):  # its files name the root
        lineage = _lineage(capsys, str(moved), *flags)
        assert lineage["chain"][0]["model"] == f"{root}/artifacts/model/1"
        assert lineage["push"]["destination"] == f"{root}/serving/1001"
        assert lineage["pushed_by"] == "run-1"


def test_what_is_unknown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = f"run:\n  root: {tmp_path}/gone\n"
    write_saved_model(str(tmp_path / "alone"), config, fingerprint=None, step=7)
    lineage = _lineage(capsys, str(tmp_path / "alone"))
    assert lineage["exported"]["step"] == 7
    assert lineage["chain"][0]["config"] == digest_of_text(config)
    assert lineage["chain"][0]["config_path"] == f"{tmp_path}/alone/assets.extra/config.yaml"
    assert lineage["unknown"] == [
        "runs, data and evaluation: no records were found; name the run.root of the training with --root"
    ]

    root = local_root(tmp_path)
    lineage = _lineage(capsys, str(tmp_path / "alone"), "--root", root)
    assert lineage["unknown"] == [f"runs, data and evaluation: no model recorded below {root} equals this one"]
    write_saved_model(str(tmp_path / "bare"), None, fingerprint=None, step=None)
    lineage = _lineage(capsys, str(tmp_path / "bare"))
    assert lineage["unknown"][0] == "configuration: neither recorded nor in the SavedModel"


def test_records_that_are_gone_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    for part in ("history/configs", "history/CocoExampleGen", "history/CocoEvaluator", "history/runs"):
        shutil.rmtree(f"{root}/{part}")
    lineage = _lineage(capsys, f"{root}/serving/1001")
    digest = lineage["chain"][0]["config"]
    assert lineage["unknown"] == [
        f"configuration: its file is gone, only the digest {digest} is recorded",
        f"data of {root}/artifacts/model/1: not recorded",
        "evaluation: not recorded",
    ]


def test_metrics_of_a_removed_evaluation_are_those_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path)
    record_day(root, 1)
    shutil.rmtree(tmp_path / "artifacts" / "evaluation")
    assert _lineage(capsys, root)["evaluated"]["metrics"] == {"AP": 0.1}


def test_a_copied_root_has_a_history_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    copy = str(shutil.copytree(root, tmp_path / "copy"))
    assert _lineage(capsys, f"{copy}/serving") == json.loads(
        json.dumps(_lineage(capsys, f"{root}/serving")).replace(root, copy)
    )
    shutil.rmtree(root)
    assert pipeline_runner.main(["status", "--root", copy, "--json", "--artifacts"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [run["push_state"] for run in status["runs"]] == ["live", "live"]
    assert {one["state"] for one in status["artifacts"]} == {"live"}
    assert root not in json.dumps(status)


def test_a_rolled_back_version_is_named_with_what_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    served = publish_rollback(root, to=1001, refused=1002)
    lineage = _lineage(capsys, f"{root}/serving/1002")
    assert lineage["push_state"] == f"rolled back; {served} is served"
    assert pipeline_runner.main(["lineage", f"{root}/serving/1002"]) == 0
    assert f"by the run run-2: rolled back; {served} is served\n" in capsys.readouterr().out
    again = _lineage(capsys, f"{root}/serving")
    assert again["saved_model"] == f"{root}/serving/{served}"
    assert (again["chain"][0]["model"], again["push_state"]) == (f"{root}/artifacts/model/1", "live")


def test_a_run_that_reused_a_model_did_not_train_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path)
    day = record_day(root, 1)
    reused = {node: {"state": "reused", "seconds": 0.0} for node in ("DetectionTrainer", "SavedModelPusher")}
    write_run(root, run_of(day, 1, id="earlier", started="2025-01-01T00:00:00+00:00", components=reused))
    lineage = _lineage(capsys, root)
    assert (lineage["chain"][0]["run"], lineage["pushed_by"]) == ("run-1", "run-1")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{tmp}/nowhere"], 1, "nowhere: no such folder. Name a pushed version"),
        (["{tmp}/empty"], 1, "empty: no pushed model here"),
        (["{tmp}/unpushed"], 1, "unpushed: no push was recorded here"),
        (["{tmp}/moved"], 1, "1001: the last pushed model is not there"),
        (["{tmp}/moved/artifacts/model/1/Format-Serving", "--root", "{tmp}/empty"], 1, "empty: no records here"),
        (["s3://bucket/x"], 2, "MODEL"),
    ],
)
def test_what_has_no_lineage_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "unpushed" / "history").mkdir(parents=True)
    record_day(str(tmp_path / "moved"), 1)
    shutil.rmtree(tmp_path / "moved" / "serving")
    assert pipeline_runner.main(["lineage", *(one.format(tmp=tmp_path) for one in arguments)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("metrics.json", "[]", ""),
        ("metrics.json", '{"iou_type": "bbox", "metrics": {"AP": "high"}, "per_category": []}', "metrics.AP: "),
        ("metrics.json", '{"iou_type": "bbox", "metrics": {"AP": 1}, "per_category": [], "segm": 5}', "segm: "),
        ("blessing.json", '{"blessed": true, "reasons": 5}', "reasons: "),
        ("blessing.json", "{}", "blessed: "),
    ],
)
def test_a_wrong_evaluation_is_named(
    name: str, content: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = local_root(tmp_path)
    path = Path(root, "artifacts/evaluation/2", name)
    path.write_text(content)
    assert pipeline_runner.main(["lineage", root]) == 1
    message = capsys.readouterr().err
    assert f"{path}: not a " in message
    assert f" of this version: {place}" in message


def test_another_origin_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    for content in ('{"published": 5}', '{"published": ["n"]}', "[]"):
        Path(root, "artifacts/model/1", INIT_REPORT_JSON).write_text(content)
        assert _lineage(capsys, root)["chain"][1]["published"] is None


def test_a_checkpoint_of_wrong_types_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = local_root(tmp_path)
    path = Path(_lineage(capsys, root)["saved_model"], EXTRA_FILES, EXPORTED_FROM_JSON)
    path.write_text('{"step": Infinity, "weights": "ema", "chosen_on": {"images": NaN, "split": "eval"}}')
    assert _lineage(capsys, root)["exported"] == {"weights": "ema", "chosen_on": {"split": "eval"}}


_HOSTILE: tuple[Any, ...] = (
    None,
    -1,
    10**400,
    1e308,
    float("nan"),
    "",
    "\ud800",
    "a\0b",
    "../" * 9,
    "gs://",
    [],
    [[]],
    {},
    {"a": [1]},
    "x" * 5000,
)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_stands_in_the_records_is_shown_or_refused(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = random.Random(seed)
    root = local_root(tmp_path)
    files = sorted(path for path in Path(root).rglob("*.json") if path.is_file())
    for _ in range(60):
        path = source.choice(files)
        before = path.read_bytes()
        path.write_bytes(_mutated(source, before))
        arguments = source.choice(
            (["lineage", root], ["lineage", root, "--json"], ["status", "--root", root, "--artifacts"])
        )
        code = pipeline_runner.main(arguments)
        assert code in (0, 1), "no traceback"
        assert code == 0 or "error: " in capsys.readouterr().err
        path.write_bytes(before)


def _mutated(source: random.Random, content: bytes) -> bytes:
    """A JSON file with another value, without a key, or cut off."""
    tree = json.loads(content)
    if not isinstance(tree, dict) or not tree or source.random() < 0.1:
        return content[: source.randrange(len(content))]
    key = source.choice(sorted(tree))
    place = tree[key] if isinstance(tree[key], dict) and tree[key] and source.random() < 0.7 else tree
    key = source.choice(sorted(place)) if place is not tree else key
    if source.random() < 0.2:
        del place[key]
    else:
        place[key] = source.choice(_HOSTILE)
    return json.dumps(tree).encode()
