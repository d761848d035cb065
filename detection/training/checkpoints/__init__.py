"""Checkpoints of a training run: written atomically, restored, listed."""
