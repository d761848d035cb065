"""The evaluator with data, models and outputs on Cloud Storage, against the same evaluation on local paths."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from components.coco_evaluator import executor as component
from components.coco_evaluator.beam import evaluate as beam_evaluate
from components.coco_evaluator.beam import sample
from detection.storage.files import exists, list_folder, read_bytes, walk_files
from schemas.artifacts import ANALYSIS_JSON, BLESSING_JSON, DETECTIONS_JSON, LOGS, METRICS_JSON, REPORT_HTML
from schemas.config.evaluate import EvaluateConfig
from schemas.errors import CocoflowError, find_user_error
from tests.components.coco_evaluator.generated_records import (
    artifact,
    generate_ground_truth,
    save_models,
    served,
    write_records,
)
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

pytestmark = pytest.mark.slow  # importing TFX takes most of it

ROOT = Path(__file__).resolve().parents[3]
SAME_BYTES = (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON)
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "thresholds": {"absolute": {"AP": 0.1}, "improvement": {"AP": 0.01}},
    "analysis": {"images": 9, "replicates": 20},
}
EVAL_CONFIG = """
    metrics_specs {
      metrics { class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics" }
      per_slice_thresholds { key: "AR100" value { thresholds {
        slicing_specs {} threshold { value_threshold { lower_bound { value: 0.1 } } } } } }
    }"""


class Inputs(NamedTuple):
    """Folders of an `Examples` artifact and of two `Model` artifacts."""

    examples: str
    models: tuple[str, str]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    root = tmp_path_factory.mktemp("inputs")
    models = save_models(root / "models")
    ground_truth = generate_ground_truth(root / "images", served(models), seed=4)
    write_records(root / "examples", ground_truth, root / "images")
    return Inputs(str(root / "examples"), (str(models[0]), str(models[1])))


@pytest.fixture
def remote(gcs: Bucket, local: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    names = ("examples", "model-0", "model-1")
    places = zip((local.examples, *local.models), names, strict=True)
    examples, *models = (upload(folder, f"{gcs.path}/in/{name}") for folder, name in places)
    return Inputs(examples, (models[0], models[1]))


def evaluate(inputs: Inputs, out: str, **options: Any) -> Any:
    """Runs the executor into `out`/evaluation and `out`/blessing; returns the blessing."""
    blessing = artifact("ModelBlessing", f"{out}/blessing", 8)
    component.Executor().Do(
        {
            "examples": [artifact("Examples", inputs.examples, 5, split_names='["eval"]')],
            "model": [artifact("Model", inputs.models[0], 1)],
            "baseline_model": [artifact("Model", inputs.models[1], 2)],
        },
        {"evaluation": [artifact("ModelEvaluation", f"{out}/evaluation", 7)], "blessing": [blessing]},
        {"config": EvaluateConfig(**(OPTIONS | options)).model_dump_json(), "eval_config": EVAL_CONFIG},
    )
    return blessing


@pytest.fixture(scope="module")
def expected(local: Inputs, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the evaluation on local paths."""
    out = str(tmp_path_factory.mktemp("local"))
    assert evaluate(local, out).get_int_custom_property("blessed") == 1
    return out


def assert_same_bytes(out: str, expected: str) -> None:
    for name in SAME_BYTES:
        assert read_bytes(f"{out}/evaluation/{name}") == read_bytes(f"{expected}/evaluation/{name}"), name


def assert_whole(out: str, expected: str) -> None:
    """The same files as locally, and nothing else."""
    assert list_folder(f"{out}/evaluation") == list_folder(f"{expected}/evaluation")
    assert len(walk_files(f"{out}/evaluation/{LOGS}")) == 1
    assert walk_files(f"{out}/blessing") == ["BLESSED"]
    assert_same_bytes(out, expected)


def test_the_files_are_those_of_local_paths(
    gcs: Bucket, remote: Inputs, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However workers divide their files; TFMA reads its own from Cloud Storage."""
    import tensorflow_model_analysis as tfma

    monkeypatch.setattr(beam_evaluate, "_CHUNK", 4)
    monkeypatch.setattr(sample, "_FILE_BYTES", 2_000)
    out = f"{gcs.path}/out"
    blessing = evaluate(remote, out, images_per_state=5)
    assert_whole(out, expected)
    assert blessing.get_string_custom_property("current_model") == remote.models[0]
    assert blessing.get_string_custom_property("baseline_model") == remote.models[1]
    evaluation = f"{out}/evaluation"
    values = tfma.load_eval_result(evaluation).get_metrics_for_slice()
    assert values["AP"]["doubleValue"] == json.loads(read_bytes(f"{evaluation}/{METRICS_JSON}"))["metrics"]["AP"]
    assert tfma.load_validation_result(evaluation).validation_ok
    page = read_bytes(f"{evaluation}/{REPORT_HTML}").decode().replace("<wbr>", "")  # places to break a path
    assert page.count("data:image/webp;base64") > 5
    assert remote.models[0] in page


def test_a_refused_write_leaves_no_verdict(gcs: Bucket, remote: Inputs, expected: str) -> None:
    """The first file of the results, and the last; the next try begins with what the last one left."""
    out = f"{gcs.path}/out"
    for name in (METRICS_JSON, "/BLESSED"):
        gcs.emulator.fail("status", status=403, method="POST", path=f"name=out/.*{name}", times=0)
        assert "Cloud Storage refuses access" in str(error_of(remote, out)), name
        assert gcs.emulator.clear() > 0
        assert not exists(f"{out}/blessing")
        assert exists(f"{out}/evaluation/{BLESSING_JSON}") is (name == "/BLESSED")
    evaluate(remote, out)
    assert_whole(out, expected)


@pytest.mark.extended
def test_every_single_write_may_fail(gcs: Bucket, remote: Inputs, expected: str) -> None:
    """Writes and deletions, by position: whatever is refused, a verdict means that all is there."""
    out = f"{gcs.path}/out"
    for position in range(200):
        gcs.emulator.fail("status", status=403, method="write", path="/b/", skip=position)
        error = error_of(remote, out)
        if not gcs.emulator.clear():
            break
        assert error is None or "Cloud Storage refuses access" in error
        blessed, judged = exists(f"{out}/blessing/BLESSED"), exists(f"{out}/evaluation/{BLESSING_JSON}")
        assert blessed or error
        assert judged or not blessed
        if judged:
            assert_same_bytes(out, expected)
    assert 30 < position < 199  # as many writes as the files have
    assert_whole(out, expected)


def error_of(inputs: Inputs, out: str) -> str | None:
    """The message of a failed evaluation; None: it did not fail."""
    try:
        evaluate(inputs, out)
    except (CocoflowError, RuntimeError) as error:
        return str(find_user_error(error))
    return None
