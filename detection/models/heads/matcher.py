"""Matching of anchors with objects: which learn an object, which the background, and which nothing."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import Field

from detection.ops.anchors import Assignment, anchors_inside, assign_anchors
from detection.types import Labels
from schemas.config.section import Section


class Matcher(Section):
    """Bands of an anchor's IoU with the object that it overlaps most."""

    positive_iou: float = Field(0.5, gt=0.0, le=1.0, description="min IoU of a positive anchor")
    negative_iou: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="anchors below this IoU are background, those from here to positive_iou are ignored; none: "
        "positive_iou",
    )
    force_match: bool = Field(True, description="each object also gets the anchor that it overlaps most")

    def _check_keys(self) -> None:
        if self.negative_iou is not None and self.negative_iou > self.positive_iou:
            raise ValueError(f"negative_iou = {self.negative_iou} is above positive_iou = {self.positive_iou}")

    def __call__(
        self, anchors: npt.NDArray[np.float32], labels: Labels, *, crowd_fraction: float | None = None
    ) -> Assignment:
        """Assigns the anchors to the objects; objects of weight 0 claim no anchor.

        Args:
            anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
            labels: ground truth.
            crowd_fraction: anchors with at least this fraction inside a crowd are ignored, unless they are positive;
                None: `positive_iou`.
        """
        boxes = tf.constant(anchors)
        assignment = assign_anchors(
            boxes,
            labels.boxes,
            labels.valid,
            claims=None if labels.weights is None else labels.valid & (labels.weights > 0.0),
            match_threshold=self.positive_iou,
            unmatched_threshold=self.negative_iou,
            force_match=self.force_match,
        )
        if labels.crowds is None:
            return assignment
        fraction = self.positive_iou if crowd_fraction is None else crowd_fraction
        inside = anchors_inside(boxes, labels.boxes, labels.crowds, min_fraction=fraction)
        return assignment.ignore(~assignment.positive & inside)
