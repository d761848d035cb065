"""What users bring: COCO files, data set layouts, checks, statistics, and the records made of them."""
