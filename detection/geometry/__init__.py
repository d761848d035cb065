"""Boxes, anchors, matching, coding, NMS: pure functions on tensors."""
