"""Boundary IoU of matched masks: measures how well the outlines of detections follow the ground truth.

Source: Cheng et al., "Boundary IoU: Improving Object-Centric Image Segmentation Evaluation", CVPR 2021.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from detection.analysis.analysis_file import Boundaries, Box, MaskMatch, MaskOverlap
from detection.analysis.evaluated import Evaluated
from detection.analysis.matching import BoolArray
from detection.coco.engine.batch import MATCHED, Diagnosis
from detection.coco.params import FloatArray, IntArray
from detection.datasets.masks import compressed_rle, decode_counts
from schemas.config.evaluate import AnalysisConfig

DILATION_RATIO = 0.02  # fraction of the image's diagonal, as in the paper
GOOD_MASK, POOR_BOUNDARY = 0.75, 0.5  # min mask IoU, and boundary IoU below which a boundary is poor


class Overlap(NamedTuple):
    """Overlaps of two masks, 0..1."""

    mask_iou: float
    boundary_iou: float


@dataclass(frozen=True, eq=False)
class MatchedMasks:
    """The true positives of an evaluation of masks, and the ground truth that they match.

    annotation: int64 [M], positions of the ground truth, ascending.
    detection: int64 [M], positions of the detections.
    mask_iou, boundary_iou: float64 [M].
    """

    annotation: IntArray
    detection: IntArray
    mask_iou: FloatArray
    boundary_iou: FloatArray


def boundary_width(height: int, width: int) -> int:
    """Returns the width in pixels of the boundary region for an image of this size, at least 1."""
    return max(1, round(DILATION_RATIO * math.hypot(height, width)))


def inner_boundary(mask: BoolArray, width: int) -> BoolArray:
    """Returns the pixels of a mask near its contour.

    They are the mask minus its erosion by a square of 3 x 3 pixels, repeated `width` times; pixels
    beyond the border of the array, as of the image, are outside of the mask.

    Args:
        mask: bool [H, W].
        width: width of the boundary region in pixels, > 0.
    """
    side = 2 * width + 1  # repeated erosion equals one erosion by a larger square, separable by axis
    eroded = _windows_inside(_windows_inside(np.pad(mask, width), side).T, side).T
    return mask & ~eroded


def _windows_inside(mask: BoolArray, size: int) -> BoolArray:
    """Returns whether `size` pixels, from each one down, are all inside: bool [H - size + 1, W]."""
    covered = 1
    while covered < size:
        step = min(covered, size - covered)
        mask = mask[:-step] & mask[step:]
        covered += step
    return mask


def mask_overlap(first: Mapping[str, Any], second: Mapping[str, Any]) -> Overlap:
    """Computes mask IoU and Boundary IoU of two compressed RLEs of one image; 0 if both are empty."""
    from pycocotools import mask

    boxes = mask.toBbox([first, second]).astype(np.int64)
    boxes = boxes[(boxes[:, 2:] > 0).all(axis=1)]
    if not len(boxes):
        return Overlap(0.0, 0.0)
    # Both masks are empty outside of their boxes, so their erosions and boundaries are, too.
    left, top = boxes[:, :2].min(axis=0).tolist()
    right, bottom = (boxes[:, :2] + boxes[:, 2:]).max(axis=0).tolist()
    masks = [_window(rle, slice(top, bottom), slice(left, right)) for rle in (first, second)]
    width = boundary_width(*first["size"])
    return Overlap(_iou(*masks), _iou(*(inner_boundary(inside, width) for inside in masks)))


def _window(rle: Mapping[str, Any], rows: slice, columns: slice) -> BoolArray:
    """Decodes a part of a mask without decoding other columns: bool [H, W] of the part."""
    height = rle["size"][0]
    ends = np.cumsum(decode_counts(rle["counts"])).clip(columns.start * height, columns.stop * height)
    runs = np.diff(ends, prepend=columns.start * height)
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return inside.reshape(-1, height)[:, rows].T


def _iou(first: BoolArray, second: BoolArray) -> float:
    return int(np.count_nonzero(first & second)) / max(int(np.count_nonzero(first | second)), 1)


def matched_masks(evaluated: Evaluated, diagnosis: Diagnosis) -> MatchedMasks:
    """Measures the true positives with any score."""
    annotations = np.flatnonzero(diagnosis.annotations == MATCHED)
    detections = diagnosis.matches[annotations]
    pairs = zip(annotations.tolist(), detections.tolist(), strict=True)
    overlaps = np.array([mask_overlap(*_masks(evaluated, *pair)) for pair in pairs]).reshape(-1, 2)
    return MatchedMasks(annotations, detections, overlaps[:, 0], overlaps[:, 1])


def _masks(evaluated: Evaluated, annotation: int, detection: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the compressed RLEs of an annotation and a detection, by position."""
    ground_truth = evaluated.ground_truth
    image = ground_truth.images[ground_truth.image[annotation]]
    shapes: list[Any] = [ground_truth.annotations[annotation], evaluated.detections.results[detection]]
    mine, theirs = (
        compressed_rle(shape["segmentation"], height=image["height"], width=image["width"]) for shape in shapes
    )
    assert mine is not None
    assert theirs is not None  # as they overlap
    return mine, theirs


def boundaries(evaluated: Evaluated, diagnosis: Diagnosis, options: AnalysisConfig) -> Boundaries:
    """Computes mean overlaps of the true positives, by area and by category, and the lowest Boundary IoUs."""
    ground_truth = evaluated.ground_truth
    matched = matched_masks(evaluated, diagnosis)
    areas, categories = ground_truth.areas[matched.annotation], ground_truth.category[matched.annotation]
    worst = np.argsort(matched.boundary_iou, kind="stable")[: options.worst]
    return Boundaries(
        areas={
            name: _mean(matched, (areas >= low) & (areas <= high))
            for name, (low, high) in evaluated.params.area_ranges.items()
        },
        categories={
            category["id"]: _mean(matched, categories == position)
            for position, category in enumerate(ground_truth.categories)
            if (categories == position).any()
        },
        worst=[_mask_match(evaluated, matched, place) for place in worst.tolist()],
    )


def _mean(matched: MatchedMasks, chosen: BoolArray) -> MaskOverlap:
    mask_iou, boundary_iou = matched.mask_iou[chosen], matched.boundary_iou[chosen]
    return MaskOverlap(
        matches=len(mask_iou),
        mask_iou=float(mask_iou.mean()) if len(mask_iou) else None,
        boundary_iou=float(boundary_iou.mean()) if len(mask_iou) else None,
        poor_boundaries=int(np.count_nonzero((mask_iou >= GOOD_MASK) & (boundary_iou < POOR_BOUNDARY))),
    )


def _mask_match(evaluated: Evaluated, matched: MatchedMasks, place: int) -> MaskMatch:
    ground_truth, annotation, detection = evaluated.ground_truth, matched.annotation[place], matched.detection[place]
    image = ground_truth.images[ground_truth.image[annotation]]
    category_id = ground_truth.categories[ground_truth.category[annotation]]["id"]
    score = float(evaluated.detections.scores[detection])
    mine, theirs = _masks(evaluated, annotation, detection)
    return MaskMatch(
        image_id=image["id"],
        file_name=str(image.get("file_name", "")),
        mask_iou=float(matched.mask_iou[place]),
        boundary_iou=float(matched.boundary_iou[place]),
        ground_truth=Box(category_id, ground_truth.boxes[annotation].tolist(), None, "matched", mine),
        detection=Box(category_id, evaluated.geometry.boxes[detection].tolist(), score, "TP", theirs),
    )
