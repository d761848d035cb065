"""Files: atomic publication, locks, JSON, TFRecord shards."""
