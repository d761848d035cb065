"""Latency of exported SavedModels at batch 1 and 8, with and without non-maximum suppression.

    python -m benchmarks.serving [--model efficientdet-d0] [--image-size 512] [--batches 1 8] [--rounds 15]
        [--calls 3] [--objects 20] [--litert] [--set KEY=VALUE ...]

Exports the model with random weights, whose last layers are scaled so that about as many
anchors score high as with trained ones, loads the SavedModels and calls `serving_images` on
uint8 batches in the model's input size, so that no time goes into decoding and resizing.
Round after round, in turn:

network: the same preprocessing and the network, without any post-processing.
raw: exported with --no-nms: boxes of all anchors decoded, sigmoid of all scores.
nms: exported with NMS: best candidates, decoded, suppressed.
encoded: `serving_default` of the same model on JPEGs of 640x480: what decoding and resizing add.

Prints milliseconds per call of the clock and of the processors, as median and spread over the
rounds, and their ratios to `network` round by round: (nms / network - 1) is what NMS adds.
With --litert, the LiteRT files of float32, float16 and int8 at batch 1 are measured, too.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from benchmarks.measure import Measured, measure_rounds, spread
from detection.export.litert import Precision, convert_to_litert
from detection.export.saved_model_export import export_saved_model
from detection.inference.formats.serving_module import ServingModule
from detection.input_pipeline.network_input import fit_to_input
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from schemas import serving
from schemas.config.config_io import load_config

_CLASSES = 90
_CATEGORIES = [{"id": number + 1, "name": f"c{number}"} for number in range(_CLASSES)]
_JPEG_SIZE = (480, 640)
_SCORE = 0.3  # above it lies a detection that counts as an object

Way = Callable[[], Any]


def _detector(args: argparse.Namespace) -> Detector:
    config = load_config(
        None,
        [f"model.name={args.model}", f"model.image_size={args.image_size}", "model.backbone_weights=null", *args.set],
    )
    return detector_from_config(config.model, [{}] * _CLASSES)


def smooth_images(detector: Detector, count: int) -> np.ndarray:
    """Smooth images, uint8 [count, H, W, 3], in the detector's input size."""
    random = np.random.default_rng(0)
    height, width = detector.image_size
    coarse = random.integers(0, 256, (count, 16, 16, 3)).astype(np.float32)
    return np.asarray(np.clip(tf.image.resize(coarse, (height, width), "bicubic"), 0, 255), np.uint8)


def spread_scores(detector: Detector, images: np.ndarray, objects: int) -> None:
    """Scales and shifts the class logits so that `objects` times a few anchors of each image score above `_SCORE`.

    A fresh network gives every anchor the score 0.01, for which suppression has nothing to skip.
    """
    mean, std = (np.array(values, np.float32) for values in (detector.pixel_mean, detector.pixel_std))
    outputs = detector(((images - mean) / std).astype(np.float32), training=False)
    logits = np.concatenate([np.asarray(level).reshape(len(images), -1) for level in outputs.class_logits], axis=1)
    center, deviation = float(logits.mean()), float(logits.std())
    scale = 2.0 / deviation  # of trained detectors' logits, whose mean is about -6
    wanted = np.log(_SCORE / (1 - _SCORE))
    top = np.quantile((logits - center) * scale, 1 - 5 * objects / logits.shape[1])
    for variable in detector.class_net.variables:
        if "predict/pointwise_kernel" in variable.path:
            variable.assign(variable.value * scale)
        if "predict/bias" in variable.path:
            variable.assign(variable.value * scale - center * scale + float(wanted - top))


def _jpegs(count: int) -> tf.Tensor:
    random = np.random.default_rng(1)
    coarse = random.integers(0, 256, (count, 30, 40, 3)).astype(np.float32)
    pixels = tf.cast(tf.clip_by_value(tf.image.resize(coarse, _JPEG_SIZE, "bicubic"), 0, 255), tf.uint8)
    return tf.stack([tf.io.encode_jpeg(one, quality=90) for one in pixels])


def _load(detector: Detector, folder: Path, *, nms: bool) -> Any:
    export_saved_model(detector, folder, categories=_CATEGORIES, config_yaml="", nms=nms)
    return tf.saved_model.load(str(folder))


def _ways(detector: Detector, models: dict[bool, Any], batch: int) -> Iterator[tuple[str, Way]]:
    images = tf.constant(smooth_images(detector, batch))
    jpegs = _jpegs(batch)
    fit = functools.partial(
        fit_to_input,
        image_size=detector.image_size,
        resizing=detector.resizing,
        mean=detector.pixel_mean,
        std=detector.pixel_std,
    )
    fitted = tf.TensorSpec([*detector.image_size, 3], tf.float32)

    @tf.function(autograph=False)
    def network(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = tf.map_fn(lambda image: fit(image)[0], pixels, fn_output_signature=fitted)
        outputs = detector.named_outputs(detector(inputs, training=False))
        # A cell of each map: reading all of them would take longer than NMS, which gives few numbers.
        return {name: values[:, :1, :1] for name, values in outputs.items()}

    yield "network", lambda: _finish(network(images))
    for name, nms in (("raw", False), ("nms", True)):
        signature = models[nms].signatures[serving.PIXEL_SIGNATURE]
        yield name, lambda signature=signature: _finish(signature(images=images))
    encoded = models[True].signatures[serving.ENCODED_SIGNATURE]
    yield "encoded", lambda: _finish(encoded(images=jpegs))


def _finish(outputs: dict[str, tf.Tensor]) -> None:
    for value in outputs.values():
        value.numpy()


def _litert(detector: Detector, precision: Precision) -> Way:
    module = ServingModule(detector, _CATEGORIES, batch_size=1)
    images = smooth_images(detector, 4)
    content = convert_to_litert(module, precision=precision, calibration=images[:, np.newaxis])
    print(f"{precision}: {len(content):,} bytes", flush=True)
    interpreter = Interpreter(model_content=content, num_threads=os.cpu_count())
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    image = images[:1].astype(np.uint8 if precision == "int8" else np.float32)
    return lambda: run(images=image)


def _report(batch: int, results: dict[str, list[Measured]]) -> None:
    for name, rounds in results.items():
        line = f"batch {batch}  {name:8} {spread([1000 * one.clock for one in rounds], 1)} ms, "
        line += f"processors {spread([1000 * one.processors for one in rounds], 1)} ms"
        if name != "network":
            for field, what in ((0, "clock"), (1, "processors")):
                ratios = [one[field] / bound[field] for one, bound in zip(rounds, results["network"], strict=True)]
                line += f", {what} {spread(ratios, 3)} x network"
        print(line, flush=True)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="efficientdet-d0")
    parser.add_argument("--image-size", type=int, default=512)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=3, help="a round")
    parser.add_argument("--objects", type=int, default=20, help="in each image; five anchors each score high")
    parser.add_argument("--litert", action="store_true", help="measure the LiteRT files, too")
    parser.add_argument("--set", nargs="+", default=[], help="more of the configuration")
    args = parser.parse_args()
    detector = _detector(args)
    spread_scores(detector, smooth_images(detector, 2), args.objects)
    print(f"{args.model}, {args.image_size} px, {_CLASSES} classes, {args.rounds} rounds of {args.calls} calls")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        models = {nms: _load(detector, Path(folder, str(nms)), nms=nms) for nms in (True, False)}
        for batch in args.batches:
            ways = dict(_ways(detector, models, batch))
            if args.litert and batch == 1:
                ways |= {precision: _litert(detector, precision) for precision in get_args(Precision)}
            results = measure_rounds(ways, args.rounds, args.calls)
            _report(batch, results)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
