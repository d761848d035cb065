"""The evaluation report: one HTML page on a model's quality, its change, and its errors."""
