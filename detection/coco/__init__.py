"""COCO: annotation files, data set layouts, exact metrics."""
