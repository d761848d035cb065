"""D-FINE: a detector of queries, without anchors to match by overlap and without non-maximum suppression."""
