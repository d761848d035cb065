"""Speed of the operations on RoIs and masks, beside plain implementations of the same maths.

    python -m benchmarks.roi_ops [--rounds 10] [--image-size 256] [--batch-size 2]

RoIAlign of 512 RoIs, 7x7 bins, 256 channels, levels 2 to 6, forward and forward with the
gradient: as the detectors use it on this machine, with gathered cells only, and with
TensorFlow's crop_and_resize, level by level, whose samples lie at the same places but give 0
outside the map.  Masks are 100 per image of 640x480: RLE of crops in NumPy, pasting in
TensorFlow.  Sampling and assignment are those of one training step.  Medians and spread of
the clock, and of the processors' time, which other work on the machine changes less.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.measure import measure_rounds, milliseconds
from detection.models.faster_rcnn.roi_targets import sample_anchors, sample_rois
from detection.ops.anchors import feature_sizes, pyramid_anchors_yxyx
from detection.ops.masks import crop_masks, encode_rle, paste_masks, rle_of_crop
from detection.ops.roi_align import roi_align, roi_levels
from detection.types import Labels

MIN_LEVEL, MAX_LEVEL = 2, 6
BINS, CHANNELS = 7, 256
ROIS, PROPOSALS, PADDED = 512, 1000, 100
MASKS, HEIGHT, WIDTH = 100, 480, 640


class Case(NamedTuple):
    """Features, RoIs, upstream gradient, proposals and ground truth of a batch."""

    features: list[tf.Tensor]
    boxes: tf.Tensor
    upstream: tf.Tensor
    proposals: tf.Tensor
    labels: Labels
    anchors: tf.Tensor


def make_case(*, side: int, batch: int, objects: int) -> Case:
    """Makes RoIs of 4 % to 70 % of the image's sides, some of which reach beyond it."""
    random = np.random.default_rng(0)

    def boxes(count: int) -> tf.Tensor:
        sides = side * np.exp(random.uniform(np.log(0.04), np.log(0.7), (batch, count, 2)))
        low = random.uniform(-0.05, 1.0, (batch, count, 2)) * (side - sides)
        return tf.constant(np.concatenate([low, low + sides], axis=2), tf.float32)

    sizes = feature_sizes((side, side), MAX_LEVEL)[MIN_LEVEL:]
    anchors = pyramid_anchors_yxyx(
        (side, side),
        min_level=MIN_LEVEL,
        max_level=MAX_LEVEL,
        num_scales=1,
        aspect_ratios=((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)),
        anchor_scale=8.0,
    )
    masks = tf.constant(random.random((batch, PADDED, 112, 112)) < 0.5)
    return Case(
        features=[tf.constant(random.normal(size=(batch, *size, CHANNELS)), tf.float32) for size in sizes],
        boxes=boxes(ROIS),
        upstream=tf.constant(random.normal(size=(batch, ROIS, BINS, BINS, CHANNELS)), tf.float32),
        proposals=boxes(PROPOSALS),
        labels=Labels(
            boxes=boxes(PADDED),
            classes=tf.zeros([batch, PADDED], tf.int32),
            valid=tf.repeat(tf.range(PADDED)[tf.newaxis] < objects, batch, axis=0),
            masks=tf.cast(masks, tf.uint8),
        ),
        anchors=tf.constant(anchors),
    )


def crop_and_resize(features: list[tf.Tensor], boxes: tf.Tensor, *, side: int) -> tf.Tensor:
    """RoIAlign with TensorFlow's op: each level crops its own RoIs, which are then put in order."""
    batch, count = boxes.shape[:2]
    flat, images = tf.reshape(boxes, [-1, 4]), tf.repeat(tf.range(batch), count)
    levels = roi_levels(flat, min_level=MIN_LEVEL, max_level=MAX_LEVEL)
    crops, places = [], []
    for level, feature in enumerate(features, MIN_LEVEL):
        own = tf.where(levels == level)[:, 0]
        low, high = tf.split(tf.gather(flat, own) / side, 2, axis=1)
        half, cells = (high - low) / (2 * BINS), tf.constant(tuple(feature.shape[1:3]), tf.float32)
        corners = tf.concat([low + half, high - half], axis=1)  # the op samples from corner to corner
        corners = (corners * tf.tile(cells, [2]) - 0.5) / tf.tile(cells - 1.0, [2])
        crops.append(tf.image.crop_and_resize(feature, corners, tf.gather(images, own), [BINS, BINS]))
        places.append(own)
    order = tf.argsort(tf.concat(places, axis=0))
    return tf.reshape(tf.gather(tf.concat(crops, axis=0), order), [batch, count, BINS, BINS, -1])


def _forward(align: Callable[..., tf.Tensor], case: Case) -> Any:
    return align(case.features, case.boxes)[:, :, 0, 0, 0]  # copying all results would be measured, too


def _with_gradient(align: Callable[..., tf.Tensor], case: Case) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(case.features)
        aligned = align(case.features, case.boxes)
    # Some of the results as well: unused, they would not be computed.
    return aligned[:, :, 0, 0, 0], tape.gradient(aligned, case.features, output_gradients=case.upstream)


def _align_ways(case: Case, *, side: int) -> dict[str, Callable[[], Any]]:
    ours = partial(roi_align, image_size=(side, side), min_level=MIN_LEVEL, output_size=BINS)
    formulations = {
        "RoIAlign": ours,
        "  gathered cells": partial(ours, portable=True),
        "  crop_and_resize": partial(crop_and_resize, side=side),
    }
    ways: dict[str, Callable[[], Any]] = {}
    for name, align in formulations.items():
        ways[name] = tf.function(partial(_forward, align, case), autograph=False)
    for name, align in formulations.items():
        ways[f"{name}, with gradient"] = tf.function(partial(_with_gradient, align, case), autograph=False)
    return ways


def _training_ways(case: Case) -> dict[str, Callable[[], Any]]:
    batch, labels, seed = case.boxes.shape[0], case.labels, tf.constant([1, 2])
    index = tf.zeros([batch, ROIS // 4], tf.int32)
    ways = {
        "anchor targets": partial(sample_anchors, case.anchors, labels, seed=seed),
        "RoI targets": partial(sample_rois, case.proposals, tf.ones([batch, PROPOSALS], tf.bool), labels, seed=seed),
        "mask targets": partial(crop_masks, labels.masks, labels.boxes, case.boxes[:, : ROIS // 4], index, size=28),
    }
    return {name: tf.function(way, autograph=False) for name, way in ways.items()}


def _mask_ways() -> dict[str, Callable[[], Any]]:
    """Blobs of 28x28 cells in boxes of 4 % to 70 % of the image's sides."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:28, :28] - 13.5
    radii = random.uniform(8, 14, (MASKS, 2, 1, 1))
    distance = (rows / radii[:, 0]) ** 2 + (columns / radii[:, 1]) ** 2
    crops = (1 / (1 + np.exp(6 * (distance - 1 + random.normal(0, 0.15, distance.shape))))).astype(np.float32)
    sides = np.exp(random.uniform(np.log(0.04), np.log(0.7), (MASKS, 2))) * [HEIGHT, WIDTH]
    low = random.uniform(0, 1, (MASKS, 2)) * ([HEIGHT, WIDTH] - sides)
    boxes_xywh = np.concatenate([low[:, ::-1], sides[:, ::-1]], axis=1)
    boxes_yxyx = tf.constant(np.concatenate([low, low + sides], axis=1), tf.float32)

    def encode() -> list[Any]:
        pairs = zip(crops, boxes_xywh, strict=True)
        return [rle_of_crop(crop, box, height=HEIGHT, width=WIDTH) for crop, box in pairs]

    def paste() -> tf.Tensor:
        return paste_masks(tf.constant(crops), boxes_yxyx, height=HEIGHT, width=WIDTH)[:, 0]

    pasted = paste_masks(tf.constant(crops), boxes_yxyx, height=HEIGHT, width=WIDTH)
    return {
        "RLE of an image's masks": encode,
        "RLE of an image's pasted masks in the graph": tf.function(partial(encode_rle, pasted), autograph=False),
        "pasted masks of an image": tf.function(paste, autograph=False),
    }


def _read(way: Callable[[], Any]) -> None:
    """Calls `way`, and waits for its results."""
    for value in tf.nest.flatten(way()):
        if tf.is_tensor(value):
            value.numpy()


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--objects", type=int, default=20, help="per image")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    case = make_case(side=args.image_size, batch=args.batch_size, objects=args.objects)
    ways = _align_ways(case, side=args.image_size) | _training_ways(case) | _mask_ways()
    print(f"{ROIS} RoIs, {args.image_size}x{args.image_size}, batch {args.batch_size}, {args.objects} objects")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; ms a batch, clock and processors", flush=True)
    results = measure_rounds({name: partial(_read, way) for name, way in ways.items()}, args.rounds)
    for name, rounds in results.items():
        print(f"{name:44} {milliseconds(rounds)}")
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
