"""Results files, metrics files, and the COCO files that an evaluation reads."""
