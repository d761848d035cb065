"""The training step and loop, and everything that a step consists of."""
