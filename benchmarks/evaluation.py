"""From COCO files to arrays, time and memory: ours, alone and on Beam, pycocotools, faster-coco-eval, the engine.

    python -m benchmarks.evaluation [--images 5000] [--rounds 5] [--ways WAY ...] [--iou-type bbox] [--folder DIR]

Makes the files once: 80 categories, some 7 annotations with polygons and 94 detections an
image, with all the digits that detectors write (5,000 images: 20 and 73 MB); for
`--iou-type segm` each detection holds a mask with an uneven outline.  Then, in
turn and each time in a process of its own, imports not counted:

pycocotools: `COCO`, `loadRes`, `COCOeval`.
faster-coco-eval: its `COCO`, `loadRes`, `COCOeval_faster`.
engine: hotcoco called directly, which checks next to nothing.
ours: `detection.coco.evaluate` with all its checks.
beam-1: ours on Beam with one worker thread.
beam-2: with two worker processes, whose start is in it.
beam-2-idle: the start of two worker processes that do nothing.

Prints seconds of the clock and of this process' processors, peak memory of all processes
together, the ratios to the engine and to ours with their spread over the rounds, and the
load of the machine.  All results must be equal: precision, recall and scores, every
value to 1e-12.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.processes import PeakMemory

_CATEGORIES = 80
_SIZE = (640, 480)
_BLOCK = 500  # images made at once
_EQUAL = 1e-12
_ARRAYS = ("precision", "recall", "scores")
_EVALUATE = "components.coco_evaluator.beam.evaluate"
_IDLE = "beam-2-idle"

Arrays = tuple[npt.NDArray[np.float64], ...]


class Run(NamedTuple):
    """One way: seconds of the clock, of its own process' processors, peak memory of its processes in MB."""

    clock: float
    processors: float
    memory: float


def make_files(folder: Path, images: int, iou_type: str = "bbox") -> tuple[Path, Path]:
    """Writes ground truth and detections, unless they are there."""
    ground_truth, detections = folder / f"ground-truth-{images}.json", folder / f"detections-{iou_type}-{images}.json"
    if not detections.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        starts = range(0, images, _BLOCK)
        _write_ground_truth(ground_truth, images, starts)
        rows = itertools.chain.from_iterable(_detections(start, images) for start in starts)
        _write_list(detections, map(_with_mask, rows) if iou_type == "segm" else rows)
    return ground_truth, detections


def _write_ground_truth(path: Path, images: int, starts: Iterable[int]) -> None:
    categories = [{"id": number + 1, "name": f"c{number}"} for number in range(_CATEGORIES)]
    with path.open("w") as file:
        file.write(f'{{"categories": {json.dumps(categories)}, "images": [')
        file.write(", ".join(json.dumps(_image(number)) for number in range(images)))
        file.write('], "annotations": [')
        entries = itertools.chain.from_iterable(_annotations(start, images) for start in starts)
        file.write(", ".join(json.dumps({**entry, "id": number}) for number, entry in enumerate(entries, 1)))
        file.write("]}")


def _write_list(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    beside = path.with_suffix(".part")
    with beside.open("w") as file:
        separator = "["
        for entry in entries:
            file.write(separator + json.dumps(entry))
            separator = ", "
        file.write("]")
    beside.replace(path)


def _image(number: int) -> dict[str, Any]:
    name = f"{number:012d}.jpg"
    width, height = _SIZE
    return {"id": 3 * number + 139, "width": width, "height": height, "file_name": name, "license": 3}


class _Objects(NamedTuple):
    """Objects of a block of images: image numbers [N], categories [N], boxes [N, 4]."""

    images: Any
    categories: Any
    boxes: Any


def _objects(start: int, images: int) -> tuple[_Objects, np.random.Generator]:
    rng = np.random.default_rng(start)
    count = min(_BLOCK, images - start)
    numbers = np.repeat(np.arange(start, start + count), rng.poisson(7.3, count))
    sides = np.exp(rng.normal(4.2, 1.0, (len(numbers), 2))).clip(4, 400)
    corners = rng.random((len(numbers), 2)) * (np.array(_SIZE) - sides).clip(1)
    categories = rng.integers(1, _CATEGORIES + 1, len(numbers))
    return _Objects(numbers, categories, np.round(np.hstack([corners, sides]), 2)), rng


def _annotations(start: int, images: int) -> Iterable[dict[str, Any]]:
    objects, rng = _objects(start, images)
    for number, category, (x, y, width, height) in zip(*(column.tolist() for column in objects), strict=True):
        angles = np.linspace(0, 2 * np.pi, rng.integers(8, 40))
        outline = np.stack([x + width / 2 * (1 + np.cos(angles)), y + height / 2 * (1 + np.sin(angles))], axis=1)
        yield {
            "segmentation": [np.round(outline, 2).ravel().tolist()],
            "area": round(width * height * 0.785, 4),
            "iscrowd": int(rng.random() < 0.012),
            "image_id": 3 * number + 139,
            "bbox": [x, y, width, height],
            "category_id": category,
        }


def _detections(start: int, images: int) -> Iterable[dict[str, Any]]:
    """Several near each object, some of another category, and as many anywhere; by image, best first."""
    objects, rng = _objects(start, images)
    near = np.repeat(np.arange(len(objects.images)), rng.poisson(6, len(objects.images)))
    sides = np.tile(objects.boxes[near, 2:], 2)
    count = min(_BLOCK, images - start)
    anywhere = np.repeat(np.arange(start, start + count), rng.poisson(50.3, count))
    random_categories = rng.integers(1, _CATEGORIES + 1, len(near) + len(anywhere))
    boxes = np.vstack(
        [
            objects.boxes[near] + sides * rng.normal(0, 0.15, (len(near), 4)),
            np.hstack([rng.uniform(0, 400, (len(anywhere), 2)), np.exp(rng.normal(4, 1, (len(anywhere), 2)))]),
        ]
    )
    boxes[:, 2:] = boxes[:, 2:].clip(1)
    numbers = np.concatenate([objects.images[near], anywhere])
    right = np.concatenate([rng.random(len(near)) < 0.8, np.zeros(len(anywhere), bool)])
    categories = np.where(
        right, np.concatenate([objects.categories[near], random_categories[len(near) :]]), random_categories
    )
    scores = np.concatenate([rng.beta(2, 2, len(near)), rng.beta(1, 6, len(anywhere))])
    order = np.lexsort((-scores, numbers))
    columns = (numbers, categories, boxes.astype(np.float32), scores.astype(np.float32))
    for number, category, box, score in zip(*(column[order].tolist() for column in columns), strict=True):
        yield {"image_id": 3 * number + 139, "category_id": category, "bbox": box, "score": score}


def _with_mask(detection: dict[str, Any]) -> dict[str, Any]:
    """A mask in place of the box: an ellipse whose edge a sum of waves bends, as networks' masks are bent."""
    from pycocotools import mask

    x, y, width, height = detection["bbox"]
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    reach = 0.5 + 0.03 * np.sin(5 * angles + x) + 0.02 * np.sin(17 * angles + y)
    outline = np.stack(
        [x + width * (0.5 + reach * np.cos(angles)), y + height * (0.5 + reach * np.sin(angles))], axis=1
    )
    (rle,) = mask.frPyObjects([outline.clip(0, _SIZE).ravel().tolist()], _SIZE[1], _SIZE[0])
    shape = {"size": [_SIZE[1], _SIZE[0]], "counts": rle["counts"].decode()}
    return {**{key: value for key, value in detection.items() if key != "bbox"}, "segmentation": shape}


def _pycocotools(ground_truth: str, detections: str, iou_type: str) -> Arrays:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    loaded = COCO(ground_truth)
    return _evaluated(COCOeval(loaded, loaded.loadRes(detections), iou_type))


def _faster_coco_eval(ground_truth: str, detections: str, iou_type: str) -> Arrays:
    from faster_coco_eval import COCO, COCOeval_faster

    loaded = COCO(ground_truth)
    return _evaluated(COCOeval_faster(loaded, loaded.loadRes(detections), iou_type))


def _engine(ground_truth: str, detections: str, iou_type: str) -> Arrays:
    import hotcoco

    loaded = hotcoco.COCO(ground_truth)
    return _evaluated(hotcoco.COCOeval(loaded, loaded.load_res(detections), iou_type))


def _evaluated(evaluation: Any) -> Arrays:
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return tuple(evaluation.eval[name] for name in _ARRAYS)


def _ours(ground_truth: str, detections: str, iou_type: str) -> Arrays:
    from detection.coco import evaluate

    metrics = evaluate(ground_truth, detections, iou_type=iou_type)
    return metrics.precision, metrics.recall, metrics.scores


def _beam(ground_truth: str, detections: str, iou_type: str, *, workers: int) -> Arrays:
    import apache_beam as beam

    from components.coco_evaluator.beam.evaluate import Measure, evaluate_batches, read_slices
    from detection.coco.keypoint_sigmas import fit_keypoints
    from detection.coco.params import make_params

    with tempfile.TemporaryDirectory() as work:
        categories, batches = _write_batches(ground_truth, detections, iou_type, Path(work))
        measure = Measure(categories, fit_keypoints(make_params(iou_type), categories))
        with beam.Pipeline(argv=beam_options(workers)) as pipeline:
            paths = pipeline | beam.Create(batches) | beam.Reshuffle()
            paths | beam.Map(_load) | evaluate_batches([measure], Path(work, "out"))
        [(_, result)] = read_slices(measure, Path(work, "out"))
        return result.metrics.precision, result.metrics.recall, result.metrics.scores


def _write_batches(ground_truth: str, detections: str, iou_type: str, folder: Path) -> tuple[Any, list[str]]:
    """The categories, and files of a `DetectedBatch` each; reads both COCO files whole."""
    from components.coco_evaluator.beam.batches import ALL_IMAGES, DetectedBatch, select_images
    from detection.coco.evaluation import read_detections
    from detection.storage.json_files import read_json

    tree = read_json(ground_truth)
    whole = DetectedBatch(tree["images"], tree["annotations"], read_detections(detections, iou_type), [])
    paths = []
    for start in range(0, len(whole.images), _BLOCK):
        batch = select_images(whole, {image["id"] for image in whole.images[start : start + _BLOCK]})
        paths.append(str(folder / f"{start}.pickle"))
        Path(paths[-1]).write_bytes(pickle.dumps(batch._replace(slices=[ALL_IMAGES] * len(batch.images))))
    return tree["categories"], paths


def _load(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def _idle(ground_truth: str, detections: str, iou_type: str) -> Arrays:
    """Two worker processes that have nothing to do."""
    import apache_beam as beam

    with beam.Pipeline(argv=beam_options(2)) as pipeline:
        pipeline | beam.Create(["a", "b"]) | beam.Reshuffle() | beam.Map(len)
    return ()


def beam_options(workers: int) -> list[str]:
    """For one thread, or several processes, of this machine."""
    from components.beam.pipelines import IN_MEMORY_RUNNER

    mode = "in_memory" if workers == 1 else "multi_processing"
    return [f"--runner={IN_MEMORY_RUNNER}", f"--direct_num_workers={workers}", f"--direct_running_mode={mode}"]


# Name -> (what is imported before the clock starts, the way from files to arrays).
WAYS: dict[str, tuple[str, Callable[[str, str, str], Arrays]]] = {
    "pycocotools": ("pycocotools.cocoeval", _pycocotools),
    "faster-coco-eval": ("faster_coco_eval", _faster_coco_eval),
    "engine": ("hotcoco", _engine),
    "ours": ("detection.coco", _ours),
    "beam-1": (_EVALUATE, partial(_beam, workers=1)),
    "beam-2": (_EVALUATE, partial(_beam, workers=2)),
    _IDLE: (_EVALUATE, _idle),
}


def _measure(way: str, ground_truth: str, detections: str, iou_type: str, arrays_path: str) -> None:
    module, function = WAYS[way]
    __import__(module)
    clock, processors = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), PeakMemory() as memory:
        arrays = function(ground_truth, detections, iou_type)
        clock, processors = time.perf_counter() - clock, time.process_time() - processors
    print(clock, processors, memory.own + sum(memory.others))
    named: dict[str, Any] = dict(zip(_ARRAYS, map(np.asarray, arrays), strict=bool(arrays)))
    np.savez(arrays_path, **named)


def _run(way: str, ground_truth: Path, detections: Path, iou_type: str) -> tuple[Run, dict[str, Any]]:
    arrays_path = ground_truth.parent / f"arrays-{way}.npz"
    command = [
        sys.executable,
        "-m",
        "benchmarks.evaluation",
        "--measure",
        way,
        str(ground_truth),
        str(detections),
        iou_type,
        str(arrays_path),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    lines = done.stdout.splitlines()
    with np.load(arrays_path) as arrays:
        return Run(*map(float, lines[-1].split())), dict(arrays)


def _require_equal(results: dict[str, dict[str, Any]]) -> float:
    """Greatest difference of any value of any two ways; ends the program where it is too great."""
    first, *others = results
    greatest = 0.0
    for other, name in itertools.product(others, _ARRAYS):
        expected, other_values = results[first][name], results[other][name]
        # faster-coco-eval leaves another dtype, not another layout.
        difference = float(np.abs(expected - other_values).max())
        if expected.shape != other_values.shape or difference > _EQUAL:
            sys.exit(f"{name} of {other} differs from that of {first} by {difference}")
        greatest = max(greatest, difference)
    return greatest


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _report(runs: dict[str, list[Run]]) -> None:
    for way, of_way in runs.items():
        clock, processors, memory = (list(column) for column in zip(*of_way, strict=True))
        line = f"{way}: {_spread(clock)} s, processors {_spread(processors)} s, peak {max(memory):.0f} MB"
        for base in ("engine", "ours"):
            if base in runs and base != way:
                ratios = [run.clock / other.clock for run, other in zip(of_way, runs[base], strict=True)]
                line += f", {_spread(ratios)} x {base}"
        print(line)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--iou-type", choices=("bbox", "segm"), default="bbox")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-evaluation"))
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        _measure(*args.measure)
        return
    ground_truth, detections = make_files(args.folder, args.images, args.iou_type)
    print(f"{args.images} images, {ground_truth.stat().st_size / 1e6:.0f} and {detections.stat().st_size / 1e6:.0f} MB")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    runs: dict[str, list[Run]] = {way: [] for way in args.ways}
    results = {}
    for _ in range(args.rounds):
        for way in args.ways:
            run, arrays = _run(way, ground_truth, detections, args.iou_type)
            runs[way].append(run)
            if way != _IDLE:
                results[way] = arrays
        greatest = _require_equal(results)
    _report(runs)
    print(f"greatest difference of any value: {greatest:.1e}; load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
