"""Layers of several detectors."""
