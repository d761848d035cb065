"""COCO's twelve figures of boxes, by name."""

from typing import Literal

MetricName = Literal["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
