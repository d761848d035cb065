"""Readers of data sets that are not COCO's: each makes the same COCO entries of a folder in one format."""
