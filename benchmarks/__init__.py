"""Measurements of speed, as ratios within one run; the results are in README.md."""
