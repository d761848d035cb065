"""The oracle of the TF Object Detection API: a checkpoint, images, ground truth, and the original code's numbers."""

import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from detection.inference.detectors import open_detector
from detection.inference.formats.serving_module import fit_image
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.ops.boxes import iou_yxyx
from detection.types import EncodedImage, ImageInfo, Labels
from detection.weights import imported_model
from detection.weights.checkpoint_format import CheckpointFormat
from detection.weights.imported_model import ImportedModel, import_model, write_model
from schemas.config.config import Config

BOX_SCALES = (10.0, 10.0, 5.0, 5.0)


class Oracle(NamedTuple):
    """A model of the oracle.

    checkpoint: folder of its checkpoint.
    arrays: outputs, by name.
    notes: losses, ground truth and other facts.
    pixels: uint8 [2, H, W, 3], images.
    """

    checkpoint: Path
    arrays: Mapping[str, np.ndarray]
    notes: dict[str, Any]
    pixels: np.ndarray

    @property
    def image_size(self) -> list[int]:
        """(height, width) of the network's input."""
        return list(self.notes["preprocessed"]["shape"][1:3])

    def labels(self, *, weighted: bool) -> Labels:
        """The ground truth of image 0; image 1 has none."""
        truth, (height, width) = self.notes["ground_truth"], self.image_size
        boxes = np.zeros((2, len(truth["boxes"]), 4), np.float32)
        boxes[0] = np.array(truth["boxes"]) * [height, width, height, width]
        weights = np.array([truth["weights"], [0.0] * len(truth["weights"])], np.float32)
        return Labels(
            boxes=tf.constant(boxes),
            classes=tf.constant([truth["classes"], [0] * len(truth["classes"])], tf.int32),
            valid=tf.constant([[True], [False]]) & tf.ones(boxes.shape[:2], tf.bool),
            weights=tf.constant(weights) if weighted else None,
        )

    def inputs(self, detector: Detector, *, bgr: bool = False) -> tf.Tensor:
        """The images as a detector reads them, float32 [2, H, W, 3]; requires the original's values and scales."""
        fitted, infos = zip(*(fit_image(tf.constant(pixels), detector) for pixels in self.pixels), strict=True)
        inputs = tf.stack(fitted)
        normalised = detector.normalized(inputs)[:, ::16, ::16, :: -1 if bgr else 1]
        np.testing.assert_allclose(normalised, self.arrays["preprocessed_sample"], atol=1e-4)
        for info, pixels, shape in zip(infos, self.pixels, self.arrays["true_image_shapes"], strict=True):
            np.testing.assert_array_equal(info.original_size, pixels.shape[:2])
            np.testing.assert_allclose(info.scale, shape[:2] / np.array(pixels.shape[:2]), rtol=1e-6)
        return inputs

    def has_area(self, image: int) -> np.ndarray:
        """Marks the original's detections [N] of an image that ours have, too.

        Its CenterNet's peaks in the padding, and those with a negative size, are detections of side 0; here they are
        dropped, and others fill their places.
        """
        boxes, count = (self.arrays[f"post_{name}"][image] for name in ("detection_boxes", "num_detections"))
        return (boxes[:, 2:] > boxes[:, :2]).all(axis=-1) & (np.arange(len(boxes)) < count)

    def require_detections(
        self,
        image: int,
        *,
        classes: np.ndarray,
        scores: np.ndarray,
        boxes: np.ndarray,
        categories: Sequence[Mapping[str, Any]],
    ) -> None:
        """Requires 97 of 100 of the original's detections of an image: same class, IoU 0.99, score within 1e-3.

        Args:
            image: number of the image.
            classes: [N].
            scores: [N].
            boxes: [N, 4], (ymin, xmin, ymax, xmax), fractions of the image.
            categories: of the classes; detections of a class without a name are not reported.
        """
        theirs = self.arrays["post_detection_classes"][image].astype(int)
        kept = np.array([category["name"] is not None for category in categories])[theirs]
        kept &= self.has_area(image)
        their_boxes, their_scores = (self.arrays[f"post_detection_{name}"][image][kept] for name in ("boxes", "scores"))
        ious = iou_yxyx(tf.constant(their_boxes[:, np.newaxis]), tf.constant(boxes, tf.float32)).numpy()
        alike = (theirs[kept][:, np.newaxis] == classes) & (ious >= 0.99)
        alike &= np.abs(their_scores[:, np.newaxis] - scores) <= 1e-3
        assert alike.any(axis=1).sum() >= 0.97 * kept.sum() > 0

    @property
    def image_sizes(self) -> tf.Tensor:
        """(height, width) of the images within the input, float32 [2, 2]."""
        return tf.constant(self.arrays["true_image_shapes"][:, :2], tf.float32)

    def require_same_detections(self, model: ImportedModel, detector: Detector, outputs: Any) -> None:
        """Requires the original's detections: their number, their scores, and each one as in `require_detections`."""
        assert model.categories is not None
        found = detector.detect(outputs, ImageInfo(self.image_sizes, tf.ones([2, 2])))
        np.testing.assert_array_equal(found.num, self.arrays["post_num_detections"])
        for image, count in enumerate(found.num):
            theirs = self.arrays["post_detection_scores"][image][self.has_area(image)]
            assert len(theirs) > 0.6 * float(count)
            np.testing.assert_allclose(found.scores[image, : len(theirs)], theirs, atol=1e-4)
            classes, scores, boxes = (
                part[image, :count].numpy() for part in (found.classes, found.scores, found.boxes)
            )
            self.require_detections(image, classes=classes, scores=scores, boxes=boxes, categories=model.categories)

    def require_predictions(self, model: ImportedModel, folder: Path) -> None:
        """Requires the original's detections on image files: decoded, resized as there, and mapped back."""
        assert model.categories is not None
        folder.mkdir()
        write_model(model, folder)
        images = [
            EncodedImage(number, f"{number}.png", tf.io.encode_png(pixels).numpy(), *pixels.shape[:2])
            for number, pixels in enumerate(self.pixels)
        ]
        for image, found in enumerate(open_detector(folder, batch_size=2).detect(images)):
            height, width = self.pixels[image].shape[:2]
            _, x, y, across, down, scores, ids = found.rows.T
            boxes = np.stack([y / height, x / width, (y + down) / height, (x + across) / width], axis=-1)
            self.require_detections(
                image, classes=ids.astype(int) - 1, scores=scores, boxes=boxes, categories=model.categories
            )


def read_oracle(name: str, oracle_dir: Path, target: Path) -> Oracle:
    """Reads a model of the oracle, and writes its checkpoint into `target`."""
    folder = oracle_dir / "od_api"
    sys.path.insert(0, str(folder))
    try:
        runpy.run_path(str(folder / "make_checkpoint.py"))["main"](name, str(target))
        make_image = runpy.run_path(str(folder / "odrule.py"))["make_image"]
    finally:
        sys.path.remove(str(folder))
    notes = json.loads((folder / name / "notes.json").read_text())
    image = notes["image"]
    pixels = np.stack([make_image(image["seed"] + number, image["height"], image["width"]) for number in range(2)])
    return Oracle(target / "checkpoint", dict(np.load(folder / name / "outputs.npz")), notes, pixels)


def import_and_build(
    program: type[CheckpointFormat], checkpoint: str | Path, config: Config, label_map: Path | None = None
) -> tuple[ImportedModel, Detector]:
    """Imports a complete model, and gives its weights to the detector that the import builds to know the variables."""
    detectors: list[Detector] = []

    def build(*arguments: Any) -> Detector:
        detectors.append(detector_from_config(*arguments))
        return detectors[-1]

    with mock.patch.object(imported_model, "detector_from_config", build):
        model = import_model(program, checkpoint, config, label_map=label_map)
    assert (model.missing, model.differences) == ((), ())
    [detector] = detectors
    for variable in detector.variables:
        variable.assign(model.raw[variable.path])
    return model, detector
