"""A COCO annotation file: its entries, the rules that they must follow, and reading and writing it in one pass."""
