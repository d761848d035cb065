"""From records to training batches: reading, decoding, augmentation, batching."""
