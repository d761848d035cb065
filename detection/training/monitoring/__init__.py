"""Callbacks of the training loop: scalars, progress, non-finite values, profiles."""
