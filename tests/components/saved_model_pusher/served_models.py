"""What a push reads of an evaluation: samples of served images, and an analysis."""

from pathlib import Path
from typing import Any

from detection.analysis.analyse import analyse
from detection.coco.params import make_params
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.serving_sample import served_images, write_serving_sample
from detection.types import EncodedImage
from schemas.artifacts import SERVING_SAMPLE
from schemas.config.evaluate import AnalysisConfig
from tests.detection.fake_detector import write_images


def evaluated_sample(folder: Path, model: Path, *, images: int) -> Path:
    """Writes what a model gives for some images; returns the file."""
    return sample_of(folder / SERVING_SAMPLE, model, folder / "images", write_images(folder / "images", images))


def sample_of(path: Path, model: Path, images: Path, entries: list[dict[str, Any]]) -> Path:
    """The same for images that exist, by their COCO entries."""
    encoded = [
        EncodedImage(
            entry["id"], entry["file_name"], (images / entry["file_name"]).read_bytes(), entry["height"], entry["width"]
        )
        for entry in entries
    ]
    outputs = SavedModelDetector(folder=model, batch_size=4).outputs(encoded)
    write_serving_sample(path, served_images(outputs, encoded))
    return path


def analysis(category: str = "cat") -> Any:
    """Category 7 is found best with scores of 0.6 and more; category 2 never."""
    boxes = [[10.0 * number, 0.0, 8.0, 8.0] for number in range(4)]
    annotations = [
        {"id": n + 1, "image_id": 1, "category_id": 7, "bbox": box, "area": 64.0, "iscrowd": 0}
        for n, box in enumerate(boxes[:3])
    ]
    annotations.append({"id": 9, "image_id": 1, "category_id": 2, "bbox": boxes[3], "area": 64.0, "iscrowd": 0})
    found = [(boxes[0], 0.9, 7), (boxes[1], 0.6, 7), ([60.0, 60.0, 8.0, 8.0], 0.5, 7), (boxes[0], 0.8, 2)]
    return analyse(
        {
            "images": [{"id": 1, "file_name": "1.png", "height": 90, "width": 90}],
            "annotations": annotations,
            "categories": [{"id": 7, "name": category}, {"id": 2, "name": "dog"}],
        },
        [{"image_id": 1, "category_id": id_, "bbox": box, "score": score} for box, score, id_ in found],
        params=make_params("bbox"),
        total_images=1,
        baseline=None,
        options=AnalysisConfig(replicates=0),
    )
