"""Speed of post-processing and anchor assignment, beside plain implementations of the same maths.

    python -m benchmarks.detection_ops [--rounds 10] [--image-size 512] [--network MODEL]

All ways take turns in one run, on the same outputs of a batch: a detector of 90 classes, whose
anchors near 20 objects per image have higher logits.  The plain ways work image by image, and
class by class, with TensorFlow's own operations; assignment is a matrix of all IoUs.  Medians
and spread of the clock, and of the processors' time, which other work on the machine changes less.

`--network MODEL` instead runs a detector's network, with and without post-processing.  The scores of CenterNets, whose
candidates are always the same in number, stay random; those with keypoints have one class, of COCO's people.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.measure import measure_rounds, milliseconds, spread
from benchmarks.serving import smooth_images, spread_scores
from detection.models.dense.detector import DenseDetector
from detection.models.heads.postprocess import BoxPostprocess, detect_boxes
from detection.models.registry import build_detector
from detection.ops.anchors import assign_anchors, pyramid_anchors_yxyx
from detection.ops.boxes import decode_yxyx, pairwise_iou_yxyx
from detection.types import ImageInfo

CLASSES = 90
MAX_OUTPUTS = 100
LIMIT = 5000
PADDED = 100  # rows of ground truth, of which the objects fill some

NMS = {
    "hard, class by class": BoxPostprocess(),
    "Gaussian, class by class": BoxPostprocess(nms="gaussian"),
    "linear, class by class": BoxPostprocess(nms="linear"),
    "hard, global": BoxPostprocess(class_agnostic=True, one_class_per_anchor=True),
    "Gaussian, global": BoxPostprocess(nms="gaussian", class_agnostic=True, one_class_per_anchor=True),
}


class Case(NamedTuple):
    """Outputs of a network per pyramid level, anchors, and ground truth."""

    logits: list[tf.Tensor]
    deltas: list[tf.Tensor]
    anchors: tf.Tensor
    boxes: tf.Tensor
    valid: tf.Tensor


def make_case(*, side: int, batch: int, objects: int) -> Case:
    """Makes outputs as of a trained network: low logits, and higher ones where anchors overlap an object."""
    random = np.random.default_rng(0)
    anchors = pyramid_anchors_yxyx(
        (side, side), min_level=3, max_level=7, num_scales=3, aspect_ratios=(1.0, 2.0, 0.5), anchor_scale=4.0
    )
    sides = side * np.exp(random.uniform(np.log(0.05), np.log(0.5), (batch, PADDED, 2)))
    low = random.uniform(0, 1, (batch, PADDED, 2)) * (side - sides)
    boxes = np.concatenate([low, low + sides], axis=2).astype(np.float32)
    valid = np.zeros((batch, PADDED), bool)
    valid[:, :objects] = True
    logits = random.normal(-6.5, 1.0, (batch, len(anchors), CLASSES)).astype(np.float32)
    for image in range(batch):
        ious = pairwise_iou_yxyx(tf.constant(boxes[image, :objects]), tf.constant(anchors)).numpy()
        for number, label in enumerate(random.integers(0, CLASSES, objects)):
            logits[image, :, label] += 8.0 * ious[number]
    levels = [9 * int(np.ceil(side / 2**level)) ** 2 for level in range(3, 8)]
    deltas = random.normal(0, 0.1, (batch, len(anchors), 4)).astype(np.float32)

    def per_level(values: Any) -> list[tf.Tensor]:
        return [tf.constant(part) for part in np.split(values, np.cumsum(levels)[:-1], axis=1)]

    return Case(per_level(logits), per_level(deltas), tf.constant(anchors), tf.constant(boxes), tf.constant(valid))


def plain_detect(case: Case, options: BoxPostprocess) -> list[tf.Tensor]:
    """The same detections with TensorFlow's NMS, image by image, and class by class unless all compete."""
    one = tf.function(partial(_plain_detect_image, case.anchors, options), autograph=False)
    images = zip(*(tf.unstack(tf.concat(part, axis=1)) for part in (case.logits, case.deltas)), strict=True)
    results = [one(logits, deltas) for logits, deltas in images]
    return [tf.concat(parts, axis=0) for parts in zip(*results, strict=True)]


def _plain_detect_image(
    all_anchors: tf.Tensor, options: BoxPostprocess, logits: tf.Tensor, deltas: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    if options.one_class_per_anchor:
        anchors, classes = tf.range(logits.shape[0]), tf.argmax(logits, axis=1, output_type=tf.int32)
        values = tf.reduce_max(logits, axis=1)
    else:
        values, places = tf.math.top_k(tf.reshape(logits, [-1]), LIMIT)
        anchors, classes = places // CLASSES, places % CLASSES
    boxes, scores = decode_yxyx(tf.gather(deltas, anchors), tf.gather(all_anchors, anchors)), tf.sigmoid(values)
    groups = [None] if options.class_agnostic else list(range(CLASSES))
    kept = [_plain_nms(boxes, scores, classes, group, options) for group in groups]
    scores, classes, boxes = (tf.concat(part, axis=0) for part in zip(*kept, strict=True))
    best = tf.math.top_k(scores, tf.minimum(MAX_OUTPUTS, tf.size(scores)))
    return best.values, tf.gather(classes, best.indices), tf.gather(boxes, best.indices)


def _plain_nms(
    boxes: tf.Tensor, scores: tf.Tensor, classes: tf.Tensor, group: int | None, options: BoxPostprocess
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    if group is not None:
        own = tf.where(classes == group)[:, 0]
        boxes, scores, classes = tf.gather(boxes, own), tf.gather(scores, own), tf.gather(classes, own)
    soft = options.nms == "gaussian"
    picked, values = tf.image.non_max_suppression_with_scores(
        boxes,
        scores,
        MAX_OUTPUTS,
        iou_threshold=1.0 if soft else options.iou_threshold,
        score_threshold=options.score_threshold,
        soft_nms_sigma=options.sigma / 2 if soft else 0.0,
    )
    return values, tf.gather(classes, picked), tf.gather(boxes, picked)


def plain_assign(case: Case) -> tuple[tf.Tensor, tf.Tensor]:
    """The same assignment, image by image, from the matrix of the objects' IoUs."""
    positive, index = [], []
    for image in range(case.boxes.shape[0]):
        ious = pairwise_iou_yxyx(tf.boolean_mask(case.boxes[image], case.valid[image]), case.anchors)
        best = tf.argmax(ious, axis=0, output_type=tf.int32)
        is_positive = tf.reduce_max(ious, axis=0) >= 0.5
        forced = tf.one_hot(tf.argmax(ious, axis=1), tf.shape(ious)[1], dtype=tf.int32)
        is_forced = tf.reduce_max(forced, axis=0) > 0
        positive.append(is_positive | is_forced)
        index.append(tf.where(is_forced, tf.argmax(forced, axis=0, output_type=tf.int32), best))
    return tf.stack(positive), tf.stack(index)


def _ways(case: Case, *, side: int) -> dict[str, Callable[[], Any]]:
    batch = case.boxes.shape[0]
    info = ImageInfo(tf.fill([batch, 2], float(side)), tf.ones([batch, 2]))
    ways: dict[str, Callable[[], Any]] = {}
    for name, options in NMS.items():
        run = tf.function(partial(detect_boxes, options=options), autograph=False)
        ways[name] = partial(run, case.logits, case.deltas, case.anchors, info)
        if options.nms != "linear":
            ways[f"  {name}, plain"] = partial(
                tf.function(partial(plain_detect, options=options), autograph=False), case
            )
    ways["assignment"] = partial(tf.function(assign_anchors, autograph=False), case.anchors, case.boxes, case.valid)
    ways["  assignment, plain"] = partial(tf.function(plain_assign, autograph=False), case)
    ways["best logit of each anchor, a bound"] = partial(
        tf.function(lambda levels: [tf.reduce_max(level, axis=2) for level in levels], autograph=False), case.logits
    )
    return ways


def _network_ways(model: str, *, side: int, batch: int, objects: int) -> dict[str, Callable[[], Any]]:
    keypoints = [[f"k{number}" for number in range(17)]] if model.endswith("-kpts") else ()
    detector = build_detector(model, num_classes=1 if keypoints else CLASSES, image_size=side, keypoints=keypoints)
    pixels = smooth_images(detector, batch)
    if isinstance(detector, DenseDetector):
        spread_scores(detector, pixels, objects)
    images = tf.constant((pixels - detector.pixel_mean) / detector.pixel_std, tf.float32)
    info = ImageInfo(tf.fill([batch, 2], float(side)), tf.ones([batch, 2]))

    def alone(images: tf.Tensor) -> Any:
        # A cell of each map: reading all of them would take longer than NMS, which gives few numbers.
        return tf.nest.map_structure(lambda values: values[:, :1, :1], detector(images, training=False))

    def both(images: tf.Tensor) -> Any:
        return detector.detect(detector(images, training=False), info)

    ways = {"network": alone, "with post-processing": both}
    return {name: partial(tf.function(way, autograph=False), images) for name, way in ways.items()}


def _read(way: Callable[[], Any]) -> None:
    """Calls `way`, and waits for its results."""
    for tensor in tf.nest.flatten(way()):
        if tensor is not None:  # of optional outputs
            tensor.numpy()


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--objects", type=int, default=20, help="per image")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--network", metavar="MODEL", help="a detector with and without post-processing")
    args = parser.parse_args()
    if args.network:
        ways = _network_ways(args.network, side=args.image_size, batch=args.batch_size, objects=args.objects)
    else:
        case = make_case(side=args.image_size, batch=args.batch_size, objects=args.objects)
        ways = _ways(case, side=args.image_size)
    print(f"{args.image_size} px, batch {args.batch_size}, {args.objects} objects")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; ms a batch, clock and processors", flush=True)
    results = measure_rounds({name: partial(_read, way) for name, way in ways.items()}, args.rounds)
    for name, rounds in results.items():
        print(f"{name:38} {milliseconds(rounds)}")
    if args.network:
        pairs = list(zip(results["network"], results["with post-processing"], strict=True))
        clock, processors = ([1 - alone[field] / both[field] for alone, both in pairs] for field in (0, 1))
        print(f"share of post-processing: clock {spread(clock, 3)}, processors {spread(processors, 3)}")
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
