"""Trained detectors: export, SavedModels, restoring, mean losses."""
