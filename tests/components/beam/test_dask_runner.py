"""Pipelines on the workers of a Dask cluster: against the same pipelines in memory, and with workers that die."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from components.beam import dask_cluster as clusters
from components.beam.pipelines import make_pipeline
from components.coco_evaluator.beam.batches import DetectedBatch
from components.coco_evaluator.beam.detection_files import write_detections
from components.coco_evaluator.beam.evaluate import (
    Evaluate,
    Measure,
    all_images,
    arrays_folder,
    detections_folder,
    read_slices,
)
from components.coco_example_gen import shards
from detection.coco.params import make_params
from detection.datasets.layouts import find_splits
from schemas.errors import CocoflowError, DataError, find_user_error
from tests.components.beam.cluster import DaskCluster, dask_cluster
from tests.components.coco_evaluator.beam.test_evaluate import cases_in_one, load, write_batches
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import converted

pytestmark = pytest.mark.slow  # each pipeline starts processes that import Beam


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask") / "cluster") as running:
        yield running


def test_example_gen_on_two_workers_writes_the_bytes_of_one_process(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data_set(tmp_path / "data", images=10, broken=True)
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 2)
    splits = find_splits(tmp_path / "data")
    expected = converted(splits, tmp_path / "expected")
    assert len(expected) == 5 + 1 + 3
    assert converted(splits, tmp_path / "out", beam_args=cluster.beam_args) == expected


def _load(path: str, folder: str) -> Iterator[DetectedBatch]:
    Path(folder, f"worker-{os.getppid()}").touch()
    yield from load(path)


def test_evaluator_on_two_workers_measures_to_the_bit_as_one_process(cluster: DaskCluster, tmp_path: Path) -> None:
    ground_truth, found = cases_in_one(range(20))
    paths = write_batches(tmp_path / "batches", ground_truth, found, seed=1)
    measure = Measure(ground_truth["categories"], make_params("bbox"), divided=True)

    def evaluated(name: str, *beam_args: str) -> tuple[dict[Any, Any], bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with make_pipeline(beam_args) as pipeline:
            batches = pipeline | beam.Create(paths) | beam.Reshuffle() | beam.FlatMap(_load, folder=str(folder))
            batches | Evaluate([measure], folder, keep=all_images)
        write_detections(detections_folder(folder), folder / "detections.json", ())
        slices = {key: (*one[:2], one.metrics) for key, one in read_slices(measure, arrays_folder(folder, measure))}
        return slices, (folder / "detections.json").read_bytes()

    expected, detections = evaluated("expected")
    slices, detections_there = evaluated("out", *cluster.beam_args)
    assert detections_there == detections
    assert slices.keys() == expected.keys()
    for key, (*counts, metrics) in expected.items():
        assert slices[key][:2] == tuple(counts)
        assert slices[key][2].by_name == metrics.by_name
        np.testing.assert_array_equal(slices[key][2].precision, metrics.precision)
    took_part = {path.name for path in (tmp_path / "out").glob("worker-*")}
    assert took_part == {f"worker-{process.pid}" for process in cluster.workers.values()}


def _hold(number: int, folder: str) -> int:
    """Returns after the test has killed a worker."""
    Path(folder, f"begun-{os.getppid()}").touch()
    while not Path(folder, "killed").exists():
        time.sleep(0.1)
    return number


def _refuse(number: int) -> int:
    raise DataError(f"image {number}: broken. Remove it.")


def run(beam_args: list[str], function: Callable[..., Any], out: Path, **arguments: Any) -> list[int]:
    """Runs a pipeline of two stages over 20 numbers."""
    with make_pipeline(beam_args) as pipeline:
        numbers = pipeline | beam.Create(range(20)) | beam.Reshuffle() | beam.Map(function, **arguments)
        numbers | beam.combiners.ToList() | beam.Map(lambda listed: out.write_text(json.dumps(sorted(listed))))
    result: list[int] = json.loads(out.read_text())
    return result


def end_while(running: DaskCluster, name: str, folder: Path, *, begun: int, how: int = signal.SIGKILL) -> None:
    """Sends a signal to a worker and its harness once `begun` workers are in a stage."""
    folder.mkdir()

    def end() -> None:
        while len(list(folder.glob("begun-*"))) < begun:
            time.sleep(0.1)
        process = running.processes()[name] if how == signal.SIGKILL else running.workers[name]
        for one in [*process.children(), process]:
            one.send_signal(how)
        (folder / "killed").touch()

    threading.Thread(target=end, daemon=True).start()


def test_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The pipeline starts again on the other one; without another, its end is told by name."""
    monkeypatch.setattr(clusters, "_RESTART", 1.0)
    with dask_cluster(tmp_path / "cluster") as running:
        first, second = tmp_path / "first", tmp_path / "second"
        end_while(running, "w1", first, begun=2)
        assert run(running.beam_args, _hold, tmp_path / "numbers", folder=str(first)) == list(range(20))
        assert "The Dask worker w1 (tcp://127.0.0.1:" in caplog.text
        assert "was lost" in caplog.text

        with pytest.raises(RuntimeError) as refused:
            run(running.beam_args, _refuse, tmp_path / "none")
        error = find_user_error(refused.value)
        assert isinstance(error, DataError)
        assert str(error).endswith(": broken. Remove it.")

        end_while(running, "w0", second, begun=1)
        with pytest.raises(CocoflowError, match=r"The Dask workers w0 \(.*\) were lost, and .* has no other worker"):
            run(running.beam_args, _hold, tmp_path / "none", folder=str(second))
        assert not (tmp_path / "none").exists()
