"""Detectors, their shared parts, and the registry."""
