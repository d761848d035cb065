"""Images of coloured shapes with masks and keypoints near what `MaskKeypointDetector` finds, and its SavedModels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as masks

from detection.export.saved_model_export import export_saved_model
from detection.models.registry import detector_from_config
from schemas.config.config_io import load_config, to_yaml
from tests.detection import mask_keypoint_detector
from tests.detection.mask_keypoint_detector import NUM_KEYPOINTS

NAMES = [f"point {number}" for number in range(NUM_KEYPOINTS)]
CATEGORIES: list[dict[str, Any]] = [
    {"id": id_, "name": name, "keypoints": NAMES, "skeleton": [[1, 2]]}
    for id_, name in ((5, "red"), (2, "green"), (70, "blue"))
]
DETECTIONS = 5


def save_model(folder: Path, *, mask_output: str = "crops") -> Path:
    """Exports the detector; its classes are red, green and blue."""
    mask_keypoint_detector.register()
    options = f"{{max_detections: {DETECTIONS}, mask_output: {mask_output}}}"
    config = load_config(None, ["model.name=mask-keypoint", f"model.postprocess={options}"])
    detector = detector_from_config(config.model, CATEGORIES)
    folder.mkdir(parents=True, exist_ok=True)
    export_saved_model(detector, folder, categories=CATEGORIES, config_yaml=to_yaml(config))
    return folder


def write_data(folder: Path, count: int, *, seed: int = 0, split: str = "val") -> dict[str, Any]:
    """A COCO data set in a recognised layout; returns its tree."""
    rng = np.random.default_rng(seed)
    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": CATEGORIES}
    (folder / split).mkdir(parents=True)
    for number in range(count):
        height, width = (64, 64) if number % 2 else (40 + 5 * number, 90)
        entry: dict[str, Any] = {"id": 300 - number, "file_name": f"{number}.png", "height": height, "width": width}
        pixels = np.zeros((height, width, 3), np.uint8)
        for channel in range(3):
            if rng.random() < 0.25:
                continue
            mask = shape(rng, height, width, round_=channel == 1)
            pixels[..., channel] = 255 * mask
            if rng.random() < 0.85:
                moved = np.roll(mask, rng.integers(-1, 2, 2), axis=(0, 1))
                tree["annotations"].append(_annotation(rng, moved, entry["id"], channel, len(tree["annotations"])))
        Image.fromarray(pixels).save(folder / split / entry["file_name"])
        tree["images"].append(entry)
    (folder / f"instances_{split}.json").write_text(json.dumps(tree))
    return tree


def shape(rng: np.random.Generator, height: int, width: int, *, round_: bool) -> np.ndarray:
    """An ellipse, or a triangle whose right angle lies at its lower left; bool [H, W]."""
    tall, wide = int(rng.integers(8, height // 2)), int(rng.integers(8, width // 2))
    top, left = int(rng.integers(4, height - tall - 3)), int(rng.integers(4, width - wide - 3))
    y, x = (np.arange(height)[:, None] - top + 0.5) / tall, (np.arange(width)[None] - left + 0.5) / wide
    if round_:
        return np.asarray((y - 0.5) ** 2 + (x - 0.5) ** 2 <= 0.25)
    return np.asarray((y <= 1) & (x >= 0) & (x <= y))


def _annotation(rng: np.random.Generator, mask: np.ndarray, image_id: int, channel: int, before: int) -> dict[str, Any]:
    rle = masks.encode(np.asfortranarray(mask, np.uint8))
    x, y, wide, tall = masks.toBbox(rle).tolist()
    along = np.linspace(0, 1, NUM_KEYPOINTS)
    points = np.stack([x + along * wide, y + along * tall], axis=1) + rng.normal(0, 0.5, (NUM_KEYPOINTS, 2))
    return {
        "id": before + 1,
        "image_id": image_id,
        "category_id": CATEGORIES[channel]["id"],
        "bbox": [x, y, wide, tall],
        "area": float(mask.sum()),
        "segmentation": {"size": list(mask.shape), "counts": rle["counts"].decode()},
        "keypoints": [float(value) for point in points.round(2).tolist() for value in (*point, 2)],
        "num_keypoints": NUM_KEYPOINTS,
        "iscrowd": int(before % 9 == 8),
    }
