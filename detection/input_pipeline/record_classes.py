"""Reads the classes of all objects of some records, and computes class weights from their counts."""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError

from detection.input_pipeline.object_shapes import refuse_category
from detection.input_pipeline.record_reader import RecordReader
from schemas import features
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.trainer")
_THREADS = 16  # they mostly wait for storage
_PORTION = 256  # records per task of a thread


class RecordClasses(NamedTuple):
    """Objects of some records, record by record, without crowds.

    records: int64 [M], index of the object's record.
    classes: int64 [M], class index, 0 <= class < C.
    """

    records: npt.NDArray[np.int64]
    classes: npt.NDArray[np.int64]


def read_classes(reader: RecordReader, category_ids: Sequence[int]) -> RecordClasses:
    """Reads the classes of all objects from all records; decodes no image.

    Args:
        reader: the records.
        category_ids: the data set's category ids in the order of the network's classes.

    Raises:
        DataError: a record is damaged or not a `tf.train.Example`, or has an unknown category.
    """
    started = time.monotonic()
    with ThreadPoolExecutor(_THREADS) as pool:
        starts = range(0, len(reader), _PORTION)
        portions = list(pool.map(lambda start: _read_portion(reader, start), starts))
    records, ids = np.concatenate(portions, axis=1)
    order = np.argsort(category_ids)
    places = np.searchsorted(category_ids, ids, sorter=order).clip(max=len(category_ids) - 1)
    classes = order[places]
    unknown = np.flatnonzero(np.asarray(category_ids)[classes] != ids)
    if len(unknown):
        refuse_category(reader.read(int(records[unknown[0]])), np.asarray(category_ids))
    _LOGGER.info(
        "read the classes of %d objects in %d records in %.1f s", len(ids), len(reader), time.monotonic() - started
    )
    return RecordClasses(records, classes)


def inverse_frequency_weights(classes: RecordClasses, *, num_classes: int, exponent: float) -> npt.NDArray[np.float32]:
    """Computes weights proportional to the number of objects of a class to the power of -`exponent`.

    Their mean over all objects is 1, which keeps the scale of the loss; with an exponent of 1, the
    objects of each class have the same total weight.

    Args:
        classes: classes of the objects.
        num_classes: C.
        exponent: >= 0.

    Returns:
        float32 [C]; 1 for a class without objects.
    """
    counts = np.bincount(classes.classes, minlength=num_classes).astype(np.float64)
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -exponent, 0.0)
    mean = (weights * counts).sum() / max(counts.sum(), 1.0)
    return np.where(counts > 0, weights / (mean or 1.0), 1.0).astype(np.float32)


def _read_portion(reader: RecordReader, start: int) -> npt.NDArray[np.int64]:
    """Returns record numbers and category ids, int64 [2, M]."""
    rows: list[npt.NDArray[np.int64]] = [np.zeros((2, 0), np.int64)]
    for number in range(start, min(start + _PORTION, len(reader))):
        ids = _category_ids(reader, number)
        rows.append(np.stack([np.full(len(ids), number), ids]))
    return np.concatenate(rows, axis=1)


def read_features(reader: RecordReader, number: int) -> Mapping[str, tf.train.Feature]:
    """Reads the features of a record.

    Raises:
        DataError: the record is damaged or not a `tf.train.Example`.
    """
    try:
        return tf.train.Example.FromString(reader.read(number)).features.feature
    except DecodeError:
        raise DataError(
            f"{reader.name(number)}: not a tf.train.Example. Check the path of the records, or write them again."
        ) from None


def _category_ids(reader: RecordReader, number: int) -> npt.NDArray[np.int64]:
    values = read_features(reader, number)
    labels, crowds = (
        np.array(values[key].int64_list.value if key in values else [], np.int64)
        for key in (features.CLASS_LABEL, features.IS_CROWD)
    )
    # Records of other tools may have no crowd list, or a shorter one.
    is_crowd = np.zeros(len(labels), bool)
    is_crowd[: len(crowds)] = crowds[: len(labels)] != 0
    return labels[~is_crowd]
