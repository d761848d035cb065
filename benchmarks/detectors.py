"""Parameters, multiply-adds, time and file size of every detector, for docs/detectors.md.

    python -m benchmarks.detectors [--names NAME ...] [--parts work time file] [--seconds 10]

Measures one detector after another, each in a process of its own: random weights, COCO's 90
category ids and the 17 keypoints of a person, the preset's input size, batch 1.

work: parameters, without the statistics of batch norm, and multiply-adds of the convolutions and
    matrix products, from the image to 100 detections.
time: min processor time of the SavedModel's `serving_images` within `--seconds`, with one thread, so that
    other work on the machine matters little.  Without a score threshold: 100 detections with their masks.
file: bytes of the LiteRT file with float16 weights, as of `export --format litert --precision float16`.

Writes docs/detectors.json after each detector; `make docs` writes the tables from it.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.measure import measure
from detection.export.litert import convert_to_litert
from detection.inference.formats.serving_module import ServingModule
from detection.models.detector import Detector
from detection.models.registry import build_detector
from docs.detectors import MEASURED, measured_detectors
from schemas.detectors import DETECTORS

_CLASSES = 90
CATEGORIES = [{"id": number + 1, "name": f"c{number}"} for number in range(_CLASSES)]
_KEYPOINTS = [[f"k{number}" for number in range(17)], *[[]] * (_CLASSES - 1)]
_MIN_CALLS = 3
_PARTS = ("work", "time", "file")


def build(name: str) -> Detector:
    """Builds a detector for COCO without a score threshold."""
    postprocess = {"score_threshold": 0.0}
    return build_detector(name, num_classes=_CLASSES, keypoints=_KEYPOINTS, postprocess=postprocess)


def parameters(detector: Detector) -> int:
    """Counts the weights without the statistics of batch norm."""
    return sum(variable.shape.num_elements() for variable in detector.variables if "moving_" not in variable.path)


def multiply_adds(graph: tf.Graph) -> int:
    """Counts the multiply-adds of the convolutions and matrix products in a graph with static shapes."""
    return sum(_multiply_adds(operation) for operation in graph.get_operations())


def _multiply_adds(operation: tf.Operation) -> int:
    shapes = [tensor.shape for tensor in operation.inputs]
    match operation.type:
        case "Conv2D":
            return operation.outputs[0].shape.num_elements() * shapes[1][:3].num_elements()
        case "DepthwiseConv2dNative":
            return operation.outputs[0].shape.num_elements() * shapes[1][:2].num_elements()
        case "Conv2DBackpropInput":  # a transposed convolution: its input is the third one
            return shapes[2].num_elements() * shapes[1][:3].num_elements()
        case "MatMul" | "BatchMatMulV2":
            is_transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            return operation.outputs[0].shape.num_elements() * shapes[0][-2 if is_transposed else -1]
    return 0


def _min_milliseconds(way: Callable[[], Any], seconds: float) -> float:
    way()
    rounds: list[float] = []
    started = time.perf_counter()
    while len(rounds) < _MIN_CALLS or time.perf_counter() - started < seconds:
        rounds.append(measure(way).processors)
    return 1000 * min(rounds)


def _measured(name: str, parts: list[str], seconds: float) -> dict[str, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    detector = build(name)
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    row: dict[str, Any] = {}
    if "work" in parts:
        row["parameters"] = parameters(detector)
        row["multiply_adds"] = multiply_adds(module.fitted_function("op").get_concrete_function().graph)
    if "time" in parts:
        image = tf.cast(tf.random.stateless_uniform([1, *detector.image_size, 3], [0, 0], 0, 256), tf.uint8)
        row["milliseconds"] = round(_min_milliseconds(lambda: module.serve_images(image), seconds), 1)
    if "file" in parts:
        row["file_bytes"] = len(convert_to_litert(module, precision="float16"))
    return row


def _machine() -> str:
    (model, *_) = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or ["unknown processor"]
    return f"{model}, {os.cpu_count()} virtual cores, TensorFlow {tf.__version__}"


def main() -> None:
    """Measures detectors, and writes docs/detectors.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=DETECTORS, choices=DETECTORS, metavar="NAME")
    parser.add_argument("--parts", nargs="+", default=_PARTS, choices=_PARTS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--one", action="store_true", help="measure in this process, and print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_measured(args.names[0], args.parts, args.seconds)))
        return
    for name in args.names:
        command = [sys.executable, "-m", "benchmarks.detectors", "--one", "--names", name]
        command += ["--parts", *args.parts, "--seconds", str(args.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr[-1000:]}", file=sys.stderr, flush=True)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        print(name, row, flush=True)
        rows = measured_detectors()
        when = {"date": datetime.date.today().isoformat(), "machine": _machine()}
        rows[name] = rows.get(name, {}) | row | when
        lines = [f"{json.dumps(known)}: {json.dumps(rows[known])}" for known in DETECTORS if known in rows]
        MEASURED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
