"""Runs a detector of another project beside ours; needs that project's packages, not ours.

    PYTHON benchmarks/other_models.py maskrcnn_resnet50_fpn|retinanet_resnet50_fpn|keras-hub|model-garden BATCH OBJECTS

The names with `resnet50_fpn` are torchvision's; keras-hub is its RetinaNet R50 on TensorFlow, model-garden that of
TensorFlow Model Garden, whose input, and not its step, matches anchors with objects.  All layers train, with
random weights, in images of 256 x 256.  Makes one call per line of its input, `train` or `detect`, and answers with
seconds of the clock and of the processors.  Objects are rectangles.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

CLASSES, SIDE = 90, 256
Ways = dict[str, Callable[[], Any]]


def make_targets(torch: Any, batch: int, objects: int) -> Iterable[dict[str, Any]]:
    """Yields boxes, classes and full masks per image."""
    for _ in range(batch):
        low = torch.rand(objects, 2) * 0.55 * SIDE
        high = low + (0.1 + 0.3 * torch.rand(objects, 2)) * SIDE
        masks = torch.zeros(objects, SIDE, SIDE, dtype=torch.uint8)
        for mask, (left, top), (right, bottom) in zip(masks, low.int().tolist(), high.int().tolist(), strict=True):
            mask[top:bottom, left:right] = 1
        classes = torch.randint(1, CLASSES + 1, (objects,))
        yield {"boxes": torch.cat([low, high], 1), "labels": classes, "masks": masks}


def torchvision_ways(name: str, batch: int, objects: int) -> tuple[str, Ways]:
    """Returns the versions, and one training step and one detection of a batch."""
    torch, torchvision = map(importlib.import_module, ("torch", "torchvision"))
    _ = torch.ops.torchvision.nms  # fails if it was built for another torch
    torch.manual_seed(0)
    model = getattr(torchvision.models.detection, name)(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, min_size=SIDE, max_size=SIDE
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = [torch.rand(3, SIDE, SIDE) for _ in range(batch)]
    targets = list(make_targets(torch, batch, objects))

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()

    def detect() -> None:
        model.eval()
        with torch.no_grad():
            model(images)

    return f"torch {torch.__version__}, torchvision {torchvision.__version__}", {"train": train, "detect": detect}


def keras_hub_ways(batch: int, objects: int) -> tuple[str, Ways]:
    """Returns the versions, and one training step of a batch."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    keras, hub, np, tf = map(importlib.import_module, ("keras", "keras_hub", "numpy", "tensorflow"))
    keras.utils.set_random_seed(0)
    resnet = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="bottleneck_block",
        image_shape=(SIDE, SIDE, 3),
    )
    fpn = hub.models.RetinaNetBackbone(
        image_encoder=resnet, min_level=3, max_level=7, use_p5=True, image_shape=(SIDE, SIDE, 3)
    )
    model = hub.models.RetinaNetObjectDetector(
        backbone=fpn, num_classes=CLASSES, bounding_box_format="xyxy", preprocessor=None
    )
    # On CPUs, steps that XLA compiles are several times slower.
    model.compile(optimizer=keras.optimizers.SGD(1e-4, momentum=0.9), jit_compile=False)
    random = np.random.default_rng(0)
    low = random.uniform(0, 0.55 * SIDE, (batch, objects, 2))
    boxes = np.concatenate([low, low + random.uniform(0.1, 0.4, low.shape) * SIDE], -1).astype("float32")
    labels = {"boxes": boxes, "labels": random.integers(0, CLASSES, (batch, objects)).astype("int32")}
    images = random.normal(size=(batch, SIDE, SIDE, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((images, labels))
    return f"keras {keras.__version__}, keras-hub {hub.__version__}", {"train": lambda: model.fit(data, verbose=0)}


def model_garden_ways(batch: int, objects: int) -> tuple[str, Ways]:
    """Returns the versions, and one training step of a batch."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    np, tf, keras = map(importlib.import_module, ("numpy", "tensorflow", "tf_keras"))
    tf.random.set_seed(0)
    experiment = importlib.import_module("official.vision.configs.retinanet").retinanet_resnetfpn_coco()
    config = experiment.task
    config.model.num_classes, config.model.input_size = CLASSES + 1, [SIDE, SIDE, 3]
    config.losses.l2_weight_decay, config.init_checkpoint = 0.0, None
    task = importlib.import_module("official.vision.tasks.retinanet").RetinaNetTask(config)
    model, optimizer = task.build_model(), keras.optimizers.SGD(1e-4, momentum=0.9)
    anchor = importlib.import_module("official.vision.ops.anchor")
    anchors = anchor.build_anchor_generator(3, 7, 3, [0.5, 1.0, 2.0], 4.0)(image_size=(SIDE, SIDE))
    labeler = anchor.AnchorLabeler(0.5, 0.5)
    random = np.random.default_rng(0)
    labels = []
    for _ in range(batch):
        low = random.uniform(0, 0.55 * SIDE, (objects, 2))
        boxes = np.concatenate([low, low + random.uniform(0.1, 0.4, low.shape) * SIDE], -1).astype("float32")
        classes = random.integers(1, CLASSES + 1, (objects, 1)).astype("int32")
        labels.append(labeler.label_anchors(anchors, tf.constant(boxes), tf.constant(classes)))
    keys = ("cls_targets", "box_targets", "attributes", "cls_weights", "box_weights")
    targets = dict(zip(keys, tf.nest.map_structure(lambda *each: tf.stack(each), *labels), strict=True))
    images = tf.constant(random.normal(size=(batch, SIDE, SIDE, 3)), tf.float32)
    step = tf.function(lambda: task.train_step((images, targets), model, optimizer)["loss"])
    name = "tf-models-official"
    return f"tensorflow {tf.__version__}, {name} {version(name)}", {"train": lambda: step().numpy()}


def main() -> None:
    """Answers line by line."""
    name, batch, objects = sys.argv[1], *map(int, sys.argv[2:])
    try:
        make = {"keras-hub": keras_hub_ways, "model-garden": model_garden_ways}.get(name)
        versions, ways = make(batch, objects) if make else torchvision_ways(name, batch, objects)
    except Exception as error:  # of packages that are missing or do not fit each other
        print(f"no {name}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
        return
    print(f"ready: {versions}", flush=True)
    for line in sys.stdin:
        clock, processors = time.perf_counter(), time.process_time()
        ways[line.strip()]()
        print(time.perf_counter() - clock, time.process_time() - processors, flush=True)


if __name__ == "__main__":
    main()
