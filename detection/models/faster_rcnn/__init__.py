"""Faster R-CNN and Mask R-CNN."""
