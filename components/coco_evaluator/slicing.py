"""Slices of a data set, as TFMA defines them by an `EvalConfig`."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from components.coco_evaluator.derived_features import Value, derive

# TFMA's SliceKeyType: (feature, value) pairs by ascending feature; empty: all images.
SliceKey: TypeAlias = tuple[tuple[str, Value], ...]

OVERALL: SliceKey = ()


class Slicer:
    """Tells the slices of a record; goes to Beam workers by pickle.

    Args:
        specs: `tfma.SlicingSpec` messages.  A feature is one of the record, or one
            of `derived_features`; the record's own comes first.
    """

    def __init__(self, specs: Iterable[Any]) -> None:
        # Seconds, and only needed here.
        from tensorflow_model_analysis.slicer import slicer_lib

        messages = list(specs)
        self._specs = [slicer_lib.SingleSliceSpec(spec=message) for message in messages]
        self._keys = sorted({key for message in messages for key in (*message.feature_keys, *message.feature_values)})

    def slice_keys(self, example: tf.train.Example) -> list[SliceKey]:
        """The slices that an image belongs to: `OVERALL` always, the others in no order of meaning, each once.

        An image that lacks a feature is in no slice by it; one with several values is
        in the slice of each.

        Raises:
            DataError: see `derived_features.derive`.
        """
        from tensorflow_model_analysis.slicer import slicer_lib

        found = slicer_lib.get_slices_for_features_dicts([], self._values(example), self._specs)
        return [OVERALL, *sorted({key for key in found if key != OVERALL}, key=repr)]

    def _values(self, example: tf.train.Example) -> dict[str, npt.NDArray[Any]]:
        values = {key: feature_values(example, key) for key in self._keys}
        return {key: value for key, value in values.items() if value is not None}


def feature_values(example: tf.train.Example, key: str) -> npt.NDArray[Any] | None:
    """Values of a record's own or derived feature, one-dimensional; None: it has none.

    Raises:
        DataError: see `derived_features.derive`.
    """
    if key in example.features.feature:
        feature = example.features.feature[key]
        if feature.HasField("float_list"):
            return np.array(feature.float_list.value, np.float32)
        if feature.HasField("int64_list"):
            return np.array(feature.int64_list.value, np.int64)
        return np.array(feature.bytes_list.value, object)
    derived = derive(key, example)
    return None if derived is None else np.array(derived)


def describe(key: SliceKey) -> str:
    """A slice in words.

    >>> describe((("brightness", "dark"), ("image/width", 640)))
    'brightness = dark, image/width = 640'
    >>> describe(())
    'all images'
    """
    return ", ".join(f"{feature} = {value}" for feature, value in key) or "all images"
