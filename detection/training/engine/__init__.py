"""The training step, its parts, and the training loop."""
