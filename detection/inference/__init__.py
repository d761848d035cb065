"""Trained detectors: export, SavedModels, results, restoring, mean losses."""
