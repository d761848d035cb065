"""Adapter for hotcoco: the only code that depends on it.

hotcoco reproduces COCOeval bit for bit, except for two fixed errors of pycocotools, which never
matches an annotation with id 0, or keypoints without `use_cats`.
"""

from detection.coco.engine.streaming import Arrays, MatchingEngine

__all__ = ["Arrays", "MatchingEngine"]
