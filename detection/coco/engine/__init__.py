"""Adapter around hotcoco: the only place that knows it.

hotcoco reproduces COCOeval to the last bit, with one slip of pycocotools mended: an
annotation with id 0 can be found there, in pycocotools it never is.
"""

from detection.coco.engine.batch import BatchEvaluation
from detection.coco.engine.streaming import Arrays, MatchingEngine

__all__ = ["Arrays", "BatchEvaluation", "MatchingEngine"]
