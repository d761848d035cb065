"""What in the files of an evaluation explains a metric better than the detector does, said beside the metrics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from detection.coco.params import Params
from detection.datasets.annotations import is_crowd

_FEW = 0.1  # fraction of the images with objects that a detector may well have no detection in


def doubts(ground_truth: Mapping[str, Any], detections: Any, params: Params) -> Iterator[str]:
    """Yields what to look at before the metrics are believed, a sentence each.

    Args:
        ground_truth: content of an annotation file.
        detections: COCO results, or rows [N, 7] as `evaluate` takes them; entries may be invalid.
        params: of the evaluation.
    """
    annotations = [one for one in ground_truth["annotations"] if isinstance(one, Mapping)]
    objects: Counter[Any] = Counter(_ids(one for one in annotations if not is_crowd(one)))
    is_rows = isinstance(detections, np.ndarray)
    found: Counter[Any] = Counter(detections[:, 0].tolist() if is_rows else _ids(detections))
    if not found and objects:
        yield "there are no detections"
    without = sum(image_id not in found for image_id in objects)
    if found and without > _FEW * len(objects):
        yield f"{without:,} of {len(objects):,} images with objects have no detection: the file may be a part"
    most = max(params.max_dets)
    crowded = [count for image_id, count in objects.items() if count > most and found[image_id] > most]
    if crowded:
        dets = ",".join(map(str, (*params.max_dets[:-1], max(crowded))))
        yield (
            f"{len(crowded):,} images have more than {most} objects, and only their best {most} detections count: "
            f"--max-dets {dets} counts more"
        )
    if params.iou_type == "keypoints" and (ignored := sum(map(_is_uncounted, annotations))):
        yield f"{ignored:,} objects are ignored, because num_keypoints is 0 although keypoints are labelled"
    if is_rows and len(detections) > 1:
        rows = np.ascontiguousarray(detections).view(np.dtype((np.void, detections.itemsize * detections.shape[1])))
        repeated = len(detections) - len(np.unique(rows))
        if repeated > len(detections) / 4:
            yield f"{repeated:,} of {len(detections):,} detections are in the file twice, and count as false"
        if np.ptp(detections[:, 5]) == 0:
            yield f"all scores are {detections[0, 5]:g}, so the order of the file decides about AP"


def _is_uncounted(annotation: Mapping[str, Any]) -> bool:
    points = annotation.get("keypoints")
    return annotation.get("num_keypoints") == 0 and isinstance(points, list) and any(points[2::3])


def _ids(entries: Iterable[Any]) -> Iterator[int]:
    ids = (one.get("image_id") for one in entries if isinstance(one, Mapping))
    return (image_id for image_id in ids if isinstance(image_id, int))
