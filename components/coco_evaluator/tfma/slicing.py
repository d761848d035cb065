"""Slices of a data set, as TFMA defines them by an `EvalConfig`."""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from components.coco_evaluator.tfma.derived_features import DERIVED, IMAGE_ENTRY_PREFIX, derive
from components.coco_evaluator.tfma.slice_metrics import OVERALL, SliceKey
from detection.input_pipeline.evaluation_records import EvaluationRecord
from schemas.errors import DataError

_MAX_SLICES = 1_000  # slices; each has arrays of its own, some megabytes with many categories


class Slicer:
    """Finds the slices of a record; pickled for Beam workers.

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
        self._seen: set[SliceKey] = set()

    def slice_keys(self, record: EvaluationRecord) -> list[SliceKey]:
        """Returns the slices of an image: `OVERALL` first, then the others in an arbitrary order, each once.

        An image that lacks a feature is in no slice by it; one with several values is
        in the slice of each.

        Raises:
            DataError: the image does not decode; a feature holds bytes that are no text; there are more slices
                than can be evaluated.
        """
        from tensorflow_model_analysis.slicer import slicer_lib

        values = {key: found for key in self._keys if (found := feature_values(record, key)) is not None}
        keys = set(slicer_lib.get_slices_for_features_dicts([], values, self._specs))
        self._seen |= keys
        if len(self._seen) > _MAX_SLICES:
            raise DataError(
                f"EvalConfig: slicing by {', '.join(self._keys)} makes more than {_MAX_SLICES} slices. "
                "Slice by features of few values, or name the values in feature_values."
            )
        return [OVERALL, *sorted(keys - {OVERALL}, key=repr)]


def feature_values(record: EvaluationRecord, key: str) -> npt.NDArray[Any] | None:
    """Returns the values of a feature of a record or a derived one, [N]; None: no such feature.

    Raises:
        DataError: the image does not decode; bytes that are no text.
    """
    if key in record.example.features.feature:
        feature = record.example.features.feature[key]
        if feature.HasField("float_list"):
            return np.array(feature.float_list.value, np.float32)
        if feature.HasField("int64_list"):
            return np.array(feature.int64_list.value, np.int64)
        return np.array([_text(value, key) for value in feature.bytes_list.value], object)
    derived = derive(key, record)
    return None if derived is None else np.array(derived)


def empty_slicings(specs: Iterable[Any], keys: Collection[SliceKey]) -> list[str]:
    """Describes each slicing without an image, as after a misspelt feature name.

    Args:
        specs: `tfma.SlicingSpec` messages.
        keys: the slices that have images.
    """
    from tensorflow_model_analysis.slicer import slicer_lib

    sentences = []
    for message in specs:
        spec = slicer_lib.SingleSliceSpec(spec=message)
        if message.ByteSize() and not any(spec.is_slice_applicable(key) for key in keys):
            sentences.append(
                f"EvalConfig: no image is in a slice by {describe_spec(message)}. Features are those of the records, "
                f"{', '.join(DERIVED)}, and {IMAGE_ENTRY_PREFIX}<key of the image's COCO entry>."
            )
    return sentences


def describe_spec(spec: Any) -> str:
    """Describes a `tfma.SlicingSpec`, such as "image/format, brightness = dark"."""
    return ", ".join([*spec.feature_keys, *(f"{key} = {value}" for key, value in sorted(spec.feature_values.items()))])


def _text(value: bytes, key: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"EvalConfig: {key} holds {len(value)} bytes that are no text. Slice by another feature."
        ) from None
