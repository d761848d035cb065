"""Samples of served images, as the evaluator writes them."""

from pathlib import Path

from detection.inference.saved_model import SavedModelDetector
from detection.inference.serving_sample import served_images, write_serving_sample
from detection.types import EncodedImage
from schemas.artifacts import SERVING_SAMPLE
from tests.detection.fake_detector import write_images


def evaluated_sample(folder: Path, model: Path, *, images: int) -> Path:
    """Writes what a model gives for some images; returns the file."""
    entries = write_images(folder / "images", images)
    encoded = [
        EncodedImage(
            entry["id"],
            entry["file_name"],
            (folder / "images" / entry["file_name"]).read_bytes(),
            entry["height"],
            entry["width"],
        )
        for entry in entries
    ]
    outputs = SavedModelDetector(folder=model, batch_size=4).outputs(encoded)
    write_serving_sample(folder / SERVING_SAMPLE, served_images(outputs, encoded))
    return folder / SERVING_SAMPLE
