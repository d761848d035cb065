"""Boxes, areas and overlaps of detections and annotations, for an analysis of their pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.params import FloatArray, IntArray
from detection.datasets.annotations.entries import Entry, Rows


class Geometry:
    """Shapes of the detections and annotations of one evaluation, by position.

    boxes: float64 [N, 4], boxes of the detections, x, y, width, height in pixels.
    areas: float64 [N], areas of the detections in square pixels, which determine their area ranges.
    """

    def __init__(
        self,
        ground_truth: Any,
        loaded: Any,
        *,
        annotations: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        iou_type: str,
        sigmas_of: Mapping[int, tuple[float, ...]],
    ) -> None:
        """Args: `ground_truth` and `loaded`, `hotcoco.COCO` of `annotations`, `detections`; sigmas by category."""
        self._ground_truth = ground_truth
        self._loaded = loaded
        self._annotations = annotations
        self._iou_type = iou_type
        self._crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
        self._annotation_boxes = np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4)
        self._entries: list[Entry] = []
        if isinstance(detections, np.ndarray):
            self.boxes = detections[:, 1:5]
            self.areas = detections[:, 3] * detections[:, 4]
        else:
            self._entries = _completed(loaded, len(detections))
            self.boxes = np.array([entry["bbox"] for entry in self._entries], np.float64).reshape(-1, 4)
            self.areas = np.array([entry["area"] for entry in self._entries], np.float64)
        if iou_type == "keypoints":
            self._annotation_areas = np.array([annotation["area"] for annotation in annotations], np.float64)
            most = max(map(len, sigmas_of.values()), default=0)
            self._points = _padded([np.reshape(one["keypoints"], (-1, 3)) for one in annotations], most)
            self._detected_points = _padded([np.reshape(one["keypoints"], (-1, 3)) for one in self._entries], most)
            sigmas = [np.reshape(sigmas_of[one["category_id"]], (-1, 1)) for one in annotations]
            self._variances = (2 * _padded(sigmas, most)[:, :, 0]) ** 2

    def overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        """Returns IoU of boxes or masks, or similarity of keypoints, float64 [D, G], of detections and annotations.

        For a crowd, the overlap is the fraction of the detection inside it.
        """
        if self._iou_type == "segm":
            return self._mask_overlaps(detections, annotations)
        if self._iou_type == "keypoints":
            return self._similarities(detections, annotations)
        return self._box_overlaps(detections, annotations)

    def overlaps_across(self, detections: IntArray, annotations: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the overlaps within a category, and across categories.

        Keypoints of two categories are not comparable, so their boxes are compared.
        """
        overlaps = self.overlaps(detections, annotations)
        return overlaps, self._box_overlaps(detections, annotations) if self._iou_type == "keypoints" else overlaps

    def _box_overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        boxes, crowd = self._annotation_boxes[annotations], self._crowd[annotations]
        return np.asarray(hotcoco.mask.bbox_iou(self.boxes[detections], boxes, crowd))

    def _mask_overlaps(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        mine = [self._loaded.ann_to_rle(self._entries[position]) for position in detections]
        theirs = [self._ground_truth.ann_to_rle(self._annotations[position]) for position in annotations]
        if not mine or not theirs:
            return np.zeros((len(mine), len(theirs)))
        return np.asarray(hotcoco.mask.iou(mine, theirs, self._crowd[annotations].astype(np.uint8)))

    def _similarities(self, detections: IntArray, annotations: IntArray) -> FloatArray:
        """Returns object keypoint similarity (OKS) [D, G]; source: `computeOks` of pycocotools' cocoeval.py.

        Of pairs of categories with different keypoints, the values are meaningless.
        """
        variances = self._variances[annotations]
        points = self._detected_points[detections, None, :, :2]
        labels = self._points[annotations]
        labelled = labels[:, :, 2] > 0
        blank = np.count_nonzero(labelled, axis=1) == 0
        away = points - labels[:, :, :2]
        # Without keypoints: distance of the detected keypoints from the annotation's box, three times as large.
        corner, sides = np.split(self._annotation_boxes[annotations[blank], None], 2, axis=2)
        away[:, blank] = np.maximum(0, corner - sides - points) + np.maximum(0, points - corner - 2 * sides)
        counted = (labelled | blank[:, None]) & (variances > 0)
        areas = self._annotation_areas[annotations, None] + np.spacing(1)
        similar = np.exp(-(away**2).sum(axis=3) / np.where(counted, variances, 1) / areas / 2)
        return np.where(counted, similar, 0.0).sum(axis=2) / counted.sum(axis=1)


def _completed(loaded: Any, count: int) -> list[Entry]:
    """Returns all detections with `bbox` and `area`, as pycocotools' `loadRes` computes them.

    The engine completes boxes, keypoints and compressed masks when it loads them.  It keeps polygons
    and uncompressed masks unchanged; their box is also pycocotools' `toBbox`.
    """
    entries: list[Entry] = loaded.load_anns(list(range(1, count + 1)))
    lacking = [position for position, entry in enumerate(entries) if not {"bbox", "area"} <= entry.keys()]
    if lacking:
        masks = [loaded.ann_to_rle(entries[position]) for position in lacking]
        boxes, areas = hotcoco.mask.to_bbox(masks).tolist(), hotcoco.mask.area(masks).tolist()
        for position, box, area in zip(lacking, boxes, areas, strict=True):
            entries[position] = {"bbox": box, "area": area, **entries[position]}
    return entries


def _padded(rows: Sequence[npt.NDArray[Any]], count: int) -> FloatArray:
    """Returns arrays [K, C] as one array [N, count, C], padded with zeros."""
    padded = np.zeros((len(rows), count, rows[0].shape[1] if rows else 3))
    for position, row in enumerate(rows):
        padded[position, : len(row)] = row
    return padded
