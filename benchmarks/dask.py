"""Beam on a Dask cluster of two worker processes, against the direct runner in two processes.

    python -m benchmarks.dask [--images 4000] [--rounds 5] [--works example_gen evaluator] [--folder DIR]

Makes a COCO data set of 640x480 JPEGs once, its Examples, and a SavedModel with random weights. The workers are
started once, as in a cluster that is up already. Then, in turn, each in a fresh process whose imports are not counted:

direct: `--direct_running_mode=multi_processing` with two processes, which start with each Beam pipeline.
dask: `--runner=dask` with two workers.

Works: `example_gen` converts the data set, `evaluator` evaluates the model, each as the component does; `empty` is a
Beam pipeline without work. The evaluator analyses only a few images here: the driver does that, for 5,000 images at
most. Each round measures a few images and all of them: the difference is the time per image, the rest is fixed. Prints
seconds and their ratios round by round, and the processors' time of the driver and of the workers per image, from which
it projects the seconds for more workers:

    T(w) = fixed + driver * N + workers * N / w

`python -m benchmarks.dask --works empty --workers 2 8` shows what the driver spends on each worker.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from distributed import Client, LocalCluster

from benchmarks.example_gen import FEW, make_data
from benchmarks.measure import spread

_CLASSES = 80  # of `make_data`
_PROJECTED = (1, 2, 10, 100)  # workers
_PROJECTED_IMAGES = 1_000_000


class Run(NamedTuple):
    """Seconds of one way: of the clock, of the driver's processors, of the workers' processors."""

    clock: float
    driver: float
    workers: float


def make_model(folder: Path) -> None:
    """Writes a SavedModel with as many detections as a trained one, unless it is there."""
    from benchmarks.serving import smooth_images, spread_scores
    from detection.export.saved_model_export import export_saved_model
    from detection.models.registry import detector_from_config
    from schemas.config.config_io import load_config

    if folder.exists():
        return
    config = load_config(None, ["model.name=efficientdet-d0", "model.image_size=256", "model.weights=none"])
    detector = detector_from_config(config.model, [{}] * _CLASSES)
    spread_scores(detector, smooth_images(detector, 2), objects=20)
    folder.mkdir(parents=True)
    categories = [{"id": number, "name": f"c{number}"} for number in range(1, _CLASSES + 1)]
    export_saved_model(detector, folder, categories=categories, config_yaml="")


def _convert(folder: Path, name: str, out: Path, beam_args: Sequence[str]) -> Callable[[], None]:
    from components.coco_example_gen.conversion import convert
    from detection.datasets.splits import SplitFiles
    from schemas.config.config import DataConfig

    splits = {"eval": SplitFiles(str(folder / name / "instances_train.json"), str(folder / "images"))}
    return lambda: convert(splits, out, DataConfig(), beam_args=beam_args)


def _evaluate(folder: Path, name: str, out: Path, beam_args: Sequence[str]) -> Callable[[], object]:
    from components.coco_evaluator.evaluate_model import evaluate_model
    from schemas.config.config_io import load_config

    settings = [f"run.beam_args={json.dumps(list(beam_args))}", f"evaluate.analysis.images={FEW}"]
    config = load_config(None, settings)
    model, examples = str(folder / "model"), str(folder / f"examples-{name}")
    return lambda: evaluate_model(config, model=model, examples=examples, baseline=None, output=str(out))


def _idle(folder: Path, name: str, out: Path, beam_args: Sequence[str]) -> Callable[[], None]:
    import apache_beam as beam

    from components.beam.pipelines import make_pipeline

    def run() -> None:
        with make_pipeline(beam_args) as pipeline:
            pipeline | beam.Create(["a", "b"]) | beam.Reshuffle() | beam.Map(len)

    return run


WORKS = {"empty": _idle, "example_gen": _convert, "evaluator": _evaluate}


def measure(work: str, folder: Path, name: str, beam_args: Sequence[str], pids: Sequence[int]) -> None:
    """Does a work in this process; prints the seconds of the clock, of its processors, of the workers' processors."""
    with TemporaryDirectory() as out:
        run = WORKS[work](folder, name, Path(out, "out"), beam_args)
        clock, own, workers = time.perf_counter(), time.process_time(), _workers(pids)
        run()
        print(time.perf_counter() - clock, time.process_time() - own, _workers(pids) - workers)


def _workers(pids: Sequence[int]) -> float:
    """Seconds of the processors of Dask workers and of ended processes that this one started."""
    ticks = 0
    for pid in pids:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    started = resource.getrusage(resource.RUSAGE_CHILDREN)
    return started.ru_utime + started.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


class Comparison:
    """Runs works in both ways, with the workers of one cluster."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self._folder = folder
        with Client(cluster) as client:
            self._pids = list(client.run(os.getpid).values())
        self._ways = {
            "direct": ["--direct_running_mode=multi_processing", f"--direct_num_workers={len(self._pids)}"],
            "dask": ["--runner=dask", f"--dask_client_address={cluster.scheduler_address}"],
        }

    def run(self, way: str, work: str, name: str) -> Run:
        """Does a work on the data set `few` or `all`."""
        command = [sys.executable, "-m", "benchmarks.dask", "--measure", work, name, "--folder", str(self._folder)]
        pids = self._pids if way == "dask" else []
        command += [f"--beam-args={json.dumps(self._ways[way])}", f"--pids={json.dumps(pids)}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return Run(*map(float, done.stdout.split()[-3:]))

    def rounds(self, work: str, rounds: int) -> dict[tuple[str, str], list[Run]]:
        """Does a work round after round, in turn in both ways and on both data sets."""
        sizes = ["few"] if work == "empty" else ["few", "all"]
        print(f"{work}: {self.run('dask', work, 'few').clock:.1f} s for the first time on these workers", flush=True)
        runs: dict[tuple[str, str], list[Run]] = {(way, size): [] for size in sizes for way in self._ways}
        for _ in range(rounds):
            for key, of_key in runs.items():
                of_key.append(self.run(key[0], work, key[1]))
        return runs


def report(runs: dict[tuple[str, str], list[Run]], images: int) -> None:
    """Prints the seconds of each way and data set, and the ratios round by round."""
    counts = {"few": FEW, "all": images}
    for (way, size), of_key in runs.items():
        columns = [spread(column, 2) for column in zip(*of_key, strict=True)]
        line = f"  {way}, {counts[size]} images: {columns[0]} s, driver {columns[1]} s, workers {columns[2]} s"
        if way == "dask":
            line += f", {spread(_ratios(of_key, runs['direct', size]), 2)} x direct"
        print(line)
    if ("dask", "all") in runs:
        rates = {way: _per_image(runs, way, images) for way in ("direct", "dask")}
        print(f"  without what is fixed: dask {spread(_ratios(rates['dask'], rates['direct']), 2)} x direct")
        project(runs["dask", "few"], rates["dask"])


def _ratios(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    return [run.clock / other.clock for run, other in zip(runs, others, strict=True)]


def _per_image(runs: dict[tuple[str, str], list[Run]], way: str, images: int) -> list[Run]:
    """Seconds per image of each round."""
    return [
        Run(*((high - low) / (images - FEW) for low, high in zip(few, whole, strict=True)))
        for few, whole in zip(runs[way, "few"], runs[way, "all"], strict=True)
    ]


def project(few: Sequence[Run], per_image: Sequence[Run]) -> None:
    """Prints T(w) from medians; the driver's time is taken to overlap with nothing."""
    fixed = statistics.median(run.clock for run in few)
    driver, workers = (statistics.median(column) for column in list(zip(*per_image, strict=True))[1:])
    print(
        f"  fixed {fixed:.1f} s; per image {1e3 * driver:.3f} ms of the driver, {1e3 * workers:.2f} ms of workers: "
        f"from {workers / driver:.0f} workers on, the driver takes longer than they do"
    )
    for count in _PROJECTED:
        seconds = fixed + _PROJECTED_IMAGES * (driver + workers / count)
        print(f"  projected: {count} workers, {_PROJECTED_IMAGES} images: {seconds:.0f} s")


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2])
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-dask"))
    parser.add_argument("--measure", nargs=2, metavar=("WORK", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--beam-args", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--pids", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], args.folder, args.measure[1], args.beam_args, args.pids)
        return
    make_data(args.folder, args.images)
    if "evaluator" in args.works:
        make_model(args.folder / "model")
        for name in ("few", "all"):
            _convert(args.folder, name, args.folder / f"examples-{name}", [])()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    for workers in args.workers:
        with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster:
            comparison = Comparison(args.folder, cluster)
            for work in args.works:
                print(f"{work}, {workers} workers")
                report(comparison.rounds(work, args.rounds), args.images)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
