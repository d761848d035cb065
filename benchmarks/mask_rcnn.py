"""Speed of Mask R-CNN R50: a training step and detection, beside torchvision's; shares of their parts.

    python -m benchmarks.mask_rcnn [--rounds 5] [--objects 8] [--torch PYTHON]

256 x 256, batch 2, 90 classes, float32, random weights.  Work is equal to torchvision's: all
layers train, batch norm uses the batch, two samples per side of a RoIAlign bin, 512 RoIs per
image in training and 1,000 proposals in detection; SGD with momentum.  Labels are in memory.

With `--torch`, the interpreter of another environment that has torch and torchvision (built
for this machine's devices), torchvision takes turns in the same run.  With random weights
few scores reach the threshold, for both; `detect, 100 masks` has no threshold.

Prints images/s of the clock and of the processors' time (per core), and ms of the parts.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.measure import Measured, OtherModel, measure, milliseconds, spread
from benchmarks.other_models import CLASSES, SIDE
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.faster_rcnn.roi_targets import AnchorTargets, RoiTargets
from detection.models.faster_rcnn.targets import anchor_assignment, anchor_targets, roi_targets
from detection.models.registry import build_detector
from detection.ops.masks import paste_masks
from detection.types import ImageInfo, Labels

_EQUAL_WORK = {"backbone": {"frozen_stages": 0, "train_batch_norm": True}, "roi": {"align_samples": 2}}
BATCH = 2
_PADDED = 100
Way = Callable[[], Measured]


def _labels(objects: int) -> Labels:
    random = np.random.default_rng(0)
    low = random.uniform(0, 0.55 * SIDE, (BATCH, _PADDED, 2))
    high = low + random.uniform(0.1, 0.4, (BATCH, _PADDED, 2)) * SIDE
    valid = np.broadcast_to(np.arange(_PADDED) < objects, (BATCH, _PADDED))
    return Labels(
        boxes=tf.constant(np.concatenate([low, high], -1) * valid[..., None], tf.float32),
        classes=tf.constant(random.integers(0, CLASSES, (BATCH, _PADDED)) * valid, tf.int32),
        valid=tf.constant(valid),
        masks=tf.ones([BATCH, _PADDED, 112, 112], tf.uint8),
    )


def _detector(**postprocess: Any) -> FasterRcnn:
    keras.utils.set_random_seed(0)
    detector = build_detector(
        "mask-rcnn-r50", num_classes=CLASSES, image_size=SIDE, overrides=_EQUAL_WORK, postprocess=postprocess
    )
    assert isinstance(detector, FasterRcnn)
    return detector


def _compiled(function: Callable[[], Any]) -> Callable[[], None]:
    """Returns what runs the function, and waits for all of its results."""
    compiled = tf.function(function, autograph=False)

    def run() -> None:
        for value in tf.nest.flatten(compiled()):
            if value is not None:
                value.numpy()

    return run


def _train(detector: FasterRcnn, images: tf.Tensor, labels: Labels) -> Callable[[], Any]:
    optimizer = keras.optimizers.SGD(1e-4, momentum=0.9)
    optimizer.build(detector.trainable_variables)
    variables = [variable.value for variable in detector.trainable_variables]

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = detector(images, training=True, seed=tf.constant([1, 2]))
            loss = tf.add_n(list(detector.losses(outputs, labels, training=True).values()))
        optimizer.apply(tape.gradient(loss, variables), detector.trainable_variables)
        return loss

    return step


def _parts(detector: FasterRcnn, images: tf.Tensor, labels: Labels) -> dict[str, Callable[[], Any]]:
    """Parts of a step and of a detection, forward only, on the outputs of the network."""
    outputs = detector(images, training=False)
    size = tf.constant([float(SIDE)] * 2)
    seed = outputs.seed

    def sampled_anchors() -> AnchorTargets:
        assignment = anchor_assignment(detector.config, detector.anchors, labels)
        return anchor_targets(detector.config, detector.anchors, labels, assignment, seed=seed)

    def sampled_rois() -> RoiTargets:
        return roi_targets(detector.config, detector._propose(outputs, size, training=True), labels, seed=seed)

    rois = sampled_rois()
    proposals = detector._propose(outputs, size, training=False).boxes
    few = [rois.boxes[:, :_PADDED], rois.classes[:, :_PADDED]]
    masks = tf.sigmoid(detector._mask_logits(outputs, *few))
    return {
        "backbone, pyramid, RPN": lambda: [level[:, 0, 0] for level in detector(images, training=False).rpn.logits],
        "proposals, training": lambda: detector._propose(outputs, size, training=True),
        "proposals, detection": lambda: detector._propose(outputs, size, training=False),
        "anchor targets": sampled_anchors,
        "proposals, RoI targets": sampled_rois,
        "RoIAlign, 512 RoIs": lambda: detector._roi_features(outputs, rois.boxes, 7)[..., 0],
        "RoIAlign, 1,000 RoIs": lambda: detector._roi_features(outputs, proposals, 7)[..., 0],
        "RoIAlign and box head, 512 RoIs": lambda: detector._box_outputs(
            detector._box_features(outputs, rois.boxes), 0
        ),
        "RoIAlign and mask head, 100 RoIs": lambda: detector._mask_logits(outputs, *few),
        "pasting 100 masks of 640 x 480": lambda: paste_masks(masks, few[0], height=480, width=640)[:, 0],
    }


def _ways(args: argparse.Namespace) -> dict[str, Way]:
    images = tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 0])
    labels, info = _labels(args.objects), ImageInfo(tf.fill([BATCH, 2], float(SIDE)), tf.ones([BATCH, 2]))
    detector, full = _detector(), _detector(score_threshold=0.0)
    calls = {
        "train": _train(detector, images, labels),
        "detect": lambda: detector.detect(detector(images, training=False), info),
        "detect, 100 masks": lambda: full.detect(full(images, training=False), info),
        **_parts(full, images, labels),
    }
    ways: dict[str, Way] = {name: partial(measure, _compiled(call)) for name, call in calls.items()}
    if args.torch is not None:
        torchvision = OtherModel(args.torch, "maskrcnn_resnet50_fpn", BATCH, args.objects)
        ways |= {f"torchvision, {way}": partial(torchvision, way) for way in ("train", "detect")}
    return ways


def _report(results: dict[str, list[Measured]]) -> None:
    for name, rounds in results.items():
        if name.rpartition(", ")[2] in ("train", "detect") or name == "detect, 100 masks":
            clock, processors = ([BATCH / value for value in values] for values in zip(*rounds, strict=True))
            print(f"{name:34} {spread(clock, 3)} images/s, {spread(processors, 3)} by processors' time")
        else:
            print(f"{name:34} {milliseconds(rounds)} ms a batch")
    for way in ("train", "detect"):
        if (theirs := results.get(f"torchvision, {way}")) is not None:
            pairs = list(zip(results[way], theirs, strict=True))
            for field, what in ((0, "clock"), (1, "processors")):
                print(f"{way}: {what} {spread([other[field] / one[field] for one, other in pairs], 2)} x torchvision")


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--objects", type=int, default=8, help="per image")
    parser.add_argument("--torch", metavar="PYTHON", help="interpreter with torch and torchvision")
    args = parser.parse_args()
    print(f"mask-rcnn-r50, {SIDE} px, batch {BATCH}, {args.objects} objects, {args.rounds} rounds")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    ways = _ways(args)
    for way in ways.values():
        way()
    results: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            results[name].append(way())
    _report(results)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
