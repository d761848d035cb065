"""How fast the ExampleGen is, against the bound of doing the same work without Beam.

    python -m benchmarks.example_gen [--images 20000] [--rounds 3] [--folder DIR]

Generates a COCO data set of 640x480 JPEGs once, then alternates, in one run:

bound: one process a core; each reads its files, decodes them in full with Pillow, makes
    the Example of `encode_example` and writes it to a TFRecord file; no checks, no Beam.
threads, processes: `convert`, as the component and `to-examples` run it, with all its
    checks; once with a few images, which is the start-up, and once with all of them.
    Left alone it takes what is done first: threads up to 30,000 images on two cores.

Prints images/s of each round, the ratios with their spread, and peak memory.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZE = (640, 480)
FEW = 64  # images of the start-up run
_BOXES = 7
_WORKERS = ("threads", "processes")


def make_data(folder: Path, images: int) -> None:
    """Writes the data set, photograph-like pictures of some 90 KB, unless it is there."""
    done = folder / "made"
    if done.is_file() and done.read_text() == str(images):
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    with multiprocessing.Pool() as pool:
        pool.starmap(_make_image, ((folder / "images" / f"{n:06d}.jpg", n) for n in range(images)), chunksize=64)
    for name, count in (("all", images), ("few", FEW)):
        (folder / name).mkdir()
        tree = {"images": [], "annotations": [], "categories": [{"id": n, "name": f"c{n}"} for n in range(1, 81)]}
        generator = np.random.default_rng(0)
        for n in range(count):
            width, height = SIZE
            tree["images"].append({"id": n, "file_name": f"{n:06d}.jpg", "width": width, "height": height})
            for place in range(_BOXES):
                x, y, w, h = (round(float(value), 2) for value in generator.uniform((0, 0, 5, 5), (400, 300, 240, 180)))
                outline = [x, y, x + w, y, x + w, y + h, x, y + h] * 6
                tree["annotations"].append(
                    {
                        "id": n * _BOXES + place,
                        "image_id": n,
                        "category_id": 1 + (n + place) % 80,
                        "bbox": [x, y, w, h],
                        "area": w * h,
                        "iscrowd": 0,
                        "segmentation": [outline],
                    }
                )
        (folder / name / "instances_train.json").write_text(json.dumps(tree))
    done.write_text(str(images))


def _make_image(path: Path, seed: int) -> None:
    from PIL import Image

    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (24, 32, 3), np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
    fine = generator.normal(0, 4, (SIZE[1], SIZE[0], 3))
    Image.fromarray(np.clip(np.asarray(coarse) + fine, 0, 255).astype(np.uint8)).save(path, quality=85)


def bound(folder: Path, out: Path) -> float:
    """Seconds that the bare work takes, start-up of the processes not counted."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tree = json.loads((folder / "all/instances_train.json").read_bytes())
    groups: dict[int, list[dict]] = {image["id"]: [] for image in tree["images"]}
    for annotation in tree["annotations"]:
        groups[annotation["image_id"]].append(annotation)
    cores = os.cpu_count() or 1
    partitions = [[(image, groups[image["id"]]) for image in tree["images"][core::cores]] for core in range(cores)]
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    workers = [
        context.Process(target=_bound_worker, args=(folder / "images", out / str(core), partition, ready, go))
        for core, partition in enumerate(partitions)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    start = time.perf_counter()
    go.set()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _bound_worker(images: Path, destination: Path, partition: list[Any], ready: Any, go: Any) -> None:
    import io

    import tensorflow as tf
    from PIL import Image

    from detection.datasets.encode_record import encode_example
    from detection.images.inspect import ImageFile

    names = {n: f"c{n}" for n in range(1, 81)}
    ready.release()
    go.wait()
    with tf.io.TFRecordWriter(str(destination)) as writer:
        for image, annotations in partition:
            data = (images / image["file_name"]).read_bytes()
            with Image.open(io.BytesIO(data)) as picture:
                picture.load()
            file = ImageFile(data, "jpeg", picture.height, picture.width, picture.mode, 1, "")
            example = encode_example(file, image, annotations, category_names=names)
            writer.write(example.SerializeToString(deterministic=True))


def ours(folder: Path, name: str, out: Path, workers: str) -> tuple[float, float]:
    """Seconds of a conversion in a process of its own, imports not counted, and its peak memory in MB."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.example_gen", "--convert", name, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--out", str(out), "--workers", workers], check=True, capture_output=True, text=True
    )
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def _convert(folder: Path, name: str, out: Path, workers: str) -> None:
    from components.coco_example_gen.conversion import convert
    from detection.datasets.splits import SplitFiles
    from schemas.config.config import DataConfig

    out.mkdir(parents=True)
    splits = {"train": SplitFiles(str(folder / name / "instances_train.json"), str(folder / "images"))}
    options = (
        []
        if workers == "threads"
        else ["--direct_running_mode=multi_processing", f"--direct_num_workers={os.cpu_count()}"]
    )
    start = time.perf_counter()
    convert(splits, out, DataConfig(), beam_args=options)
    seconds = time.perf_counter() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(seconds, peak / 1024)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-data"))
    parser.add_argument("--convert", help=argparse.SUPPRESS)
    parser.add_argument("--workers", choices=_WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-out"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convert:
        _convert(args.folder, args.convert, args.out, args.workers)
        return
    make_data(args.folder, args.images)
    ratios: dict[str, list[float]] = {workers: [] for workers in _WORKERS}
    for number in range(args.rounds):
        bound_rate = args.images / bound(args.folder, args.out)
        print(f"round {number + 1}: bound {bound_rate:.0f} images/s", flush=True)
        for workers, fractions in ratios.items():
            start_up, _ = ours(args.folder, "few", args.out, workers)
            seconds, memory = ours(args.folder, "all", args.out, workers)
            rate = (args.images - FEW) / (seconds - start_up)
            fractions.append(rate / bound_rate)
            print(
                f"  {workers}: {rate:.0f} images/s after {start_up:.1f} s of start-up, ratio {fractions[-1]:.2f}, "
                f"{seconds:.0f} s in all, peak {memory:.0f} MB a process",
                flush=True,
            )
    for workers, fractions in ratios.items():
        print(f"{workers}: ratio {statistics.median(fractions):.2f}, from {min(fractions):.2f} to {max(fractions):.2f}")


if __name__ == "__main__":
    main()
