"""Training-time augmentation: pure functions of a `Sample` and a seed."""
