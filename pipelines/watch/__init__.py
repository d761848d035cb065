"""Scheduled retraining on one machine: when to train, runs as child processes, and a journal of both."""
