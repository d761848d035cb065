"""Pipelines on the workers of a Dask cluster: against the same pipelines in memory, and with workers that die."""

import ast
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import xor
from pathlib import Path
from random import Random
from typing import Any

import apache_beam as beam
import numpy as np
import psutil
import pytest
from distributed import Client

from components.beam import dask_cluster as clusters
from components.beam import dask_harnesses as harnesses
from components.beam import fn_api
from components.beam.pipelines import make_pipeline
from components.coco_evaluator.beam.batches import DetectedBatch
from components.coco_evaluator.beam.detection_files import detections_to_files, write_detections
from components.coco_evaluator.beam.evaluate import Measure, evaluate_batches, read_slices
from components.coco_example_gen import shards
from detection.coco.params import make_params
from detection.datasets.layouts import find_splits
from schemas.errors import CocoflowError, DataError, find_user_error
from tests.components.beam.cluster import PATH, DaskCluster, dask_cluster
from tests.components.beam.stage_functions import hold, megabytes, refuse
from tests.components.coco_evaluator.beam.test_evaluate import cases_in_one, load, write_batches
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import contents, converted

pytestmark = pytest.mark.slow  # each pipeline starts processes that import Beam


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def cluster_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """For two tests, as a cluster takes seconds to start; the second one kills the workers."""
    with dask_cluster(tmp_path_factory.mktemp("dask") / "cluster") as running:
        yield running


def _load(path: str, folder: str) -> Iterator[DetectedBatch]:
    Path(folder, f"worker-{os.getppid()}").touch()
    yield from load(path)


def test_evaluator_on_two_workers_measures_to_the_bit_as_one_process(
    cluster_to_kill: DaskCluster, tmp_path: Path
) -> None:
    ground_truth, found = cases_in_one(range(20))
    paths = write_batches(tmp_path / "batches", ground_truth, found, seed=1)
    measure = Measure(ground_truth["categories"], make_params("bbox"), divided=True)

    def evaluated(name: str, *beam_args: str) -> tuple[dict[Any, Any], bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with make_pipeline(beam_args) as pipeline:
            batches = pipeline | beam.Create(paths) | beam.Reshuffle() | beam.FlatMap(_load, folder=str(folder))
            batches | evaluate_batches([measure], folder)
            batches | detections_to_files(str(folder / "detections"))
        write_detections(folder / "detections", folder / "detections.json", ())
        slices = {key: (*one[:2], one.metrics) for key, one in read_slices(measure, folder)}
        return slices, (folder / "detections.json").read_bytes()

    expected, detections = evaluated("expected")
    slices, detections_there = evaluated("out", *cluster_to_kill.beam_args)
    assert detections_there == detections
    assert slices.keys() == expected.keys()
    for key, (*counts, metrics) in expected.items():
        assert slices[key][:2] == tuple(counts)
        assert slices[key][2].by_name == metrics.by_name
        np.testing.assert_array_equal(slices[key][2].precision, metrics.precision)
    took_part = {path.name for path in (tmp_path / "out").glob("worker-*")}
    assert took_part == {f"worker-{process.pid}" for process in cluster_to_kill.workers.values()}


def run(beam_args: Sequence[str], function: Callable[..., Any], out: Path, **arguments: Any) -> list[int]:
    """Runs a pipeline of two stages over 20 numbers."""
    with make_pipeline(beam_args) as pipeline:
        numbers = pipeline | beam.Create(range(20)) | beam.Reshuffle() | beam.Map(function, **arguments)
        numbers | beam.combiners.ToList() | beam.Map(lambda listed: out.write_text(json.dumps(sorted(listed))))
    result: list[int] = json.loads(out.read_text())
    return result


def when_begun(folder: Path, harnesses: int, action: Callable[[], object]) -> None:
    """Acts once some harnesses hold in a stage, and releases the stage."""
    folder.mkdir()

    def act() -> None:
        while len(list(folder.glob("begun-*"))) < harnesses:
            time.sleep(0.1)
        action()
        (folder / "released").touch()

    threading.Thread(target=act, daemon=True).start()


def test_killed_workers(
    cluster_to_kill: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pipeline starts again on the other one; without another, the error names the lost ones."""
    monkeypatch.setattr(clusters, "_RESTART", 1.0)
    running, first, second = cluster_to_kill, tmp_path / "first", tmp_path / "second"
    when_begun(first, 2, lambda: running.signal("w1", signal.SIGKILL))
    assert run(running.beam_args, hold, tmp_path / "numbers", folder=str(first)) == list(range(20))
    assert re.search(r"The Dask worker w1 \(tcp://127.0.0.1:\d+\) was lost.* starts again", caplog.text)

    when_begun(second, 1, lambda: running.signal("w0", signal.SIGKILL))
    with pytest.raises(CocoflowError, match=r"The Dask worker w0 \(.*\) was lost: .* has no other worker"):
        run(running.beam_args, hold, tmp_path / "none", folder=str(second))
    assert not (tmp_path / "none").exists()


def _kill(nanny: psutil.Process, kind: str) -> None:
    """Kills processes of a worker by a part of their command line; a worker that is just restarting has none."""
    for one in nanny.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if kind in " ".join(one.cmdline()):
                one.kill()


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills_leave_whole_results_or_none(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of workers, which nannies restart, or of harnesses, at random moments from the first question to the last."""
    write_data_set(tmp_path / "data", images=40)
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 2)
    splits, out, random = find_splits(tmp_path / "data"), tmp_path / "out", Random(seed)
    expected, failures = converted(splits, tmp_path / "expected"), list[str]()
    with dask_cluster(tmp_path / "cluster", nanny=True) as running:
        start = time.monotonic()
        assert converted(splits, out, beam_args=running.beam_args) == expected
        seconds = time.monotonic() - start
        for _ in range(5):
            nanny = running.workers[random.choice(["w0", "w1"])]
            kind = random.choice(["spawn_main", "fn_api"])
            killer = threading.Timer(random.uniform(0.0, seconds), _kill, [nanny, kind])
            killer.start()
            try:
                assert converted(splits, out, beam_args=running.beam_args) == expected
            except CocoflowError as error:  # the other worker had not come back yet
                failures.append(str(error))
                assert not contents(out)
            killer.join()
    assert " starts again" in caplog.text
    assert all(re.search(r"The Dask worker w\d .* was lost|has no worker", failure) for failure in failures)


@pytest.mark.extended
def test_a_worker_that_hangs_is_lost_within_half_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next pipeline leaves it out; its harness ends as soon as it wakes up."""
    with dask_cluster(tmp_path / "cluster") as running:
        when_begun(tmp_path / "hold", 2, lambda: running.signal("w1", signal.SIGSTOP))
        assert run(running.beam_args, hold, tmp_path / "a", folder=str(tmp_path / "hold")) == list(range(20))
        assert re.search(r"The Dask worker w1 .* was lost.* starts again", caplog.text)
        assert run(running.beam_args, hold, tmp_path / "b", folder=str(tmp_path / "hold")) == list(range(20))
        assert re.search(r"Ignoring Dask workers that do not respond: w1 ", caplog.text)
        running.signal("w1", signal.SIGCONT)
        while running.workers["w1"].children():
            time.sleep(0.1)


@pytest.mark.extended
def test_a_harness_that_hangs_before_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(harnesses, "_START", 20.0)
    with dask_cluster(tmp_path / "cluster") as running:

        def stop() -> None:
            while not (started := running.workers["w1"].children()):
                time.sleep(0.02)
            started[0].send_signal(signal.SIGSTOP)

        threading.Thread(target=stop, daemon=True).start()
        assert run(running.beam_args, abs, tmp_path / "numbers") == list(range(20))
        assert re.search(r"worker w1 .* was lost: its harness did not connect .* starts again", caplog.text)


@pytest.mark.extended
def test_an_error_of_the_data_is_told_as_without_dask(cluster: DaskCluster, tmp_path: Path) -> None:
    messages = []
    for beam_args in ([], cluster.beam_args):
        with pytest.raises((DataError, RuntimeError)) as refused:
            run(beam_args, refuse, tmp_path / "none")
        messages.append(re.sub(r"\d+", "N", str(find_user_error(refused.value))))
    assert messages == ["image N: broken. Remove it."] * 2
    assert run(cluster.beam_args, abs, tmp_path / "numbers") == list(range(20))


def _listening() -> set[str]:
    """Returns the addresses at which this process listens."""
    sockets = psutil.Process().net_connections("tcp")
    return {one.laddr.ip.removeprefix("::ffff:") for one in sockets if one.status == psutil.CONN_LISTEN}


@pytest.mark.extended
def test_two_drivers_share_a_thread_and_listen_at_one_address_each(tmp_path: Path) -> None:
    before, addresses = _listening(), set[str]()
    with dask_cluster(tmp_path / "cluster", ["w0"]) as running, ThreadPoolExecutor() as threads:
        when_begun(tmp_path / "hold", 2, lambda: addresses.update(_listening()))
        drivers = [
            threads.submit(run, [*running.beam_args, *more], hold, tmp_path / name, folder=str(tmp_path / "hold"))
            for name, more in (("a", []), ("b", ["--dask_driver_host=127.0.0.2"]))
        ]
        assert [driver.result() for driver in drivers] == [list(range(20))] * 2
    assert addresses - before == {"127.0.0.1", "127.0.0.2"} - before
    assert not addresses & {"0.0.0.0", "::"} - before


@pytest.mark.extended
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_a_cluster_on_ipv6(tmp_path: Path) -> None:
    with dask_cluster(tmp_path / "cluster", ["w0"], host="[::1]") as running:
        assert running.address.startswith("tcp://[::1]:")
        assert run(running.beam_args, abs, tmp_path / "numbers") == list(range(20))


@pytest.mark.extended
def test_a_driver_that_workers_do_not_reach(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fn_api._WorkerHandler, "host_from_worker", lambda self: "127.0.0.99")
    with pytest.raises(CocoflowError, match=r"worker w\d .* cannot connect to this process at .*refused.*driver_host"):
        run(cluster.beam_args, abs, tmp_path / "none")


@pytest.mark.extended
def test_a_busy_worker_is_waited_for(cluster: DaskCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Client(cluster.address, set_as_default=False) as client, caplog.at_level(logging.INFO, "cocoflow.beam"):
        task = client.submit(time.sleep, 25.0, workers=["w0"])
        assert run(cluster.beam_args, abs, tmp_path / "numbers") == list(range(20))
        assert task.done()
    assert re.search(r"waiting for a free thread of the Dask workers w0 \(tcp://[^)]*\)$", caplog.text, re.MULTILINE)


@pytest.mark.extended
def test_nothing_remains_of_a_killed_driver(tmp_path: Path) -> None:
    with dask_cluster(tmp_path / "cluster", ["w0"]) as running:
        code = f"import {__name__} as m; m.run({running.beam_args}, m.hold, m.Path('x'), folder={str(tmp_path)!r})"
        with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | PATH) as driver:
            while not list(tmp_path.glob("begun-*")):
                assert driver.poll() is None
                time.sleep(0.1)
            driver.kill()
        worker = running.workers["w0"]
        while worker.children():
            time.sleep(0.1)
        assert run(running.beam_args, abs, tmp_path / "numbers") == list(range(20))
        with Client(running.address, set_as_default=False) as client:
            assert not any(client.processing().values())


@pytest.mark.extended
def test_no_byte_is_lost_on_the_way(cluster: DaskCluster, tmp_path: Path) -> None:
    """200 MB through a GroupByKey: Beam's timed buffers lose some of them."""
    expected = dict.fromkeys(range(7), 0)
    for number in range(200):
        expected[number % 7] ^= zlib.crc32(megabytes(number)[1])
    with make_pipeline(cluster.beam_args) as pipeline:
        grouped = pipeline | beam.Create(range(200)) | beam.Reshuffle() | beam.Map(megabytes) | beam.GroupByKey()
        sums = grouped | beam.MapTuple(lambda key, parts: (key, reduce(xor, map(zlib.crc32, parts))))
        sums | beam.combiners.ToDict() | beam.Map(lambda found: (tmp_path / "sums").write_text(repr(found)))
    assert ast.literal_eval((tmp_path / "sums").read_text()) == expected
