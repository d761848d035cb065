"""Runs torchvision's Mask R-CNN for `benchmarks.mask_rcnn`; needs torch and torchvision, not TensorFlow.

Makes one call per line of its input, `train` or `detect`, and answers with seconds of the
clock and of the processors.  Objects are rectangles, as many as the first argument says.
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

CLASSES, SIDE, BATCH = 90, 256, 2


def make_targets(torch: Any, objects: int) -> Iterable[dict[str, Any]]:
    """Yields boxes, classes and full masks per image."""
    for _ in range(BATCH):
        low = torch.rand(objects, 2) * 0.55 * SIDE
        high = low + (0.1 + 0.3 * torch.rand(objects, 2)) * SIDE
        masks = torch.zeros(objects, SIDE, SIDE, dtype=torch.uint8)
        for mask, (left, top), (right, bottom) in zip(masks, low.int().tolist(), high.int().tolist(), strict=True):
            mask[top:bottom, left:right] = 1
        classes = torch.randint(1, CLASSES + 1, (objects,))
        yield {"boxes": torch.cat([low, high], 1), "labels": classes, "masks": masks}


def make_ways(torch: Any, torchvision: Any, objects: int) -> dict[str, Callable[[], Any]]:
    """Returns one training step and one detection of a batch."""
    torch.manual_seed(0)
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=CLASSES + 1, min_size=SIDE, max_size=SIDE
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = [torch.rand(3, SIDE, SIDE) for _ in range(BATCH)]
    targets = list(make_targets(torch, objects))

    def train() -> None:
        model.train()
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()

    def detect() -> None:
        model.eval()
        with torch.no_grad():
            model(images)

    return {"train": train, "detect": detect}


def main() -> None:
    """Answers line by line."""
    try:
        torch, torchvision = map(importlib.import_module, ("torch", "torchvision"))

        _ = torch.ops.torchvision.nms
    except Exception as error:  # ops built for another torch raise what they like
        print(f"no torchvision: {type(error).__name__}: {error}".splitlines()[0], flush=True)
        return
    ways = make_ways(torch, torchvision, int(sys.argv[1]))
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}", flush=True)
    for line in sys.stdin:
        clock, processors = time.perf_counter(), time.process_time()
        ways[line.strip()]()
        print(time.perf_counter() - clock, time.process_time() - processors, flush=True)


if __name__ == "__main__":
    main()
