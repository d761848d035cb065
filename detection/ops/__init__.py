"""Pure functions on tensors: boxes, anchors, masks, NMS, losses, replicas."""
