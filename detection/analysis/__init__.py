"""What an evaluation tells beyond its metrics: error types, calibration, confidence intervals, comparisons."""
