"""Scheduled retraining on one machine: when to train, and runs as child processes."""
