"""The evaluation report: one HTML page of how good a model is, whether it is better, and where it fails."""
