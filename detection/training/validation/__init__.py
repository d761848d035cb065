"""Evaluates checkpoints during or beside a training run: the best one, early stopping."""
