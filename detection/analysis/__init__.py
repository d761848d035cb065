"""Analysis of an evaluation beyond its metrics: error types, calibration, confidence intervals, comparisons."""
