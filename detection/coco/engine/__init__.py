"""Adapter around hotcoco: the only place that knows it.

hotcoco reproduces COCOeval to the last bit, with two slips of pycocotools mended: an
annotation with id 0 can be found there, and so can keypoints whose categories are not
told apart; in pycocotools neither ever is.
"""

from detection.coco.engine.streaming import Arrays, MatchingEngine

__all__ = ["Arrays", "MatchingEngine"]
