"""Data sets of users: COCO files, layouts, checks, statistics, and the records made from them."""
