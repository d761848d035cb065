"""Loss terms of an exported detector on records, as evaluation loops log them."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import tensorflow as tf

from detection.data.fit import fit_to_input
from detection.data.input_sample import in_window, pad_labels
from detection.data.keypoint_names import num_keypoints
from detection.data.record_decoder import decode_record
from detection.exported import restore_detector
from detection.models.detector import Detector
from detection.types import Labels
from schemas.errors import DataError


def mean_losses(
    saved_model: str | Path,
    records: Iterable[bytes],
    *,
    category_ids: Collection[int],
    batch_size: int,
    max_instances: int = 100,
) -> dict[str, float]:
    """Means of the detector's loss terms over batches, without augmentation and L2 decay.

    Images come as the detector sees them when it serves, in the records' order.  The
    last batch may be smaller; each batch counts by its number of images.

    Args:
        saved_model: that `detection.export` wrote.
        records: serialized `tf.train.Example`s with the keys of `schemas.features`.
        category_ids: the data set's.
        batch_size: images a batch; it matters, as losses are over a batch's positive anchors.
        max_instances: objects of an image that count at most.

    Returns:
        Name of the term -> mean; `loss` is their sum.

    Raises:
        DataError: see `restore_detector`; a category that the model does not know; no record.
    """
    detector, categories = restore_detector(saved_model)
    known = [category["id"] for category in categories]
    unknown = sorted(set(category_ids) - set(known))
    if unknown:
        raise DataError(f"{saved_model}: the model does not know category {unknown[0]}, so it has no loss for it.")

    def example(record: tf.Tensor) -> tuple[tf.Tensor, Labels]:
        sample = decode_record(
            record,
            category_ids=known,
            with_masks=detector.mask_size > 0,
            num_keypoints=num_keypoints(categories) if detector.takes_keypoints else 0,
        )
        image, info = fit_to_input(
            sample.image, image_size=detector.image_size, mean=detector.pixel_mean, std=detector.pixel_std
        )
        size = info.original_size * info.scale
        fitted = in_window(sample, image, size=size, offset=tf.zeros([2]), window=size, mask_size=detector.mask_size)
        return image, pad_labels(fitted, max_instances=max_instances)[0]

    serialized = tf.data.Dataset.from_generator(lambda: records, output_signature=tf.TensorSpec([], tf.string))
    batches = serialized.map(example, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size).prefetch(1)
    loss_terms = _loss_terms(detector)
    totals: dict[str, float] = {}
    images = 0
    for inputs, labels in batches:
        count = int(inputs.shape[0])
        for name, value in loss_terms(inputs, labels).items():
            totals[name] = totals.get(name, 0.0) + float(value) * count
        images += count
    if not images:
        raise DataError(f"{saved_model}: no record to compute its losses on. Give a split with images.")
    means = {name: total / images for name, total in totals.items()}
    return means | {"loss": sum(means.values())}


def _loss_terms(detector: Detector) -> Callable[[tf.Tensor, Labels], dict[str, tf.Tensor]]:
    @tf.function(autograph=False)
    def loss_terms(inputs: tf.Tensor, labels: Labels) -> dict[str, tf.Tensor]:
        return detector.losses(detector(inputs, training=False), labels)

    return loss_terms
