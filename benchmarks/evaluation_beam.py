"""What an evaluation on Beam costs beside the engine, and what memory it takes at any size.

    python -m benchmarks.evaluation_beam [--images 5000] [--many 200000] [--most 10000000] [--rounds 3]

files: ground truth and detections from COCO files, 80 classes, 94 detections an image, in
    turn by the engine called directly, by `detection.coco.evaluate`, and by the Beam
    transform with one worker thread and with two worker processes; the start of two
    processes that do nothing is told beside them.  All have to give the same arrays.
many: the transform, divided by category and area range, over a set that the workers
    generate: time, peak memory of each process, bytes of state.
part: one category and area range of ten million images (`--most`), all of its states merged and
    summed up as its worker does: peak memory, and from it and a smaller part how many
    detections of one category a worker of 4 GB can take.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

CLASSES, DETECTIONS, OBJECTS = 80, 94, 7
WORKER = 4e9  # bytes
GOAL = 10_000_000  # images
_BATCH = 500  # images
_CATEGORIES = [{"id": number, "name": f"c{number}"} for number in range(1, CLASSES + 1)]


def generate(
    start: int, images: int, classes: int = CLASSES, detections: int = DETECTIONS, objects: int = OBJECTS
) -> tuple[Any, Any, Any]:
    """COCO entries of some images and annotations, and rows of detections, a function of the first image's id."""
    generator = np.random.default_rng(start)
    entries = [{"id": start + number, "width": 640, "height": 480} for number in range(images)]
    boxes = generator.uniform((0, 0, 8, 8), (400, 300, 240, 180), (images, objects, 4)).round(2)
    kinds = generator.integers(1, classes + 1, (images, objects))
    annotations = [
        {
            "id": (start + number) * objects + place + 1,
            "image_id": start + number,
            "category_id": int(kinds[number, place]),
            "bbox": boxes[number, place].tolist(),
            "area": float(boxes[number, place, 2] * boxes[number, place, 3]),
            "iscrowd": 0,
        }
        for number in range(images)
        for place in range(objects)
    ]
    # Half of the detections lie near an object and mostly have its class.
    near = generator.integers(0, objects, (images, detections))
    rows = np.empty((images, detections, 7))
    rows[..., 0] = np.arange(start, start + images)[:, None]
    moved = np.take_along_axis(boxes, near[..., None], axis=1) + generator.normal(0, 6, (images, detections, 4))
    far = generator.uniform((0, 0, 8, 8), (400, 300, 240, 180), moved.shape)
    close = generator.random((images, detections)) < 0.5
    rows[..., 1:5] = np.where(close[..., None], np.maximum(moved, 1.0), far).round(2)
    rows[..., 5] = generator.random((images, detections)).round(4)
    same = close & (generator.random(close.shape) < 0.8)
    rows[..., 6] = np.where(same, np.take_along_axis(kinds, near, 1), generator.integers(1, classes + 1, close.shape))
    return entries, annotations, rows.reshape(-1, 7)


def make_files(folder: Path, images: int) -> None:
    """Writes gt.json and dt.json, unless they are there."""
    done = folder / "made"
    if done.is_file() and done.read_text() == str(images):
        return
    from detection.coco.results import write_results

    folder.mkdir(parents=True, exist_ok=True)
    entries, annotations, rows = generate(1, images)
    tree = {"images": entries, "annotations": annotations, "categories": _CATEGORIES}
    (folder / "gt.json").write_text(json.dumps(tree))
    write_results(folder / "dt.json", rows)
    done.write_text(str(images))


def _engine(folder: Path) -> Any:
    import hotcoco

    truth = hotcoco.COCO(str(folder / "gt.json"))
    evaluation = hotcoco.COCOeval(truth, truth.load_res(str(folder / "dt.json")), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval


def _evaluate(folder: Path) -> Any:
    from detection.coco import evaluate

    return vars(evaluate(folder / "gt.json", folder / "dt.json"))


def _beam(folder: Path, workers: int) -> Any:
    import apache_beam as beam

    from components.coco_evaluator.matching import Measure, read_slices
    from components.coco_evaluator.stored import ReadStored
    from components.coco_evaluator.transforms import Evaluate, arrays_folder
    from detection.coco.buckets import write_buckets
    from detection.coco.settings import make_settings

    with tempfile.TemporaryDirectory() as work:
        start = time.perf_counter()
        buckets = write_buckets(folder / "gt.json", folder / "dt.json", work)
        print(f"  dividing the files: {time.perf_counter() - start:.2f} s", file=sys.stderr)
        measure = Measure(buckets.categories, make_settings())
        with beam.Pipeline(argv=options(workers)) as pipeline:
            pipeline | ReadStored(buckets) | Evaluate(measure, Path(work, "out"))
        [(_, result)] = read_slices(measure, arrays_folder(Path(work, "out")))
        return vars(result.metrics)


def _nothing(folder: Path) -> Any:
    """A pipeline that has nothing to do, in two processes."""
    import apache_beam as beam

    import components.coco_evaluator.transforms

    with beam.Pipeline(argv=options(2)) as pipeline:
        pipeline | beam.Create([components.coco_evaluator.transforms.__name__]) | beam.Reshuffle() | beam.Map(len)
    return {name: np.zeros(0) for name in ("precision", "recall", "scores")}


def options(workers: int) -> list[str]:
    """Beam's, for threads or processes of this machine."""
    mode = "in_memory" if workers == 1 else "multi_processing"
    return [f"--direct_num_workers={workers}", f"--direct_running_mode={mode}"]


_WAYS: dict[str, Callable[[Path], Any]] = {
    "engine": _engine,
    "evaluate": _evaluate,
    "beam, 1 worker": lambda folder: _beam(folder, 1),
    "beam, 2 workers": lambda folder: _beam(folder, 2),
    "2 idle workers": _nothing,
}


def measure_way(way: str, folder: Path) -> None:
    """Runs one way and prints seconds, MB of each process and the arrays' digest."""
    # Imports are not measured.
    import apache_beam  # noqa: F401

    import components.coco_evaluator.transforms  # noqa: F401

    with peaks() as memory:
        start = time.perf_counter()
        arrays = _WAYS[way](folder)
        seconds = time.perf_counter() - start
    digest = hashlib.sha256()
    for name in ("precision", "recall", "scores"):
        digest.update(np.ascontiguousarray(arrays[name], np.float64).tobytes())
    print(json.dumps([seconds, memory, digest.hexdigest()]))


class peaks:  # noqa: N801 (a context manager)
    """Yields a list that holds, after the block, the peak memory in MB of this process and of those it started."""

    def __enter__(self) -> list[float]:
        self._found: dict[int, float] = {}
        self._result: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self._result

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        own = self._found.pop(os.getpid())
        self._result += [round(own), *sorted(map(round, self._found.values()), reverse=True)]

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._look()

    def _look(self) -> None:
        for process in descendants(os.getpid()):
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self._found[process] = int(line.split()[1]) * 1024 / 1e6


def descendants(process: int) -> Iterator[int]:
    """A process and all that it started."""
    yield process
    try:
        children = [Path(task, "children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return
    for child in " ".join(children).split():
        yield from descendants(int(child))


def files(folder: Path, images: int, rounds: int) -> None:
    """Compares the ways from files to arrays."""
    make_files(folder, images)
    size = sum((folder / name).stat().st_size for name in ("gt.json", "dt.json")) / 1e6
    print(f"files: {images} images, {images * DETECTIONS} detections, {size:.0f} MB")
    found: dict[str, list[Any]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for way, results in found.items():
            results.append(json.loads(_run("--measure", way, "--folder", str(folder))))
    digests = {digest for way, results in found.items() if way != "2 idle workers" for _, _, digest in results}
    print(f"arrays: {'all equal' if len(digests) == 1 else 'DIFFERENT'}")
    for way, results in found.items():
        times = [seconds for seconds, _, _ in results]
        memory = max(results, key=lambda result: sum(result[1]))[1]
        print(f"{way}: {median(times):.2f} s (from {min(times):.2f} to {max(times):.2f}), peak MB {memory}")


def many(images: int, workers: int) -> None:
    """The divided transform over a generated set."""
    import apache_beam as beam

    from components.coco_evaluator.matching import Measure, read_slices
    from components.coco_evaluator.transforms import Evaluate, arrays_folder
    from detection.coco.settings import make_settings

    measure = Measure(_CATEGORIES, make_settings(), divided=True)
    with tempfile.TemporaryDirectory() as work, peaks() as memory:
        start = time.perf_counter()
        with beam.Pipeline(argv=options(workers)) as pipeline:
            starts = pipeline | beam.Create(range(1, images + 1, _BATCH)) | beam.Reshuffle()
            starts | beam.Map(_generated_batch, images=images) | Evaluate(measure, work)
        [(_, result)] = read_slices(measure, arrays_folder(work))
        seconds = time.perf_counter() - start
        state = sum(path.stat().st_size for path in arrays_folder(work).glob("*.states"))
    print(
        f"many: {result.images} images, {result.detections} detections, AP {result.metrics.figures['AP']:.4f}: "
        f"{seconds:.0f} s with {workers} processes\n"
        f"states of {len(measure.parts)} parts: {state / 1e6:.0f} MB, {state / result.images:.0f} bytes an image, "
        f"{state / result.detections / 4:.1f} bytes a detection and area range\n"
        f"peak MB of the runner {memory[0]:.0f}, of the workers {memory[1:]}"
    )


def _generated_batch(start: int, images: int) -> Any:
    from components.coco_evaluator.batches import ALL_IMAGES, DetectedBatch

    entries, annotations, rows = generate(start, min(_BATCH, images + 1 - start))
    return DetectedBatch(entries, annotations, rows, [ALL_IMAGES] * len(entries))


def part(folder: Path, images: int) -> None:
    """One part of an evaluation of many images, and of one of a quarter of that."""
    share = images * DETECTIONS // CLASSES
    sizes = [json.loads(_run("--part", str(count), "--folder", str(folder))) for count in (share // 4, share)]
    (few, _, low), (count, state, high) = sizes
    each = (high - low) / (count - few)
    most = (WORKER - low) / each + few
    print(
        f"part: one category of {CLASSES} and one area range of {images} images has {count} detections: "
        f"{state / 1e6:.0f} MB of states, peak memory of its worker {high / 1e6:.0f} MB\n"
        f"{each:.0f} bytes of memory a detection: a worker of {WORKER / 1e9:.0f} GB takes a category of "
        f"{most / 1e6:.0f} million detections, {100 * most / GOAL / DETECTIONS:.1f} % of those of {GOAL} images"
    )


def measure_part(detections: int, folder: Path) -> None:
    """Writes the states of a part as workers do, merges them in a fresh process, and prints its peak memory."""
    from detection.coco import MetricsAccumulator
    from detection.coco.parts import Part

    one = [_CATEGORIES[0]]
    images = 2_000
    path = folder / "part.states"
    lengths = []
    with path.open("wb") as file:
        # Two detections an image, and an object in every seventh, as many as there are to a detection.
        for start in range(1, detections // 2 + 1, images):
            entries, annotations, rows = generate(start, images, classes=1, detections=2, objects=1)
            accumulator = MetricsAccumulator(one, part=Part(1, "all"))
            accumulator.add(entries, annotations[::7], rows)
            lengths.append(len(accumulator.to_bytes()))
            file.write(accumulator.to_bytes())
    peak = int(_run("--merge", json.dumps(lengths), "--folder", str(folder)))
    print(json.dumps([detections, path.stat().st_size, peak]))
    path.unlink()


def merge_part(lengths: list[int], folder: Path) -> None:
    """Merges the states of a part; prints this process's peak memory."""
    from detection.coco import MetricsAccumulator
    from detection.coco.parts import Part

    with peaks() as memory, (folder / "part.states").open("rb") as file:
        states = (file.read(length) for length in lengths)
        MetricsAccumulator.arrays_of_states(states, [_CATEGORIES[0]], part=Part(1, "all"))
    print(round(memory[0] * 1e6))


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.evaluation_beam", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--many", type=int, default=200_000)
    parser.add_argument("--most", type=int, default=GOAL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-evaluation"))
    parser.add_argument("--measure", choices=_WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--merge", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.measure:
        measure_way(args.measure, args.folder)
    elif args.part:
        measure_part(args.part, args.folder)
    elif args.merge:
        merge_part(args.merge, args.folder)
    else:
        files(args.folder, args.images, args.rounds)
        many(args.many, workers=2)
        part(args.folder, args.most)


if __name__ == "__main__":
    main()
