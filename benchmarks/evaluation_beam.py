"""How far an evaluation on Beam goes: time and memory of many images, memory of a part of most.

    python -m benchmarks.evaluation_beam [--many 200000] [--most 10000000]

many: the transform, divided by category and area range, over a set that the workers
    generate: time, peak memory of each process, bytes of state.
part: one category and area range of ten million images (`--most`), all of its states merged and
    summed up as its worker does: peak memory, and from it and a smaller part how many
    detections of one category a worker of 4 GB can take.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation import beam_options
from benchmarks.processes import PeakMemory

CLASSES, DETECTIONS, OBJECTS = 80, 94, 7
WORKER = 4e9  # bytes
TARGET = 10_000_000  # images
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


def many(images: int, workers: int) -> None:
    """The divided transform over a generated set."""
    import apache_beam as beam

    from components.coco_evaluator.beam.evaluate import Measure, evaluate_batches, read_slices
    from detection.coco.params import make_params

    measure = Measure(_CATEGORIES, make_params(), divided=True)
    with tempfile.TemporaryDirectory() as work, PeakMemory() as memory:
        start = time.perf_counter()
        with beam.Pipeline(argv=beam_options(workers)) as pipeline:
            starts = pipeline | beam.Create(range(1, images + 1, _BATCH)) | beam.Reshuffle()
            starts | beam.Map(_generated_batch, images=images) | evaluate_batches([measure], work)
        [(_, result)] = read_slices(measure, work)
        seconds = time.perf_counter() - start
        state = sum(path.stat().st_size for path in Path(work).rglob("*.states"))
    print(
        f"many: {result.images} images, {result.detections} detections, AP {result.metrics.by_name['AP']:.4f}: "
        f"{seconds:.0f} s with {workers} processes\n"
        f"states of {len(measure.partitions)} parts: {state / 1e6:.0f} MB, {state / result.images:.0f} bytes an image, "
        f"{state / result.detections / 4:.1f} bytes a detection and area range\n"
        f"peak MB of the runner {memory.own:.0f}, of the workers {list(map(round, memory.others))}"
    )


def _generated_batch(start: int, images: int) -> Any:
    from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch

    entries, annotations, rows = generate(start, min(_BATCH, images + 1 - start))
    return DetectedBatch(entries, annotations, rows, [ALL_IMAGES] * len(entries))


def part(folder: Path, images: int) -> None:
    """One part of an evaluation of many images, and of one of a quarter of that."""
    of_category = images * DETECTIONS // CLASSES
    sizes = [
        json.loads(_run("--part", str(count), "--folder", str(folder))) for count in (of_category // 4, of_category)
    ]
    (few, _, low), (count, state, high) = sizes
    each = (high - low) / (count - few)
    most = (WORKER - low) / each + few
    print(
        f"part: one category of {CLASSES} and one area range of {images} images has {count} detections: "
        f"{state / 1e6:.0f} MB of states, peak memory of its worker {high / 1e6:.0f} MB\n"
        f"{each:.0f} bytes of memory a detection: a worker of {WORKER / 1e9:.0f} GB takes a category of "
        f"{most / 1e6:.0f} million detections, {100 * most / TARGET / DETECTIONS:.1f} % of those of {TARGET} images"
    )


def measure_part(detections: int, folder: Path) -> None:
    """Writes the states of a part as workers do, merges them in a fresh process, and prints its peak memory."""
    from detection.coco import MetricsAccumulator
    from detection.coco.partitions import Partition

    one = [_CATEGORIES[0]]
    images = 2_000
    path = folder / "part.states"
    lengths = []
    with path.open("wb") as file:
        # Two detections an image, and an object in every seventh, as many as there are to a detection.
        for start in range(1, detections // 2 + 1, images):
            entries, annotations, rows = generate(start, images, classes=1, detections=2, objects=1)
            accumulator = MetricsAccumulator(one, partition=Partition(1, "all"))
            accumulator.add(entries, annotations[::7], rows)
            lengths.append(len(accumulator.to_bytes()))
            file.write(accumulator.to_bytes())
    peak = int(_run("--merge", json.dumps(lengths), "--folder", str(folder)))
    print(json.dumps([detections, path.stat().st_size, peak]))
    path.unlink()


def merge_part(lengths: list[int], folder: Path) -> None:
    """Merges the states of a part; prints this process's peak memory."""
    from detection.coco import MetricsAccumulator
    from detection.coco.partitions import Partition

    with PeakMemory() as memory, (folder / "part.states").open("rb") as file:
        states = (file.read(length) for length in lengths)
        MetricsAccumulator.arrays_of_states(states, [_CATEGORIES[0]], partition=Partition(1, "all"))
    print(round(memory.own * 1e6))


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.evaluation_beam", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, default=200_000)
    parser.add_argument("--most", type=int, default=TARGET)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-evaluation"))
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--merge", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.part:
        measure_part(args.part, args.folder)
    elif args.merge:
        merge_part(args.merge, args.folder)
    else:
        many(args.many, workers=2)
        part(args.folder, args.most)


if __name__ == "__main__":
    main()
