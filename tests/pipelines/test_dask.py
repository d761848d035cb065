"""Commands whose Beam pipelines run on a Dask cluster, against the same commands without one."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import pipeline_runner
from components.coco_example_gen import shards
from detection.datasets.layouts import find_splits
from detection.storage.files import read_bytes, walk_files
from detection.storage.paths import join
from schemas.artifacts import (
    ANALYSIS_JSON,
    BLESSING_JSON,
    DATASET_JSON,
    DETECTIONS_JSON,
    LOGS,
    METRICS_JSON,
    REPORT_HTML,
)
from tests.components.beam.cluster import PATH, dask_cluster
from tests.components.coco_evaluator.generated_records import generate_ground_truth
from tests.components.coco_example_gen.remote_data import converted, upload
from tests.detection.fake_detector import save_fake_detector
from tests.pipelines.small_run import run_pipeline
from tests.storage_emulator.fixture import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.extended]

FLAGS = ("--set", "evaluate.analysis.replicates=10", "--set", "evaluate.thresholds.improvement={AP: 0.001}")
FILES = (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON)
TOLD_WITH_PATHS = (REPORT_HTML, "eval_config.json")


def call(*arguments: str | Path, beam_args: Sequence[str] = ()) -> int:
    given = ("--set", f"run.beam_args={json.dumps(list(beam_args))}")
    return pipeline_runner.main([*map(str, arguments), *given])


@pytest.fixture(scope="module", autouse=True)
def small_shards() -> Iterator[None]:
    """Both sides of each comparison write several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "IMAGES_PER_SHARD", 3)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [save_fake_detector(tmp_path_factory.mktemp("model"), shift=shift) for shift in (0, 1)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> Path:
    root = tmp_path_factory.mktemp("data")
    ground_truth = generate_ground_truth(root / "val", models, seed=1, count=60)
    (root / "instances_val.json").write_text(json.dumps(ground_truth))
    return root


@pytest.fixture(scope="module")
def expected(models: list[Path], data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return evaluate(models, data, tmp_path_factory.mktemp("expected") / "out")


def evaluate(models: Sequence[str | Path], data: str | Path, out: str | Path, *beam_args: str) -> dict[str, bytes]:
    pair = ("--model", models[0], "--baseline", models[1])
    assert call("evaluate", *pair, "--examples", data, "--output", out, *FLAGS, beam_args=beam_args) == 0
    assert not [name for name in walk_files(out) if name.startswith(".")]
    names = [name for name in walk_files(out) if not name.startswith(f"{LOGS}/")]  # TensorBoard's names tell the time
    assert set(names) > {*FILES, *TOLD_WITH_PATHS}
    return {name: read_bytes(join(out, name)) for name in names}


# Ends a process at its first access to a folder of the driver.
HOOK = """
import os, sys

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.mkdir", "os.rename") and str(arguments[0]).startswith({driver!r}):
        os.write(2, b"another machine's folder: " + os.fsencode(str(arguments[0])))
        os._exit(1)

sys.addaudithook(refuse)
"""

# Lists the pictures that a process opens in a file of its working folder.
LISTING = """
import os, sys

def list_picture(event, arguments):
    if event == "open" and str(arguments[0]).startswith({pictures!r}) and str(arguments[0]).endswith(".png"):
        with open("opened", "a") as file:
            file.write(os.fsdecode(arguments[0]) + os.linesep)

sys.addaudithook(list_picture)
"""


def with_hook(folder: Path, code: str) -> dict[str, str]:
    """Returns an environment in which Python processes run some code first."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder), PATH["PYTHONPATH"]])}


def processor_seconds(worker: psutil.Process) -> float:
    """Seconds of the processors that the ended harnesses of a worker used."""
    times = worker.cpu_times()
    return float(times.children_user + times.children_system)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_conversion_and_evaluation_on_some_workers(
    count: int, tmp_path: Path, models: list[Path], data: Path, expected: dict[str, bytes]
) -> None:
    examples = converted(find_splits(data), tmp_path / "expected")
    names = [f"w{number}" for number in range(count)]
    hook = with_hook(tmp_path / "hook", LISTING.format(pictures=str(data)))
    with dask_cluster(tmp_path / "cluster", names, environment=hook) as cluster:
        assert evaluate(models, data, tmp_path / "out", *cluster.beam_args) == expected
        assert converted(find_splits(data), tmp_path / "examples", beam_args=cluster.beam_args) == examples
        seconds = [processor_seconds(worker) for worker in cluster.workers.values()]
        opened = [(tmp_path / "cluster" / name / "opened").read_text().split() for name in names]
    # Each did its part.
    assert min(seconds) > max(seconds) / 3
    assert sorted({picture for of_worker in opened for picture in of_worker}) == sorted(map(str, data.rglob("*.png")))
    assert min(map(len, opened)) >= 60 / count / 3


def test_relative_paths_are_those_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: list[Path], data: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = [os.path.relpath(model) for model in models]
    converted(find_splits(data), "examples")
    with dask_cluster(tmp_path / "cluster", ["w0"]) as cluster:
        assert evaluate(relative, "examples", "there", *cluster.beam_args) == evaluate(relative, "examples", "here")


@pytest.mark.parametrize("records", [False, True], ids=["coco", "records"])
def test_workers_and_driver_have_only_the_bucket_in_common(
    records: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcs: Bucket, models: list[Path]
) -> None:
    """Workers have folders of their own, and end at the first access to the driver's."""
    driver = tmp_path / "driver"
    source = driver / "source"
    ground_truth = generate_ground_truth(source / "val", models, seed=1, count=20)
    (source / "instances_val.json").write_text(json.dumps(ground_truth))
    if records:
        converted(find_splits(source), driver / "records")
        source = driver / "records"
        (source / DATASET_JSON).unlink()  # else it is an `Examples` artifact, which is not converted
    expected = evaluate(models, source, driver / "expected")
    examples = converted(find_splits(source), driver / "examples")
    remote = upload(source, f"{gcs.path}/data")
    places = [upload(model, f"{gcs.path}/models/{number}") for number, model in enumerate(models)]

    hook = with_hook(tmp_path / "hook", HOOK.format(driver=str(driver)))
    with dask_cluster(tmp_path / "cluster", environment=hook) as cluster:
        monkeypatch.chdir(driver)
        monkeypatch.setenv("TMPDIR", str(driver))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setenv("COCOFLOW_CACHE", str(driver / "cache"))
        evaluated = evaluate(places, remote, f"{gcs.path}/out", *cluster.beam_args)
        for name in TOLD_WITH_PATHS:
            del evaluated[name], expected[name]
        assert evaluated == expected
        written = converted(find_splits(remote), f"{gcs.path}/examples", beam_args=cluster.beam_args)
        assert written == examples
        seconds = [processor_seconds(worker) for worker in cluster.workers.values()]
        assert min(seconds) > max(seconds) / 3
        for name in cluster.workers:
            assert "another machine's folder" not in (tmp_path / "cluster" / f"{name}.log").read_text()
            assert list((tmp_path / "cluster" / name / "cache").iterdir())


@pytest.fixture(scope="module")
def run_without_dask(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    root = tmp_path_factory.mktemp("run") / "root"
    assert run_pipeline(root, digits) == 0
    return root


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_whole_runs(runner: str, tmp_path: Path, digits: Path, run_without_dask: Path) -> None:
    """The records, metrics and detections are equal, TFDV's statistics but for the order of their sums."""
    import tensorflow_data_validation as tfdv

    with dask_cluster(tmp_path / "cluster") as cluster:
        beam_args = f"run.beam_args={json.dumps(cluster.beam_args)}"
        assert run_pipeline(tmp_path / "root", digits, "--runner", runner, assignments=(beam_args,)) == 0
    for pattern in ("CocoExampleGen/examples/*/Split-*/*", *(f"CocoEvaluator/evaluation/*/{name}" for name in FILES)):
        expected = sorted(run_without_dask.glob(f"artifacts/{pattern}"))
        written = sorted((tmp_path / "root").glob(f"artifacts/{pattern}"))
        assert expected
        assert [path.read_bytes() for path in written] == [path.read_bytes() for path in expected], pattern
    for split in ("train", "eval"):
        files = f"artifacts/StatisticsGen/statistics/*/Split-{split}/FeatureStats.pb"
        there, here = (
            tfdv.load_stats_binary(str(next(root.glob(files)))).datasets[0]
            for root in (tmp_path / "root", run_without_dask)
        )
        assert there.num_examples == here.num_examples
        assert len(there.features) == len(here.features) > 10
        by_path = {tuple(feature.path.step): feature for feature in here.features}
        for feature in there.features:
            other = by_path[tuple(feature.path.step)]
            mean = feature.num_stats.mean
            assert mean == pytest.approx(other.num_stats.mean, rel=1e-8)
            for one in (feature, other):
                one.num_stats.mean = one.num_stats.std_dev = 0.0
            assert feature == other
