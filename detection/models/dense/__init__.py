"""Detectors that predict classes and boxes for every anchor."""
