"""Time and memory to read an annotation file of train2017's size, against `json.load`.

    python -m benchmarks.annotation_index [--rounds 3] [--file FILE]

Generates the file once (118,287 images, 860,001 annotations with polygons, some 490 MB),
then reads it in turn, each time in a process of its own:

index: `index_annotations`, which checks every entry and keeps places only.
entries: that, and then every entry read again at its place, as workers do together.
json.load: the whole tree in memory, nothing checked.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

IMAGES, ANNOTATIONS, CATEGORIES = 118_287, 860_001, 90


def make_file(path: Path) -> None:
    """Writes a file like COCO's instances_train2017.json, unless it is there."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    with path.open("w") as file:
        file.write('{"info": {"year": 2017}, "licenses": [{"id": 1}], "images": [')
        for number in range(IMAGES):
            file.write(", " * bool(number) + json.dumps(_image(number)))
        file.write('], "annotations": [')
        for number in range(ANNOTATIONS):
            file.write(", " * bool(number) + json.dumps(_annotation(number, generator)))
        categories = [{"id": number + 1, "name": f"c{number}"} for number in range(CATEGORIES)]
        file.write(f'], "categories": {json.dumps(categories)}}}')


def _image(number: int) -> dict[str, object]:
    return {
        "license": 3,
        "file_name": f"{number:012d}.jpg",
        "coco_url": f"http://images.example.org/train2017/{number:012d}.jpg",
        "height": 480,
        "width": 640,
        "date_captured": "2013-11-14 16:28:13",
        "flickr_url": f"http://farm4.example.org/3153/{number:010d}_c4a2b8b8c2_z.jpg",
        "id": number,
    }


def _annotation(number: int, generator: random.Random) -> dict[str, object]:
    points = max(6, int(generator.expovariate(1 / 50)))
    return {
        "segmentation": [[round(generator.random() * 480, 2) for _ in range(points)]],
        "area": round(generator.random() * 9000, 4),
        "iscrowd": 0,
        "image_id": generator.randrange(IMAGES),
        "bbox": [round(generator.random() * 300, 2) for _ in range(4)],
        "category_id": generator.randrange(CATEGORIES) + 1,
        "id": number,
    }


def _index(path: Path) -> None:
    from detection.datasets.annotations.annotation_file import index_annotations

    index_annotations(path)


def _entries(path: Path) -> None:
    from detection.datasets.annotations.annotation_file import index_annotations

    for _ in index_annotations(path).entries():
        pass


def _json_load(path: Path) -> None:
    with path.open("rb") as file:
        json.load(file)


_WAYS: dict[str, Callable[[Path], None]] = {"index": _index, "entries": _entries, "json.load": _json_load}


def _measure(way: str, path: Path) -> None:

    start = time.perf_counter()
    _WAYS[way](path)
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--file", type=Path, default=Path("runs/benchmark-annotations.json"))
    parser.add_argument("--measure", choices=_WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        _measure(args.measure, args.file)
        return
    make_file(args.file)
    print(f"{args.file}: {args.file.stat().st_size / 1e6:.0f} MB")
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for _ in range(args.rounds):
        for way, measurements in runs.items():
            command = [sys.executable, "-m", "benchmarks.annotation_index", "--measure", way, "--file", str(args.file)]
            seconds, memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            measurements.append((float(seconds), float(memory)))
    for way, measurements in runs.items():
        times = [seconds for seconds, _ in measurements]
        print(
            f"{way}: {statistics.median(times):.1f} s (from {min(times):.1f} to {max(times):.1f}), "
            f"peak memory of the process {max(memory for _, memory in measurements):.0f} MB"
        )


if __name__ == "__main__":
    main()
