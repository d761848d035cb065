"""Training steps of D-FINE's authors' code, run by `benchmarks.dfine` with a Python that has PyTorch.

    PYTHON benchmarks/dfine_original.py FOLDER BATCHES.npz

FOLDER is a checkout of Peterande/D-FINE.  For each line on stdin, it takes so many steps, and prints their processor
and wall-clock seconds.
"""

import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch


def import_modules(folder: Path) -> types.SimpleNamespace:
    """Imports the modules of the network alone: their packages import torchvision, of which they need one function."""

    def stub(name: str, **names: Any) -> types.ModuleType:
        module = types.ModuleType(name)
        module.__dict__.update(names)
        sys.modules[name] = module
        return module

    def box_area(boxes: torch.Tensor) -> torch.Tensor:
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

    boxes = stub("torchvision.ops.boxes", box_area=box_area)
    stub("torchvision.ops", boxes=boxes)
    stub("torchvision", __version__="0.29.0", ops=sys.modules["torchvision.ops"])
    for package in ("src", "src.misc", "src.nn", "src.nn.backbone", "src.zoo", "src.zoo.dfine"):
        stub(package).__path__ = [str(folder.joinpath(*package.split(".")))]
    stub("src.core", register=lambda *_, **__: lambda module: module)
    stub("src.misc.dist_utils", get_world_size=lambda: 1, is_dist_available_and_initialized=lambda: False)
    names = {
        "hgnetv2": "src.nn.backbone.hgnetv2",
        "encoder": "src.zoo.dfine.hybrid_encoder",
        "decoder": "src.zoo.dfine.dfine_decoder",
        "network": "src.zoo.dfine.dfine",
        "criterion": "src.zoo.dfine.dfine_criterion",
        "matcher": "src.zoo.dfine.matcher",
    }
    modules = {key: __import__(name, fromlist=["x"]) for key, name in names.items()}
    return types.SimpleNamespace(**modules)


def main() -> None:
    folder, batches = Path(sys.argv[1]), np.load(sys.argv[2])
    torch.set_num_threads(2)
    torch.manual_seed(0)
    modules, side = import_modules(folder), batches["images"].shape[2]
    backbone = modules.hgnetv2.HGNetv2(
        "B0", use_lab=True, return_idx=[2, 3], freeze_at=-1, freeze_norm=False, pretrained=False
    )
    encoder = modules.encoder.HybridEncoder(
        in_channels=[512, 1024], feat_strides=[16, 32], hidden_dim=128, use_encoder_idx=[1], dim_feedforward=512,
        expansion=0.34, depth_mult=0.5, eval_spatial_size=[side, side],
    )  # fmt: skip
    decoder = modules.decoder.DFINETransformer(
        feat_channels=[128, 128], feat_strides=[16, 32], hidden_dim=128, dim_feedforward=512, num_levels=2,
        num_layers=3, num_points=[6, 6], eval_idx=-1, eval_spatial_size=[side, side], num_classes=80,
    )  # fmt: skip
    network = modules.network.DFINE(backbone, encoder, decoder).train()
    matcher = modules.matcher.HungarianMatcher(
        {"cost_class": 2, "cost_bbox": 5, "cost_giou": 2}, use_focal_loss=True, alpha=0.25, gamma=2.0
    )
    criterion = modules.criterion.DFINECriterion(
        matcher, {"loss_vfl": 1, "loss_bbox": 5, "loss_giou": 2, "loss_fgl": 0.15, "loss_ddf": 1.5},
        ["vfl", "boxes", "local"], alpha=0.75, gamma=2.0, num_classes=80, reg_max=32,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), lr=8e-4, weight_decay=1e-4)
    images = torch.tensor(batches["images"]).permute(0, 1, 4, 2, 3).contiguous()
    boxes, classes = torch.tensor(batches["boxes"]), torch.tensor(batches["classes"])

    def step(number: int) -> None:
        at = number % len(images)
        targets = [{"boxes": own, "labels": labels} for own, labels in zip(boxes[at], classes[at], strict=True)]
        outputs = network(images[at], targets)
        losses = criterion(outputs, targets, epoch=0, step=number, global_step=number)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        optimizer.step()

    for line in sys.stdin:
        start = time.process_time(), time.perf_counter()
        for number in range(int(line)):
            step(number)
        print(time.process_time() - start[0], time.perf_counter() - start[1], flush=True)


if __name__ == "__main__":
    main()
