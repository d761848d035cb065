"""Training-time augmentation: pure functions on a `Sample`, each a function of its seed alone."""
