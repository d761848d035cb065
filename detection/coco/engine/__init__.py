"""Adapter around hotcoco: the only place that knows it.

hotcoco reproduces COCOeval to the last bit, with two errors of pycocotools corrected: it
matches an annotation with id 0, and keypoints without `use_cats`; pycocotools never does.
"""

from detection.coco.engine.streaming import Arrays, MatchingEngine

__all__ = ["Arrays", "MatchingEngine"]
