"""Reads records and builds training batches: reading, decoding, augmentation, batching."""
