"""COCO TFRecords of other tools, and our own, back to images and COCO annotations.

Two passes over the shards, each of which can run on every shard alone: `survey` looks
at what is there, `merging` decides for the whole set, `images` reads.
"""
