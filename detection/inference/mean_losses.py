"""Computes the mean losses of a detector on records, as logged in evaluation loops."""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.inference.device_copies import map_in_turn, on_device_of
from detection.inference.formats.serving_module import fit_image
from detection.inference.restore import load_trained
from detection.input_pipeline.network_input import in_window, pad_labels
from detection.input_pipeline.parallel_map import parallel_map
from detection.input_pipeline.record_decoder import decode_record, num_keypoints
from detection.models.detector import Detector
from detection.types import Labels
from schemas.errors import DataError
from schemas.scalars import TOTAL_LOSS


class MeanLosses:
    """Means of a detector's losses over batches, without augmentation.

    Images are preprocessed as in serving, in the order of the records.  The last batch may
    be smaller; batches are weighted by their number of images.

    Args:
        detector: built detector, called with its current weights.
        categories: categories of the data set, in the order of the detector's classes.
        batch_size: images per batch; losses are normalized by the positive anchors of a batch, so
            they depend on it.
        max_instances: max objects per image.
        with_crowds: ignore crowd regions, as `train.crowds` = ignore; False: they are background.
        copies: copies of `detector` on other devices, which share the batches.
        regularization: loss of the current weights; None: no such loss.
    """

    def __init__(
        self,
        detector: Detector,
        categories: Sequence[Mapping[str, Any]],
        *,
        batch_size: int,
        max_instances: int = 100,
        with_crowds: bool = False,
        copies: Sequence[Detector] = (),
        regularization: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        self._detector = detector
        self._regularization = regularization
        self._category_ids = [category["id"] for category in categories]
        self._num_keypoints = num_keypoints(categories) if detector.capabilities.keypoints else 0
        self._max_instances = max_instances
        self._with_crowds = with_crowds
        self._loss_terms = [_loss_terms_of(detector, batch_size)]
        self._loss_terms += [on_device_of(copy, _loss_terms_of(copy, batch_size)) for copy in copies]
        # Traced once, for all calls.
        self._records: Iterable[bytes] = ()
        serialized = tf.data.Dataset.from_generator(
            lambda: self._records, output_signature=tf.TensorSpec([], tf.string)
        )
        self._batches = parallel_map(serialized, self._example).batch(batch_size).prefetch(len(self._loss_terms))

    def __call__(
        self, records: Iterable[bytes], *, gather: Callable[[bytes], Sequence[bytes]] = lambda data: [data]
    ) -> dict[str, float]:
        """Runs the detector.

        Args:
            records: serialized `tf.train.Example`s with the keys of `schemas.features`; with several
                machines, every n-th batch of records.
            gather: exchanges bytes between the machines; returns those of all.

        Returns:
            Means by name of the loss, and their sum as `TOTAL_LOSS`; empty without records.

        Raises:
            DataError: a record cannot be parsed or decoded.
        """
        of_machines = [json.loads(part) for part in gather(json.dumps(self._batch_terms(records)).encode())]
        batches = [batch for row in itertools.zip_longest(*of_machines) for batch in row if batch is not None]
        images = sum(count for count, _ in batches)
        totals: dict[str, float] = {}
        for count, terms in batches:
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value * count
        means = {name: total / images for name, total in totals.items()}
        if means and self._regularization is not None:
            means["l2_loss"] = float(self._regularization())
        return means | {TOTAL_LOSS: sum(means.values())} if means else {}

    def _batch_terms(self, records: Iterable[bytes]) -> list[tuple[int, dict[str, float]]]:
        """Returns the number of images and the losses of each batch."""
        self._records = records
        results: list[tuple[int, dict[str, float]]] = []
        try:
            for result in map_in_turn(self._loss_terms, self._batches):
                results.append(result)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(
                f"cannot read a record after the first {sum(count for count, _ in results)} for its losses: "
                f"{error.message.splitlines()[0].rpartition('}} ')[2]} Write the records again."
            ) from None
        return results

    def _example(self, record: tf.Tensor) -> tuple[tf.Tensor, Labels]:
        detector = self._detector
        sample = decode_record(
            record,
            category_ids=self._category_ids,
            with_masks=detector.capabilities.mask_size > 0,
            num_keypoints=self._num_keypoints,
            with_crowds=self._with_crowds,
        )
        image, info = fit_image(sample.image, detector)
        size = info.original_size * info.scale
        fitted = in_window(
            sample, image, size=size, offset=tf.zeros([2]), window=size, mask_size=detector.capabilities.mask_size
        )
        return image, pad_labels(fitted, max_instances=self._max_instances)[0]


def _loss_terms_of(
    detector: Detector, batch_size: int
) -> Callable[[tuple[tf.Tensor, Labels]], tuple[int, dict[str, float]]]:
    """Returns a function from a batch to its number of images and its losses."""

    def terms(inputs: tf.Tensor, labels: Labels) -> dict[str, tf.Tensor]:
        return detector.losses(detector(inputs, training=False), labels)

    traced = tf.function(terms, autograph=False)

    def call(batch: tuple[tf.Tensor, Labels]) -> tuple[int, dict[str, float]]:
        images = int(batch[0].shape[0])
        # The last batch may be smaller: tracing takes longer than its single pass.
        values = (traced if images == batch_size else terms)(*batch)
        return images, {name: float(value) for name, value in values.items()}

    return call


def mean_losses(
    saved_model: str | Path,
    records: Iterable[bytes],
    *,
    category_ids: Collection[int],
    batch_size: int,
    max_instances: int = 100,
) -> dict[str, float]:
    """Computes `MeanLosses` for an exported detector; ignores crowds if its training did.

    Args:
        saved_model: folder written by `detection.export.saved_model_export`.
        records: serialized `tf.train.Example`s with the keys of `schemas.features`.
        category_ids: category ids of the data set.
        batch_size: images per batch.
        max_instances: max objects per image.

    Returns:
        Means by name of the loss, and their sum as `TOTAL_LOSS`.

    Raises:
        DataError: the model cannot be loaded, does not know a category, or there are no records.
    """
    trained = load_trained(saved_model)
    unknown = sorted(set(category_ids) - {category["id"] for category in trained.categories})
    if unknown:
        raise DataError(f"{saved_model}: the model does not know category {unknown[0]}, so it has no loss for it.")
    mean_losses_of = MeanLosses(
        trained.detector,
        trained.categories,
        batch_size=batch_size,
        max_instances=max_instances,
        with_crowds=trained.config.train.crowds == "ignore",
    )
    means = mean_losses_of(records)
    if not means:
        raise DataError(f"{saved_model}: no records to compute its losses on. Pass a split with images.")
    return means
