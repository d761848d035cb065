"""Recreates the batch of any step on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.datasets.annotations.entries import Entry, skeleton_of
from detection.input_pipeline.record_order import RecordOrder
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Batch, InputOptions, training_batches
from detection.types import Labels
from schemas import features

_READABLE = 256  # min pixels for readable tags; smaller images are enlarged


class StepBatches:
    """Recreates the global batch of a step, for any number of replicas and workers.

    Args:
        reader: reader of the training records.
        options: options that turn records into examples.
        seed: seed of the run.
        batch_size: global batch size.
        repeat_factors: float64 [N], expected repeats of each record per epoch; None: each record once.
    """

    def __init__(
        self,
        reader: RecordReader,
        options: InputOptions,
        *,
        seed: int,
        batch_size: int,
        repeat_factors: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.options = options
        self._reader = reader
        self._seed = seed
        self._batch_size = batch_size
        self._repeat_factors = repeat_factors

    def batch(self, step: int) -> Batch:
        """Returns the batch of step `step`, counted from 0, as NumPy arrays."""
        [batch] = self.batches(step, step + 1)
        return batch

    def batches(self, start: int, stop: int) -> list[Batch]:
        """Returns the batches of the steps `start` to `stop` - 1, counted from 0, as NumPy arrays."""
        batches = training_batches(
            self._reader,
            self.options,
            seed=self._seed,
            start_step=start,
            stop_step=stop,
            batch_size=self._batch_size,
            repeat_factors=self._repeat_factors,
        )
        return [tf.nest.map_structure(lambda value: None if value is None else value.numpy(), one) for one in batches]

    def sources(self, step: int) -> list["BatchImage"]:
        """Lists the sources of the batch's images, in order, without the partners of mosaic and mixup."""
        order = RecordOrder(self._seed, len(self._reader), self._repeat_factors)
        positions = range(step * self._batch_size, (step + 1) * self._batch_size)
        return [self._source(order.record(position)) for position in positions]

    def _source(self, index: int) -> "BatchImage":
        entries = tf.train.Example.FromString(self._reader.read(index)).features.feature
        words = [entries[key].bytes_list.value[:1] for key in (features.SOURCE_ID, features.FILENAME)]
        image_id, file_name = (word[0].decode(errors="replace") if word else "" for word in words)
        return BatchImage(image_id, file_name, self._reader.name(index))


class BatchImage(NamedTuple):
    """One image of a batch: COCO's image id and file name, "" if the record has none, and its record."""

    image_id: str
    file_name: str
    record: str

    def __str__(self) -> str:
        if not self.image_id and not self.file_name:
            return self.record
        return f"{self.image_id} ({self.file_name})" if self.file_name else self.image_id


def pictures_of(batch: Batch, options: InputOptions, categories: Sequence[Entry], count: int) -> list[np.ndarray]:
    """Draws the first images of a batch with their boxes and keypoints, in the network's input size.

    Args:
        batch: NumPy arrays of a batch.
        options: options of the batch.
        categories: COCO categories, in the order of the classes.
        count: max number of images.

    Returns:
        uint8 [H, W, 3] for each image.
    """
    from detection.images.drawing import draw_detections

    pictures = []
    for index, image in enumerate(batch.images[:count]):
        labels = Labels(*(None if values is None else values[index] for values in batch.labels))
        shown = [categories[number] for number in labels.classes[labels.valid]]
        pixels = np.nan_to_num(image * np.asarray(options.std, np.float32) + np.asarray(options.mean, np.float32))
        ymin, xmin, ymax, xmax = np.nan_to_num(labels.boxes[labels.valid]).T
        pictures.append(
            draw_detections(
                pixels.round().clip(0, 255).astype(np.uint8),
                np.stack([xmin, ymin, xmax - xmin, ymax - ymin], axis=-1),
                [str(category["name"]) for category in shown],
                category_ids=[category["id"] for category in shown],
                keypoints=None if labels.keypoints is None else labels.keypoints[labels.valid][..., [1, 0, 2]],
                skeletons=[skeleton_of(category) for category in shown],
                scale=max(1.0, _READABLE / min(image.shape[:2])),
            )
        )
    return pictures
