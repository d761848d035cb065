"""Boxes, anchors, assignment, encoding, NMS, losses: pure functions on tensors."""
