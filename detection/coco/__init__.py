"""COCO and LVIS metrics, exactly as pycocotools computes them."""

from detection.coco.accumulator import MetricsAccumulator
from detection.coco.evaluation import evaluate
from detection.coco.metrics import CocoMetrics

__all__ = ["CocoMetrics", "MetricsAccumulator", "evaluate"]
