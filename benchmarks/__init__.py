"""Measurements of speed, as ratios within one run; the figures are in README.md."""
