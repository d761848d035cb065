"""COCO TFRecords of any dialect, ours included, back to images and COCO entries.

Two passes over the shards, each of which can run on every shard alone: `survey` looks
at what is there, `merging` decides for the whole set, `images` reads.
"""
