"""The detectors, the parts they share, and their registry."""
