"""A SavedModel with the contract's signature whose answers follow from the images' bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

CATEGORY_IDS = (7, 2, 90)
SLOTS = 6


class FakeDetector(tf.Module):
    """Finds 0 to 6 boxes an image; `shift` makes another model of it."""

    def __init__(self, shift: int = 0, category_ids: tuple[int, ...] = CATEGORY_IDS) -> None:
        super().__init__()
        self.category_ids = category_ids
        self.shift = tf.Variable(shift, dtype=tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        shapes = tf.map_fn(
            lambda data: tf.shape(tf.io.decode_image(data, expand_animations=False)),
            images,
            fn_output_signature=tf.TensorSpec([3], tf.int32),
        )
        with tf.control_dependencies([shapes]):  # an unused decoder would be pruned, and bad images pass
            images = tf.identity(images)
        number = tf.range(SLOTS, dtype=tf.int64)[None, :, None] * 8 + tf.range(8, dtype=tf.int64) + self.shift
        digits = tf.strings.to_hash_bucket_fast(images, 1_000_003)[:, None, None] * (number + 17) % 1009
        unit = tf.cast(digits, tf.float32) / 1009.0
        y, x = unit[..., 0] * 0.7, unit[..., 1] * 0.6
        boxes = tf.stack([y, x, y + (1.0 - y) * unit[..., 2], x + (1.0 - x) * unit[..., 3]], axis=-1)
        scores = tf.sort(tf.round(unit[..., 4] * 4.0) / 4.0, axis=-1, direction="DESCENDING")
        return {
            "detection_boxes": boxes,
            "detection_scores": scores,
            "detection_classes": tf.gather(tf.constant(self.category_ids, tf.int64), digits[..., 5] % 3),
            "num_detections": tf.cast(digits[:, 0, 6] % (SLOTS + 1), tf.int32),
        }


def save_fake_detector(folder: Path, shift: int = 0, category_ids: tuple[int, ...] = CATEGORY_IDS) -> Path:
    """Writes the SavedModel; `category_ids` are three."""
    module = FakeDetector(shift, category_ids)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def write_images(folder: Path, count: int) -> list[dict[str, Any]]:
    """Small PNGs of different sizes; returns COCO `images` entries with ids that are not 1, 2, 3."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number in range(count):
        height, width = 20 + 3 * number, 40 + number
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        name = f"picture_{number:02d}.png"
        Image.fromarray(pixels).save(folder / name)
        entries.append({"id": 500 - 7 * number, "file_name": name, "height": height, "width": width})
    return entries
