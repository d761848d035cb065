"""COCO annotation files and images -> Examples: plain TFRecords that hold the entries losslessly."""
