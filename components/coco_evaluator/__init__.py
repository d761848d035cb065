"""CocoEvaluator: exact COCO metrics of a model on a split, and whether it is blessed."""
