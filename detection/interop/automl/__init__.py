"""google/automl's EfficientDet: its hyperparameters and its checkpoints."""
