"""Boxes, areas and overlaps of detections and objects, as the engine sees them."""

from collections.abc import Sequence
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.metric_definitions import FloatArray
from detection.datasets.entries import Entry, Rows

IntArray = npt.NDArray[np.int64]


class Geometry:
    """Shapes of the detections and objects of one evaluation, by their position in it.

    boxes: float64 [N, 4] of the detections, x, y, width, height in pixels.
    areas: float64 [N] of the detections, square pixels; which area ranges they belong to follows from these.
    """

    def __init__(
        self,
        truth: Any,
        found: Any,
        *,
        annotations: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        iou_type: str,
        sigmas: Sequence[float],
    ) -> None:
        """Args: `truth` and `found`, `hotcoco.COCO`; `annotations` and `detections` in them; `sigmas` of keypoints."""
        self._truth = truth
        self._found = found
        self._annotations = annotations
        self._iou_type = iou_type
        self._variances = (2 * np.array(sigmas)) ** 2
        self._crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
        self._object_boxes = np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4)
        self._entries: list[Entry] = []
        if isinstance(detections, np.ndarray):
            self.boxes = detections[:, 1:5]
            self.areas = detections[:, 3] * detections[:, 4]
        else:
            self._entries = _completed(found, len(detections))
            self.boxes = np.array([entry["bbox"] for entry in self._entries], np.float64).reshape(-1, 4)
            self.areas = np.array([entry["area"] for entry in self._entries], np.float64)
        if iou_type == "keypoints":
            self._object_areas = np.array([annotation["area"] for annotation in annotations], np.float64)
            self._points = _keypoints(annotations, len(sigmas))
            self._found_points = _keypoints(self._entries, len(sigmas))

    def overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        """IoU of boxes or masks, or similarity of keypoints, float64 [D, G], of some detections and objects.

        With a crowd it is the share of the detection that lies in it.
        """
        if self._iou_type == "segm":
            return self._mask_overlaps(detections, annotations)
        if self._iou_type == "keypoints":
            return self._similarities(detections, annotations)
        return self._box_overlaps(detections, annotations)

    def overlaps_across(self, detections: IntArray, annotations: IntArray) -> tuple[FloatArray, FloatArray]:
        """The overlaps where categories are the same, and where they differ.

        Keypoints of two categories are no measure of each other, so their boxes are.
        """
        overlaps = self.overlaps(detections, annotations)
        return overlaps, self._box_overlaps(detections, annotations) if self._iou_type == "keypoints" else overlaps

    def _box_overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        boxes, crowd = self._object_boxes[annotations], self._crowd[annotations]
        return np.asarray(hotcoco.mask.bbox_iou(self.boxes[detections], boxes, crowd))

    def _mask_overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        found = [self._found.ann_to_rle(self._entries[position]) for position in detections]
        truth = [self._truth.ann_to_rle(self._annotations[position]) for position in annotations]
        if not found or not truth:
            return np.zeros((len(found), len(truth)))
        return np.asarray(hotcoco.mask.iou(found, truth, self._crowd[annotations].astype(np.uint8)))

    def _similarities(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        """Object keypoint similarity (OKS) [D, G]; source: `computeOks` of pycocotools' cocoeval.py."""
        found = self._found_points[detections, None, :, :2]
        truth = self._points[annotations]
        labelled = truth[:, :, 2] > 0
        blank = ~labelled.any(axis=1)
        away = found - truth[:, :, :2]
        # Without keypoints: how far those found lie from the object's box, taken thrice as large.
        corner, sides = np.split(self._object_boxes[annotations[blank], None], 2, axis=2)
        away[:, blank] = np.maximum(0, corner - sides - found) + np.maximum(0, found - corner - 2 * sides)
        counted = labelled | blank[:, None]
        areas = self._object_areas[annotations, None] + np.spacing(1)
        similar = np.exp(-(away**2).sum(axis=3) / self._variances / areas / 2)
        return np.where(counted, similar, 0.0).sum(axis=2) / counted.sum(axis=1)


def _completed(found: Any, count: int) -> list[Entry]:
    """Returns all detections with `bbox` and `area`, as pycocotools' `loadRes` completes them.

    The engine completes boxes, keypoints and compressed masks when it loads them.  Polygons
    and uncompressed masks stay as they are there; their box is pycocotools' `toBbox`, too.
    """
    entries: list[Entry] = found.load_anns(list(range(1, count + 1)))
    lacking = [position for position, entry in enumerate(entries) if not {"bbox", "area"} <= entry.keys()]
    if lacking:
        masks = [found.ann_to_rle(entries[position]) for position in lacking]
        boxes, areas = hotcoco.mask.to_bbox(masks).tolist(), hotcoco.mask.area(masks).tolist()
        for position, box, area in zip(lacking, boxes, areas, strict=True):
            entries[position] = {"bbox": box, "area": area, **entries[position]}
    return entries


def _keypoints(entries: Sequence[Entry], count: int) -> FloatArray:
    """[N, count, 3]: x, y in pixels, visibility."""
    return np.array([entry["keypoints"] for entry in entries], np.float64).reshape(-1, count, 3)
