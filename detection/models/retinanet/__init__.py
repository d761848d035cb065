"""RetinaNet."""
