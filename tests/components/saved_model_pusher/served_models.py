"""Samples of served images, as the evaluator writes them."""

from pathlib import Path
from typing import Any

from detection.inference.saved_model import SavedModelDetector
from detection.inference.serving_sample import served_images, write_serving_sample
from detection.types import EncodedImage
from schemas.artifacts import SERVING_SAMPLE
from tests.detection.fake_detector import write_images


def evaluated_sample(folder: Path, model: Path, *, images: int) -> Path:
    """Writes what a model gives for some images; returns the file."""
    return sample_of(folder / SERVING_SAMPLE, model, folder / "images", write_images(folder / "images", images))


def sample_of(path: Path, model: Path, images: Path, entries: list[dict[str, Any]]) -> Path:
    """The same for images that exist, by their COCO entries."""
    encoded = [
        EncodedImage(
            entry["id"],
            entry["file_name"],
            (images / entry["file_name"]).read_bytes(),
            entry["height"],
            entry["width"],
        )
        for entry in entries
    ]
    outputs = SavedModelDetector(folder=model, batch_size=4).outputs(encoded)
    write_serving_sample(path, served_images(outputs, encoded))
    return path
