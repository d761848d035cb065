"""The dialects of COCO TFRecords, told apart by their keys."""

from collections.abc import Container

from detection.datasets.importers import keys
from schemas import features

COCOFLOW = "cocoflow"  # ours: the COCO entries are in the record
AUTOML = "automl"  # google/automl and the TPU models: always with labels
OD_API = "od_api"  # TF Object Detection API, whose COCO writer leaves labels out

_AUTOML_ONLY = (keys.CAPTION, keys.POLYGON, keys.ATTRIBUTE_LABEL)


def dialect_of(found: Container[str], *, labels: bool) -> str:
    """The dialect of a data set.

    The foreign ones are read alike; the name only helps people.  Records that could be
    of either are automl's where they have labels and crowd flags: older tools of the
    Object Detection API write labels, but no crowd flags.

    Args:
        found: the keys of its records.
        labels: every object has a label.
    """
    if features.COCO in found:
        return COCOFLOW
    if any(key in found for key in _AUTOML_ONLY):
        return AUTOML
    return AUTOML if labels and features.IS_CROWD in found and keys.KEYPOINT_X not in found else OD_API
