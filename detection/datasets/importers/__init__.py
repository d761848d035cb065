"""Converts COCO TFRecords of other tools, and our own, back to images and COCO annotations.

Two passes over the shards, each independent per shard: `survey` counts the content, `merging`
merges the counts for the data set, `images` reads the images.
"""
