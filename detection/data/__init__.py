"""From records to batches: decoding, augmentation, batching."""
