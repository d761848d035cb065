"""Layers that detectors share."""
